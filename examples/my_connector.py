"""A connector of vLLM in a hundred lines: full blocks in host memory, by vLLM's own hashes.

Both halves live in one process here and share a store. With the option `asynchronous` a load takes
a step. `kvproof run --target vllm-engine==0.33.0 --connector my_connector:MyConnector` judges it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
)

STORE: dict[Any, list[Any]] = {}
"""Hash of a block -> its content in each layer; the oldest one is first."""


@dataclass
class Copies(KVConnectorMetadata):  # type: ignore[misc] # the engine's class, untyped here
    """Copies of a step: request, block ids, keys."""

    loads: list[tuple[str, list[int], list[Any]]] = field(default_factory=list)
    stores: list[tuple[list[int], list[Any]]] = field(default_factory=list)


class MyConnector(KVConnectorBase_V1):  # type: ignore[misc] # as above
    """Stores blocks in the step that fills them, and loads those that left the pool."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        options = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._size = vllm_config.cache_config.block_size
        self._asynchronous = bool(options.get("asynchronous", False))
        self._capacity = int(options.get("blocks", 60))
        self._requests: dict[str, Any] = {}
        self._tables: dict[str, list[int]] = {}
        self._computed: dict[str, int] = {}
        self._next = Copies()
        self._under_way: list[tuple[str, list[int], list[Any]]] = []
        self._errors: set[int] = set()

    def _keys(self, request: Any) -> list[Any]:
        return list(request.block_hashes)

    # scheduler

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int, bool]:
        """Look for the blocks that follow those of the pool; the last token is computed."""
        first = self._computed[request.request_id] = num_computed_tokens // self._size
        keys = self._keys(request)[first : (request.num_tokens - 1) // self._size]
        found = len(list(takewhile(STORE.__contains__, keys)))
        return found * self._size, self._asynchronous and found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note a load into new blocks."""
        self._requests[request.request_id] = request
        if num_external_tokens:
            first = self._computed[request.request_id]
            last = first + num_external_tokens // self._size
            ids = list(blocks.get_block_ids()[0][first:last])
            self._next.loads.append((request.request_id, ids, self._keys(request)[first:last]))

    def build_connector_meta(self, scheduler_output: Any) -> Copies:
        """Return the copies of this step."""
        copies, self._next = self._next, Copies()
        for each in scheduler_output.scheduled_new_reqs:
            self._tables[each.req_id] = list(each.block_ids[0])
            self._store(copies, scheduler_output, each.req_id, each.num_computed_tokens)
        cached = scheduler_output.scheduled_cached_reqs
        for name, new, computed in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
        ):
            if name in cached.resumed_req_ids:
                self._tables[name] = []
            self._tables[name] += new[0] if new else []
            self._store(copies, scheduler_output, name, computed)
        for name in scheduler_output.finished_req_ids:
            self._requests.pop(name, None)
            self._tables.pop(name, None)
        return copies

    def _store(self, copies: Copies, output: Any, name: str, start: int) -> None:
        keys = self._keys(self._requests[name])
        end = start + output.num_scheduled_tokens[name]
        places = range(start // self._size, min(len(keys), end // self._size))
        copies.stores.append(
            ([self._tables[name][at] for at in places], [keys[at] for at in places])
        )

    def reset_cache(self) -> bool:
        """Forget everything: the weights have changed."""
        STORE.clear()
        return True

    # worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Keep the caches of all layers: [blocks, heads, block size, width] each."""
        self._caches = list(kv_caches.values())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Load now, or from the next step on."""
        del forward_context, kwargs
        loads = self._get_connector_metadata().loads
        if self._asynchronous:
            self._under_way += loads
        else:
            self._load(loads)

    def _load(self, loads: Iterable[tuple[str, list[int], list[Any]]]) -> None:
        for _, blocks, keys in loads:
            for block, key in zip(blocks, keys, strict=True):
                if key not in STORE:
                    self._errors.add(block)
                    continue
                for cache, content in zip(self._caches, STORE[key], strict=True):
                    cache[block] = content

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are over."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_: Any) -> None:
        """Blocks are stored with all their layers."""

    def wait_for_save(self) -> None:
        """Store the blocks that this step has filled."""
        for blocks, keys in self._get_connector_metadata().stores:
            for block, key in zip(blocks, keys, strict=True):
                STORE[key] = [cache[block].clone() for cache in self._caches]
        while len(STORE) > self._capacity:
            del STORE[next(iter(STORE))]

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str], set[str]]:
        """Return the requests whose loads have ended."""
        del finished_req_ids
        self._load(self._under_way)
        ended = {name for name, _, _ in self._under_way}
        self._under_way = []
        return set(), ended

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that could not be loaded."""
        errors, self._errors = self._errors, set()
        return errors

    # for kvproof alone

    def lose_content(self, pick: Callable[[int], list[int]]) -> None:
        """Lose blocks, as a full or broken store would; `pick` chooses from a number of them."""
        keys = list(STORE)
        for at in pick(len(keys)):
            del STORE[keys[at]]
