"""vLLM's native life of a request, for benchmarks (`target.Cycle`).

The engine's own calls in the order of its scheduler, the whole prompt in one step. A recurrent
model takes a second step from the divergence point, where the scheduler ends a chunk. The further
end at the last block border is left out, in vLLM's favour.

Engine environment only; the engine is imported when a cycle is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.harness.adapters.vllm.api import check_drift, engine, has, hasher, new_manager
from kvproof.harness.contract.target import Cycle, TargetConfig
from kvproof.harness.errors import UnsupportedVerb


class _OneGroup:
    def __init__(self, config: TargetConfig, algorithm: str) -> None:
        self._hasher = hasher(config.block_size, algorithm)
        self._manager = new_manager(config)
        self._new_request = engine().Request
        self._sampling = engine().SamplingParams(max_tokens=1)
        self.given = {
            "prompt": "list of int",
            "identity": f"Request with {algorithm} block hashes",
            "match, room, registration": (
                "new_step_starts, get_computed_blocks, allocate_slots; with states a second step "
                "from the divergence on"
            ),
            "tables": "get_block_ids: all groups",
            "end": "free",
            "in its favour": "no step ends at the last block border; no statistics, no scheduler",
        }

    def prepare(self, tokens: memoryview) -> list[int]:
        """A list of int."""
        return tokens.tolist()

    def run(self, index: int, prompt: Any) -> tuple[int, Sequence[object], Sequence[int]]:
        """Hash, match, allocate, register and free. Raises MemoryError if it does not fit."""
        manager, request = self._manager, self._request(str(index), prompt)
        manager.new_step_starts()
        blocks, hit, _ = manager.get_computed_blocks(request)
        self._allocate(request, request.num_tokens - hit, hit, blocks)
        request.num_computed_tokens = request.num_tokens
        ids = manager.get_block_ids(request.request_id)[0]
        manager.free(request)
        return hit, ids, ids

    def _request(self, name: str, prompt: Any) -> Any:
        return self._new_request(name, prompt, self._sampling, None, block_hasher=self._hasher)

    def _allocate(self, request: Any, count: int, *hit: Any) -> None:
        if self._manager.allocate_slots(request, count, *hit) is None:
            name, tokens = request.request_id, request.num_tokens
            raise MemoryError(f"request {name} of {tokens} tokens does not fit")

    def lookup(self, prompt: Any) -> int:
        """Hash and match."""
        return int(self._manager.get_computed_blocks(self._request("", prompt))[1])

    def cached_blocks(self) -> int:
        """Blocks that carry a hash."""
        return sum(block.block_hash is not None for block in self._manager.block_pool.blocks)


class _Groups(_OneGroup):
    serves_groups = True

    def __init__(self, config: TargetConfig, algorithm: str) -> None:
        super().__init__(config, algorithm)
        kinds = [group.kind for group in config.groups]
        self._states = "state" in kinds
        self._full = [index for index, kind in enumerate(kinds) if kind == "full"]

    def run(self, index: int, prompt: Any) -> tuple[int, Sequence[object], Sequence[int]]:
        """As with one group; a state is also saved where the prompt leaves the shared prefix."""
        manager, request = self._manager, self._request(str(index), prompt)
        manager.new_step_starts()
        blocks, hit, junction = manager.get_computed_blocks(request)
        if self._states and junction > hit:
            request.shared_prefix_boundary = junction
            self._allocate(request, junction - hit, hit, blocks)
            request.num_computed_tokens = junction
            manager.new_step_starts()
            self._allocate(request, request.num_tokens - junction)
        else:
            self._allocate(request, request.num_tokens - hit, hit, blocks)
        request.num_computed_tokens = request.num_tokens
        tables = manager.get_block_ids(request.request_id)
        manager.free(request)
        return hit, tables, [block for group in self._full for block in tables[group]]


def make_cycle(config: TargetConfig, variant: str = "") -> Cycle:
    """`variant` names a hash algorithm of vLLM; empty: its default, sha256."""
    check_drift()
    if not has("KVCacheManager.record_prefix_cache_stats"):
        raise UnsupportedVerb("make_cycle", "the calls are those of vLLM 0.33.0")
    if any(group.state_blocks > 1 for group in config.groups):
        raise UnsupportedVerb("make_cycle with several blocks a state", "a state fills one block")
    if variant == "index":
        raise UnsupportedVerb("the index alone", "the index is part of the block pool")
    return (_Groups if config.groups else _OneGroup)(config, variant or "sha256")
