"""vLLM: `KVCacheManager`, driven as its scheduler does.

A step follows `Scheduler.schedule`: `new_step_starts`, `get_computed_blocks`, `allocate_slots`,
statistics at admission, then `num_computed_tokens` advances; blocks are registered when scheduled.
By default (`scheduler_reserve_full_isl`) admission needs room for the whole request, even for one
chunk; releases before 0.23 need room for the chunk alone. The manager has no check at arrival,
since vLLM sizes the pool for the longest request at start-up: a request that can never fit is
refused with `no_space`.

Blocks outside a window are freed when a step is done (`remove_skipped_blocks`); the engine frees
them when the request is scheduled next. Steps of recurrent models end by the engine's own
`Scheduler._mamba_block_aligned_split` (`mamba_cache_mode="align"`); the worker puts the state after
a step in the block of its last token.

Engine environment only; the engine is imported when a target is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import cache
from typing import Any

from kvproof.harness.adapters.engine_target import EngineTarget, Live, Step, Tables
from kvproof.harness.adapters.refusals import check_kernel_size, problem
from kvproof.harness.adapters.vllm.api import (
    check_drift,
    differences,
    engine,
    hash_block_size,
    hasher,
    media_identifier,
    release,
    request_needs,
)
from kvproof.harness.adapters.vllm.cycle import make_cycle
from kvproof.harness.adapters.vllm.manager import Manager, group_of
from kvproof.harness.adapters.vllm.profile import NO_KERNEL_BLOCKS, profile
from kvproof.harness.adapters.vllm.states import States
from kvproof.harness.contract.target import (
    Completed,
    Evicted,
    Inspection,
    Namespace,
    Refused,
    Released,
    Request,
    Retained,
    Scheduled,
    Table,
    Target,
    TargetConfig,
    Usage,
)

__all__ = ["VllmTarget", "differences", "make_cycle", "make_target"]

LOOP = "kvproof.harness.adapters.vllm.loop"


class VllmTarget(EngineTarget):
    """One `KVCacheManager` and the requests that its scheduler would hold."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__(profile())
        self._config = config
        self._grain = hash_block_size(config)
        self._hasher = hasher(self._grain, "sha256")
        self._manager = Manager(config, self._grain)
        self._states = States(config)
        self._adapters: dict[tuple[str, str | None], int] = {}
        self._prompts: dict[str, int] = {}
        """Lengths of the prompts that begin with embeddings: all later tokens were decoded."""
        self._hashes: list[Any] = [None] * config.num_blocks
        """Hash of each block at its last inspection."""

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """As the waiting loop of the scheduler."""
        if invalid := self._problem(request):
            return Refused("invalid", detail=invalid)
        native, manager = self._native(request), self._manager
        manager.begin_step()
        found = manager.match(native)
        native.shared_prefix_boundary = found.junction
        left = native.num_tokens - found.hit
        count = self._states.clipped(native, found.hit, left, compute)
        if count < 1:
            return Refused("invalid", detail="no token is to be computed")
        if not manager.admit(native, count, found):
            return self._no_space(native, native.num_tokens, found.blocks.blocks)
        manager.count(native, found.hit)
        native.num_computed_tokens = found.hit
        native.status = engine().RequestStatus.RUNNING
        self._running[request.id] = native
        return self._scheduled(native, found.hit, count)

    def _problem(self, request: Request) -> str:
        """The problem for which vLLM's API or input processor refuses a request, else empty."""
        if invalid := problem(request, self._running):
            return invalid
        if request.namespace.salt == "":
            return "cache_salt must not be empty"
        if request.namespace.adapter is None and request.namespace.adapter_version is not None:
            return "an adapter version without an adapter"
        return ""

    def _native(self, request: Request) -> Any:
        names = engine()
        prompt = len(request.tokens)
        if request.embedded:
            prompt = self._prompts.setdefault(request.id, prompt)
        native = names.Request(
            request.id,
            list(request.tokens[:prompt]),
            _sampling(not request.read),
            None,
            **_embeddings(request, prompt),
            mm_features=_features(request),
            lora_request=self._adapter(request.namespace),
            cache_salt=request.namespace.salt,
            block_hasher=self._hasher,
            **request_needs(),
        )
        if prompt < len(request.tokens):
            native.append_output_token_ids(list(request.tokens[prompt:]))
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

    def _no_space(self, native: Any, stop: int, hits: Iterable[Iterable[Any]] = ()) -> Refused:
        """Numbers of a refusal; blocks that windows and states free on the way are not counted."""
        held = {block for table in self._manager.tables(native) for block in table if block}
        found = [block for group in hits for block in group if not block.is_null]
        whole = sum(-(-stop // group.block_size) for group in self._config.layout)
        needed = whole - len(held) - len(found) + sum(block.ref_cnt == 0 for block in found)
        pool = self._manager.pool
        available = pool.get_num_free_blocks()
        detail = f"{needed} blocks needed, {available} of {pool.num_gpu_blocks - 1} free"
        return Refused("no_space", needed, available, detail)

    def _scheduled(self, native: Any, hit: int, count: int) -> Scheduled:
        start = native.num_computed_tokens
        copies, endpoints = self._manager.copies()
        native.num_computed_tokens += count
        self._in_flight(native, count)
        step = self._numbered(native.request_id, native, (count, endpoints))
        tables, stop = self._manager.tables(native), start + count
        moved = tuple((0, copy.src_block_id, copy.dst_block_id) for copy in copies)
        states = self._states.uses(tables, start, stop)
        return Scheduled(step, hit, start, stop, tables, tables, moved, states)

    def _in_flight(self, native: Any, count: int) -> None:
        """Tokens of steps in flight, where the engine counts them."""
        if hasattr(native, "num_in_flight_tokens"):
            native.num_in_flight_tokens += count

    def _extend(
        self, live: Live, tokens: tuple[int, ...], compute: int | None
    ) -> Scheduled | Refused:
        """As the running loop."""
        native = live.native
        known, start = native.num_tokens, native.num_computed_tokens
        native.append_output_token_ids(list(tokens))
        count = self._states.clipped(native, 0, native.num_tokens - start, compute)
        self._manager.begin_step()
        if count > 0 and self._manager.extend(native, count):
            return self._scheduled(native, 0, count)
        self._truncate(native, known)
        if count <= 0:
            return Refused("invalid", detail="no token is left to compute")
        return self._no_space(native, start + count)

    def _truncate(self, native: Any, length: int) -> None:
        surplus = native.num_tokens - length
        if surplus:
            del native._output_token_ids[-surplus:]
            del native._all_token_ids[-surplus:]
            del native.block_hashes[length // self._grain :]

    def complete(
        self, step: int, accepted: int | None = None, experts: tuple[int, ...] = ()
    ) -> Completed:
        """Complete a step, and release the endpoints of its copies."""
        done = self._steps[step]
        count, endpoints = done.details
        self._in_flight(done.native, -count)
        self._manager.pool.free_blocks(endpoints)
        return super().complete(step, accepted, experts)

    def _complete(self, done: Step) -> tuple[Tables, Tables]:
        """As `update_from_output`."""
        self._manager.return_skipped(done.native)
        tables = self._manager.tables(done.native)
        return tables, tables

    def _finish(self, live: Live) -> Tables:
        """Free the blocks, last one first; a preempted request starts from zero computed tokens."""
        tables = self._manager.tables(live.native)
        self._manager.free(live.native)
        return tables

    def evict(self, count: int) -> Evicted:
        """Cached-only blocks in the order of the free queue."""
        victims = [block for block in self._manager.idle() if block.block_hash is not None][:count]
        taken: list[list[int]] = [[] for _ in self._config.layout]
        for block in victims:
            taken[group_of(block.block_hash)].append(block.block_id)
        self._manager.evict(block.block_id for block in victims)
        return Evicted(tuple(map(tuple, taken)))

    def reset(self) -> Released | Refused:
        """Refused while any request holds blocks; cumulative counters go on as in vLLM."""
        if not self._manager.reset():
            return Refused("busy", detail=f"{len(self._running)} requests hold blocks")
        self._hashes = [None] * len(self._hashes)
        return Released()

    def lookup(self, request: Request) -> int:
        """Hit length of a request that is not admitted."""
        return self._manager.peek(self._native(request)) if request.tokens else 0

    def inspect(self) -> Inspection:
        """Free blocks by the pool's counter, held ones by references, cached ones by the queue."""
        blocks, queue = self._manager.pool.blocks, self._manager.idle()
        total = len(blocks) - 1
        cached = sum(block.block_hash is not None for block in queue)
        held = {b.block_id: b.ref_cnt for b in blocks if b.ref_cnt > 0 and not b.is_null}
        statistics = self._manager.statistics()
        state = self._digest([block.block_id for block in queue], held, statistics)
        free = self._manager.pool.get_num_free_blocks() - cached
        usage = Usage(total, free, len(held), cached)
        dropped, retained = self._dropped(blocks), self._retained()
        return Inspection(usage, state, held, statistics, dropped=dropped, retained=retained)

    def _retained(self) -> Retained | None:
        """None with unequal blocks: a block of full attention then has further keys."""
        groups = self._config.layout
        if any(group.block_size != self._grain for group in groups):
            return None
        full = next((index for index, group in enumerate(groups) if group.kind == "full"), -1)
        return self._manager.retained(full, self._grain)

    def _dropped(self, blocks: list[Any]) -> tuple[Table, ...]:
        lost: list[list[int]] = [[] for _ in self._config.layout]
        for block, before in zip(blocks, self._hashes, strict=True):
            if before is not None and block.block_hash != before:
                lost[group_of(before)].append(block.block_id)
        self._hashes = [block.block_hash for block in blocks]
        return tuple(map(tuple, lost))

    def _digest(self, queue: list[int], held: dict[int, int], statistics: object) -> str:
        state = (
            queue,
            held,
            self._manager.index(),
            [(block.block_id, block.block_hash) for block in self._manager.pool.blocks],
            sorted((name, self._manager.tables(one)) for name, one in self._running.items()),
            sorted(self._steps),
            statistics,
        )
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]


@cache
def _sampling(skip_reading: bool) -> Any:  # noqa: FBT001 - a key of the cache, never seen by callers
    skip = {"skip_reading_prefix_cache": skip_reading} if release().no_read else {}
    return engine().SamplingParams(max_tokens=1 << 20, **skip)


def _embeddings(request: Request, prompt: int) -> dict[str, Any]:
    """As a prompt of rows of embeddings, then of ids, whose rows are zero."""
    if not request.embedded:
        return {}
    rows = engine().zeros(prompt, 1)
    rows[: request.embedded, 0] = engine().tensor(request.tokens[: request.embedded]) + 1
    return {
        "prompt_embeds": rows,
        "prompt_is_token_ids": [at >= request.embedded for at in range(prompt)],
    }


def _features(request: Request) -> list[Any] | None:
    names = engine()
    return [
        names.MultiModalFeatureSpec(
            data=None,
            modality=span.kind,
            identifier=media_identifier(span.kind, span.content),
            mm_position=names.PlaceholderRange(span.start, span.length),
        )
        for span in sorted(request.spans, key=lambda span: span.start)
    ]


def make_target(config: TargetConfig) -> Target:
    """A fresh manager. Raises RuntimeError with the differences if the engine has drifted."""
    check_drift()
    check_kernel_size(config, NO_KERNEL_BLOCKS)
    return VllmTarget(config)
