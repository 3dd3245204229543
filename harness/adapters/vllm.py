"""vLLM 0.33.0: `KVCacheManager` with one full-attention group, driven as its scheduler does.

A step follows `Scheduler.schedule`: `new_step_starts`, `get_computed_blocks`, `allocate_slots`,
statistics at admission, then `num_computed_tokens` advances; blocks are registered when scheduled.
As by default (`scheduler_reserve_full_isl`), admission needs room for the whole request, also if
only a chunk is computed. The manager has no check at arrival, since vLLM sizes the pool for the
longest request at start-up: a request that can never fit is refused with `no_space`.

Imported in the engine's environment; the engine itself is imported when a target is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from kvproof.harness.adapters.refusals import off
from kvproof.harness.adapters.vllm_api import VERSION, check_drift, engine, hasher, new_manager
from kvproof.harness.adapters.vllm_cycle import make_cycle
from kvproof.harness.errors import UnsupportedVerb
from kvproof.harness.target import (
    Completed,
    Evicted,
    HitStatistics,
    Inspection,
    Namespace,
    Profile,
    Refused,
    Released,
    Request,
    Scheduled,
    Table,
    Target,
    TargetConfig,
    Usage,
)

__all__ = ["PROFILE", "VllmTarget", "make_cycle", "make_target"]

_NO_KERNEL_BLOCKS = "kernel blocks are made in the worker's BlockTable, a Triton kernel"

PROFILE = Profile(
    engine="vllm",
    version=VERSION,
    block_sizes=(1, 2, 4, 16, 32, 64, 128, 256),
    spans=True,
    span_identity=("start", "content"),
    no_read=True,
    lookup=True,
    holders=True,
    state=True,
    statistics=True,
    sharing="when_scheduled",
    duplicates="kept",
    reset="idle",
    index="flat",
    evict_keeps_place=True,
    unsupported={
        "max_kernel_ratio": _NO_KERNEL_BLOCKS,
        "batch": "padded tables are made in the worker's BlockTable, a Triton kernel",
        "no_store": "requests can skip reading (skip_reading_prefix_cache), never storing",
        "experts": "rows are kept by the aux-output connector, not by the cache manager",
        "drafts": "rejected drafts are rolled back by the scheduler, not by the cache manager",
        "pins": "no verb holds a cached prefix without a request",
        "events": "extra keys are published untagged, so identity cannot be rebuilt from events",
        "in_flight_steps": "the scheduler fences frees, the cache manager does not",
        "validates": "placeholder ranges come checked from the input processor",
        "duplicates": "blocks computed at the same time are kept twice under one hash",
        "index": "one flat hash map: an entry may outlive the block before it",
    },
)


class _Step(NamedTuple):
    request: Any
    tokens: int
    endpoints: list[Any]
    """Blocks held until the copies of the step are done."""


class VllmTarget:
    """One `KVCacheManager` and the requests that its scheduler would hold."""

    profile = PROFILE

    def __init__(self, config: TargetConfig) -> None:
        self._size = config.block_size
        self._hasher = hasher(config.block_size, "sha256")
        self._manager = new_manager(config)
        self._pool = self._manager.block_pool
        self._running: dict[str, Any] = {}
        self._steps: dict[int, _Step] = {}
        self._last_step = 0
        self._adapters: dict[tuple[str, str | None], int] = {}
        self._statistics = HitStatistics(0, 0)

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """As the waiting loop of the scheduler."""
        if problem := self._problem(request):
            return Refused("invalid", detail=problem)
        native = self._native(request)
        self._manager.new_step_starts()
        blocks, hit, _ = self._manager.get_computed_blocks(native)
        count = _limited(native.num_tokens - hit, compute)
        if count < 1:
            return Refused("invalid", detail="no token is to be computed")
        got = self._manager.allocate_slots(native, count, hit, blocks, full_sequence_must_fit=True)
        if got is None:
            return self._no_space(native, native.num_tokens, blocks.blocks[0])
        self._manager.record_prefix_cache_stats(native, hit)
        self._add_statistics()
        native.num_computed_tokens = hit
        native.status = engine().RequestStatus.RUNNING
        self._running[request.id] = native
        return self._scheduled(native, hit, count)

    def _problem(self, request: Request) -> str:
        """What vLLM's API and input processor refuse before the manager sees a request."""
        if not request.tokens:
            return "the prompt is empty"
        if request.id in self._running:
            return f"request {request.id!r} is running already"
        if request.namespace.salt == "":
            return "cache_salt must not be empty"
        if request.namespace.adapter is None and request.namespace.adapter_version is not None:
            return "an adapter version without an adapter"
        return ""

    def _native(self, request: Request) -> Any:
        names = engine()
        native = names.Request(
            request.id,
            list(request.tokens),
            _sampling(not request.read),
            None,
            mm_features=_features(request),
            lora_request=self._adapter(request.namespace),
            cache_salt=request.namespace.salt,
            block_hasher=self._hasher,
        )
        if request.resumed:
            native.status = names.RequestStatus.PREEMPTED
            native.num_preemptions = 1
        return native

    def _adapter(self, namespace: Namespace) -> Any:
        """Versions of one adapter differ by their path."""
        name, version = namespace.adapter, namespace.adapter_version
        if name is None:
            return None
        number = self._adapters.setdefault((name, version), len(self._adapters) + 1)
        return engine().LoRARequest(name, number, f"adapters/{version!r}")

    def _no_space(self, native: Any, stop: int, hits: Sequence[Any] = ()) -> Refused:
        held = len(self._ids(native)) + len(hits)
        needed = -(-stop // self._size) - held + sum(block.ref_cnt == 0 for block in hits)
        available = self._pool.get_num_free_blocks()
        detail = f"{needed} blocks needed, {available} of {self._pool.num_gpu_blocks - 1} free"
        return Refused("no_space", needed, available, detail)

    def _scheduled(self, native: Any, hit: int, count: int) -> Scheduled:
        start = native.num_computed_tokens
        copies, endpoints = self._manager.take_kv_cache_block_copies()
        native.num_computed_tokens += count
        native.num_in_flight_tokens += count
        self._last_step += 1
        self._steps[self._last_step] = _Step(native, count, endpoints)
        table = (self._ids(native),)
        moved = tuple((0, copy.src_block_id, copy.dst_block_id) for copy in copies)
        return Scheduled(self._last_step, hit, start, start + count, table, table, moved)

    def _ids(self, native: Any) -> Table:
        return tuple(self._manager.get_block_ids(native.request_id)[0])

    def extend(
        self,
        request_id: str,
        tokens: tuple[int, ...] = (),
        compute: int | None = None,
        drafts: tuple[int, ...] = (),
    ) -> Scheduled | Refused:
        """As the running loop; a refusal takes the new tokens back."""
        if drafts:
            raise UnsupportedVerb("extend with drafts", PROFILE.unsupported["drafts"])
        native = self._running.get(request_id)
        if native is None:
            return Refused("invalid", detail=f"no running request {request_id!r}")
        known = native.num_tokens
        native.append_output_token_ids(list(tokens))
        count = _limited(native.num_tokens - native.num_computed_tokens, compute)
        self._manager.new_step_starts()
        if count > 0 and self._manager.allocate_slots(native, count) is not None:
            return self._scheduled(native, 0, count)
        self._truncate(native, known)
        if count <= 0:
            return Refused("invalid", detail="no token is left to compute")
        return self._no_space(native, native.num_computed_tokens + count)

    def _truncate(self, native: Any, length: int) -> None:
        """Forget tokens after `length`, as the scheduler does when a session is edited."""
        surplus = native.num_tokens - length
        if surplus:
            del native._output_token_ids[-surplus:]
            del native._all_token_ids[-surplus:]
            del native.block_hashes[length // self._size :]

    def complete(
        self, step: int, accepted: int | None = None, experts: tuple[int, ...] = ()
    ) -> Completed:
        """As `update_from_output`, with the endpoints of copies released."""
        if accepted is not None or experts:
            raise UnsupportedVerb("complete with drafts", PROFILE.unsupported["drafts"])
        native, count, endpoints = self._steps.pop(step)
        native.num_in_flight_tokens -= count
        self._pool.free_blocks(endpoints)
        if self._running.get(native.request_id) is not native:
            return Completed(step)
        table = (self._ids(native),)
        return Completed(step, table, table)

    def finish(self, request_id: str) -> Released:
        """Free the blocks, last one first."""
        native = self._running.pop(request_id, None)
        if native is None:
            return Released()
        table = self._ids(native)
        self._manager.free(native)
        return Released((table,))

    cancel = finish
    """vLLM frees an aborted request in the same way."""

    preempt = finish
    """vLLM frees the blocks and starts again from zero computed tokens."""

    pin = off("pin", PROFILE.unsupported["pins"])
    unpin = off("unpin", PROFILE.unsupported["pins"])
    batch = off("batch", PROFILE.unsupported["batch"])
    experts = off("experts", PROFILE.unsupported["experts"])

    def evict(self, count: int) -> Evicted:
        """Cached-only blocks in the order of the free queue."""
        queue = self._pool.free_block_queue.get_all_free_blocks()
        victims = [block.block_id for block in queue if block.block_hash is not None][:count]
        self._manager.evict_blocks(set(victims))
        return Evicted((tuple(victims),))

    def reset(self) -> Released | Refused:
        """Refused while any request holds blocks; cumulative counters go on as in vLLM."""
        if not self._manager.reset_prefix_cache():
            return Refused("busy", detail=f"{len(self._running)} requests hold blocks")
        return Released()

    def lookup(self, request: Request) -> int:
        """Hit length of a request that is not admitted."""
        if not request.tokens:
            return 0
        return int(self._manager.get_computed_blocks(self._native(request))[1])

    def _add_statistics(self) -> None:
        """Move what the engine has counted since the last call to the totals."""
        new, old = self._manager.make_prefix_cache_stats(), self._statistics
        self._statistics = HitStatistics(
            old.queries + new.queries,
            old.hits + new.hits,
            old.resumed_queries + new.preempted_queries,
            old.resumed_hits + new.preempted_hits,
        )

    def inspect(self) -> Inspection:
        """Counts by walking the free queue, not by the pool's own counter."""
        queue = self._pool.free_block_queue.get_all_free_blocks()
        total = len(self._pool.blocks) - 1
        cached = sum(block.block_hash is not None for block in queue)
        held = {block.block_id: block.ref_cnt for block in self._pool.blocks if block.ref_cnt > 0}
        return Inspection(
            Usage(total, len(queue) - cached, total - len(queue), cached),
            self._digest([block.block_id for block in queue], held),
            held,
            self._statistics,
        )

    def _digest(self, queue: list[int], held: dict[int, int]) -> str:
        index = self._pool.cached_block_hash_to_block._cache
        state = (
            queue,
            held,
            sorted((key, _block_ids(found)) for key, found in index.items()),
            [(block.block_id, block.block_hash) for block in self._pool.blocks],
            sorted((name, self._ids(native)) for name, native in self._running.items()),
            sorted(self._steps),
            self._statistics,
        )
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]

    def close(self) -> None:
        """Nothing is held outside the process's memory."""


def _limited(left: int, compute: int | None) -> int:
    return left if compute is None else min(left, compute)


@cache
def _sampling(skip_reading: bool) -> Any:  # noqa: FBT001 - a key of the cache, never seen by callers
    return engine().SamplingParams(max_tokens=1 << 20, skip_reading_prefix_cache=skip_reading)


def _features(request: Request) -> list[Any] | None:
    """Media in the order in which vLLM's input processor sorts them."""
    names = engine()
    return [
        names.MultiModalFeatureSpec(
            data=None,
            modality=span.kind,
            identifier=span.content,
            mm_position=names.PlaceholderRange(span.start, span.length),
        )
        for span in sorted(request.spans, key=lambda span: span.start)
    ]


def _block_ids(found: Any) -> list[int]:
    """Blocks under one key in the order in which lookup prefers them."""
    return list(found) if isinstance(found, dict) else [found.block_id]


def make_target(config: TargetConfig) -> Target:
    """A fresh manager. Raises RuntimeError with the differences if the engine has drifted."""
    check_drift()
    if config.kernel_size != config.block_size:
        raise ValueError(f"kernel_block_size {config.kernel_size}: {_NO_KERNEL_BLOCKS}")
    return VllmTarget(config)
