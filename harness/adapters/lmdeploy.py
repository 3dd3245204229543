"""LMDeploy 0.17 and 0.18: scheduler, block manager and block trie of the PyTorch engine.

A request is a session with one sequence. Its first step is chosen by `Scheduler.schedule`, with a
budget of as many tokens as the step may compute; every later one, decoded tokens too, reserves
blocks by `reserve_long_context_chunk`, which refuses without taking blocks from anybody. When a
step has run the sequence stands behind it (`set_step`), as the engine's chunker does.

Tables are those of the worker: `get_block_tables`, padded and expanded to kernel blocks by the
input maker's own functions.

Imported in the engine's environment; the engine itself is imported when a target is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from typing import Any

from kvproof.harness.adapters.lmdeploy_api import (
    UNLIMITED,
    check_drift,
    engine,
    expander,
    new_scheduler,
    version,
)
from kvproof.harness.adapters.refusals import off
from kvproof.harness.errors import UnsupportedVerb
from kvproof.harness.target import (
    Batch,
    Completed,
    Evicted,
    Inspection,
    Profile,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    Table,
    Target,
    TargetConfig,
    Usage,
)

__all__ = ["LmdeployTarget", "make_target"]

_UNSUPPORTED = {
    "salts": "requests have no salt: the trie knows adapters only",
    "no_read": "requests are kept from reading only through log-probabilities, from a position on",
    "no_store": "no request is kept from storing",
    "lookup": "match takes blocks for its request: nothing asks without a trace",
    "pins": "no verb holds a cached prefix without a request",
    "statistics": "requests that come back after an eviction are left out, not counted apart",
    "events": "the trie sends no events",
    "duplicates": "what a hit that would end inside a span loses is computed into private blocks",
    "eviction_order": "the access time of a block is kept in whole seconds, ties go by address",
    "validates": "placeholder ranges come checked from the preprocessor",
    "in_flight_steps": "one stream orders steps and reuse of blocks",
    "drafts": "rejected drafts are cut off by the sequence strategy of another engine mode",
    "experts": "rows come with the outputs of a model",
    "require_experts": "rows come with the outputs of a model",
    "groups": "layers of a model share one table; windows turn prefix caching off",
    "several_groups": "layers of a model share one table",
    "windows": "sliding windows turn prefix caching off",
    "states": "checkpoints of states are copied by a model's forward pass",
    "draft_groups": "a draft model takes the block size of the model it drafts for",
    "partial_blocks": "nodes of the trie are full blocks",
    "encode": "the preprocessor encodes before a request is scheduled",
}


@cache
def _profile() -> Profile:
    return Profile(
        engine="lmdeploy",
        version=version(),
        block_sizes=(1, 2, 4, 16, 32, 64),
        max_kernel_ratio=4,
        salts=False,
        spans=True,
        span_clamp=True,
        batch=True,
        holders=True,
        state=True,
        reset="idle",
        sharing="when_scheduled",
        duplicates="kept",
        eviction_order="undeclared",
        unsupported=_UNSUPPORTED,
    )


class LmdeployTarget:
    """One scheduler and the sequences that run."""

    def __init__(self, config: TargetConfig) -> None:
        self.profile = _profile()
        self._size = config.block_size
        self._expand = expander(config)
        self._ratio = config.block_size // config.kernel_size
        self._scheduler = new_scheduler(config)
        self._manager = self._scheduler.block_manager
        self._trie = self._scheduler.block_trie
        self._running: dict[str, Any] = {}
        self._steps: dict[int, tuple[str, Any, int]] = {}
        self._last_step = self._last_session = 0
        self._known: set[int] = set()
        """Blocks that were in the trie at the last inspection."""
        self._private: set[int] = set()
        """Blocks freed since then of which the trie has another copy."""

    # --- steps ---

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """One turn of the prefill scheduler with nobody else waiting."""
        if problem := self._problem(request):
            return problem
        self._last_session += 1
        native = self._scheduler.add_session(self._last_session).add_sequence(
            engine().np.array(request.tokens, dtype=engine().np.int64),
            adapter_name=_adapter(request),
            multimodals=_media(request),
        )
        self._scheduler.cache_config.max_prefill_token_num = (
            UNLIMITED if compute is None else compute
        )
        chosen = self._scheduler.schedule(is_prefill=True).running
        self._scheduler.cache_config.max_prefill_token_num = UNLIMITED
        if not chosen:
            self._scheduler.end_session(native.session_id)
            return self._no_space(len(request.tokens))
        self._scheduler.activate_seqs(chosen)
        self._running[request.id] = native
        hit = int(native.num_history_ids)
        return self._scheduled(request.id, native, hit)

    def _problem(self, request: Request) -> Refused | None:
        """What the engine refuses before its scheduler sees a request."""
        needed, total = -(-len(request.tokens) // self._size), self._manager.num_gpu_blocks - 1
        if not request.tokens:
            return Refused("invalid", detail="the prompt is empty")
        if request.id in self._running:
            return Refused("invalid", detail=f"request {request.id!r} is running already")
        if needed > total:
            return Refused("never_fits", needed, total, f"{needed} blocks, the pool has {total}")
        return None

    def _no_space(self, tokens: int) -> Refused:
        needed, free = -(-tokens // self._size), int(self._manager.get_num_free_gpu_blocks())
        return Refused("no_space", needed, free, f"{needed} blocks in all, {free} free")

    def _scheduled(self, name: str, native: Any, hit: int) -> Scheduled:
        start = int(native.num_history_ids)
        limit = native.kv_token_limit
        stop = int(native.num_all_ids if limit is None else limit)
        self._last_step += 1
        self._steps[self._last_step] = (name, native, stop)
        return Scheduled(
            self._last_step, hit, start, stop, (self._blocks(native),), (self._pages(native),)
        )

    def _blocks(self, native: Any) -> Table:
        return tuple(self._scheduler.get_block_tables([native])[0].tolist())

    def _pages(self, native: Any) -> Table:
        """The row of a batch of one."""
        return tuple(self._padded([native])[0])

    def _padded(self, rows: list[Any]) -> list[list[int]]:
        padded = engine().pad_tables(self._scheduler.get_block_tables(rows))
        return [list(row) for row in self._expand(padded).tolist()]

    def extend(
        self,
        request_id: str,
        tokens: tuple[int, ...] = (),
        compute: int | None = None,
        drafts: tuple[int, ...] = (),
    ) -> Scheduled | Refused:
        """The next chunk, or decoded tokens; a refusal takes the new tokens back."""
        if drafts:
            raise UnsupportedVerb("extend with drafts", _UNSUPPORTED["drafts"])
        native = self._running.get(request_id)
        if native is None:
            return Refused("invalid", detail=f"no running request {request_id!r}")
        start, known = int(native.num_history_ids), int(native.num_all_ids)
        if known + len(tokens) == start:
            return Refused("invalid", detail="no token is left to compute")
        self._append(native, tokens)
        size, last = self._chunk(native, compute)
        if self._scheduler.reserve_long_context_chunk(native, size, is_last_chunk=last):
            return self._scheduled(request_id, native, 0)
        native.history_cache.resize(known)
        native._num_token_ids = known - start
        return self._no_space(start + size)

    def _append(self, native: Any, tokens: Table) -> None:
        """More input of a running sequence: what it has not computed yet stays to be computed."""
        if tokens:
            np = engine().np
            native.update_token_ids(
                np.array(tokens, dtype=np.int64), mode=engine().UpdateTokenMode.INPUTS
            )

    def _chunk(self, native: Any, compute: int | None) -> tuple[int, bool]:
        """(tokens of the next chunk, whether it is the last) by the engine's own planner."""
        names = engine()
        limit = names.get_long_context_chunk_limit(
            native, UNLIMITED if compute is None else compute
        )
        plan = names.plan_long_context_chunk(native, limit, include_multimodals=False)
        last = plan.chunk_start + plan.chunk_size == native.num_all_ids
        return plan.chunk_size, last

    def complete(
        self, step: int, accepted: int | None = None, experts: tuple[int, ...] = ()
    ) -> Completed:
        """The sequence stands behind what the step computed."""
        if accepted is not None or experts:
            raise UnsupportedVerb("complete with drafts", _UNSUPPORTED["drafts"])
        name, native, stop = self._steps.pop(step)
        if name not in self._running or self._running[name] is not native:
            return Completed(step)
        native.set_step(stop)
        return Completed(step, (self._blocks(native),), (self._pages(native),))

    # --- the end of a request ---

    def finish(self, request_id: str) -> Released:
        """The session ends; the trie keeps what it has."""
        native = self._running.pop(request_id, None)
        if native is None:
            return Released()
        table = self._blocks(native)
        copies = native.prefix_cache.recompute_overlap.trie_block_map
        self._private.update(table[index] for index in copies)
        self._scheduler.end_session(native.session_id)
        return Released((table,))

    cancel = finish
    """A cancelled session ends in the same way."""

    preempt = finish
    """A victim of an eviction gives its blocks back and starts again from its first token."""

    pin = off("pin", _UNSUPPORTED["pins"])
    unpin = off("unpin", _UNSUPPORTED["pins"])
    experts = off("experts", _UNSUPPORTED["experts"])
    lookup = off("lookup", _UNSUPPORTED["lookup"])

    def batch(self, request_ids: tuple[str, ...]) -> Batch:
        """Padded and expanded as for a forward pass."""
        rows = self._padded([self._running[name] for name in request_ids])
        return Batch((tuple(tuple(row) for row in rows),))

    def evict(self, count: int) -> Evicted:
        """Leaves that only the trie holds."""
        before = {int(self._physical(node.block_id)) for node in self._nodes()}
        self._trie.evict(count)
        after = {int(self._physical(node.block_id)) for node in self._nodes()}
        return Evicted((tuple(sorted(before - after)),))

    def reset(self) -> Released | Refused:
        """LMDeploy has no such verb: everything is evicted, which needs an idle engine."""
        if self._running:
            return Refused("busy", detail=f"{len(self._running)} requests are running")
        self._trie.evict(self._manager.num_gpu_blocks)
        self._known.clear()
        self._private.clear()
        return Released()

    # --- what is there ---

    def _nodes(self) -> Iterator[Any]:
        """Nodes below the roots of all adapters."""
        stack = [child for root in self._trie._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            yield node

    def _physical(self, block: int) -> int:
        return int(self._manager.allocator.get_physical_blocks(engine().np.array([block]))[0])

    def _references(self) -> dict[int, int]:
        """Physical block -> references of sequences, without the trie's own."""
        np, allocator = engine().np, self._manager.allocator
        rows = [req.logical_blocks.get_real_blocks() for req in self._running.values()]
        cached = [node.block_id for node in self._nodes()]
        ids = np.unique(np.concatenate([np.array(cached, dtype=np.int64), *rows]).astype(np.int64))
        counts = dict(zip(ids.tolist(), allocator.get_ref_count(ids).tolist(), strict=True))
        for block in cached:
            counts[block] -= 1
        return {self._physical(block): count for block, count in counts.items()}

    def inspect(self) -> Inspection:
        """Counts from the reference counts and from the list of free blocks."""
        total, holders = self._manager.num_gpu_blocks - 1, self._references()
        held = {block: count for block, count in holders.items() if count}
        now = {self._physical(node.block_id) for node in self._nodes()}
        gone, self._known = (self._known | self._private) - now, now
        self._private.clear()
        usage = Usage(
            total,
            int(self._manager.get_num_free_gpu_blocks()),
            len(held),
            len(now - held.keys()),
        )
        return Inspection(usage, self._digest(held), held, dropped=(tuple(sorted(gone)),))

    def _digest(self, held: dict[int, int]) -> str:
        """Nodes, references, free blocks in order, tables; recency is refreshed by a match."""
        allocator = self._manager.allocator
        free = allocator.get_phy_allocator("gpu")
        state = (
            sorted((node.prefix_len, self._physical(node.block_id)) for node in self._nodes()),
            sorted(held.items()),
            free._free_blocks[free._num_blocks - free._free_count :].tolist(),
            sorted((name, self._blocks(req)) for name, req in self._running.items()),
            (self._trie.stats.num_query_tokens, self._trie.stats.num_hit_tokens),
        )
        return hashlib.sha256(repr(state).encode()).hexdigest()[:16]

    def close(self) -> None:
        """Nothing is held outside the process's memory."""


def _adapter(request: Request) -> str | None:
    """Adapters are loaded by name when the engine starts: a version is part of the name."""
    space = request.namespace
    return None if space.adapter is None else repr((space.adapter, space.adapter_version))


def _media(request: Request) -> dict[str, list[Any]] | None:
    items: dict[str, list[Any]] = {}
    for span in request.spans:
        items.setdefault(span.kind, []).append(_item(span))
    return items or None


def _item(span: Span) -> Any:
    names = engine()
    return names.MultiModalData(
        data=names.torch.empty(0),
        start=span.start,
        end=span.start + span.length,
        modality=span.kind,
        content_hash=span.content,
    )


def make_target(config: TargetConfig) -> Target:
    """A fresh scheduler. Raises RuntimeError with the differences if the engine has drifted."""
    check_drift()
    if config.groups:
        raise ValueError(f"{len(config.groups)} groups: {_UNSUPPORTED['groups']}")
    return LmdeployTarget(config)
