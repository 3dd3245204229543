"""LMDeploy 0.13 to 0.18: scheduler, block manager and block trie of the PyTorch engine.

A request is a session with one sequence. `Scheduler.schedule` chooses its first step, with the
step's tokens as budget; every later step, decoding too, reserves blocks by
`reserve_long_context_chunk`, which refuses and never evicts. After a step the sequence is advanced
(`set_step`), as by the engine's chunker. Until 0.14 the chunks of a prompt run back to back: they
are one step.

More than one token for a request with a partly filled last block is the next turn of its session:
it stops, gets more input and is scheduled like a new one, as in `Engine._add_message`.

Recurrent states (from 0.14): rows are pinned, reserved, published and unpinned in the order of the
engine's loop. From 0.16 on half of the configurations save a state at the end of every prompt step,
inside a block with a frozen copy of it; a request with expert rows never hits such a checkpoint, so
no request wants expert rows there. In the other configurations every request does: steps end at
block borders where they can, and only those states are saved.

Tables are the worker's: `get_block_tables`, padded and expanded to kernel blocks by the input
maker's own functions.

Engine environment only; the engine is imported when a target is made.
"""

from __future__ import annotations

from typing import Any

from kvproof.harness.adapters.engine_target import EngineTarget, Live, Step, Tables
from kvproof.harness.adapters.lmdeploy.api import (
    UNLIMITED,
    check_drift,
    differences,
    engine,
    expander,
    new_scheduler,
    tick,
)
from kvproof.harness.adapters.lmdeploy.cycle import make_cycle
from kvproof.harness.adapters.lmdeploy.profile import profile
from kvproof.harness.adapters.lmdeploy.releases import (
    Checkpoints,
    chunk,
    path,
    reserve,
    stop_of,
)
from kvproof.harness.adapters.lmdeploy.requests import add_sequence, record, recorded
from kvproof.harness.adapters.lmdeploy.states import States
from kvproof.harness.adapters.lmdeploy.view import View
from kvproof.harness.adapters.refusals import refused_at_arrival
from kvproof.harness.contract.target import (
    Batch,
    Evicted,
    Inspection,
    Refused,
    Released,
    Request,
    Scheduled,
    Table,
    Target,
    TargetConfig,
)

__all__ = ["LmdeployTarget", "differences", "make_cycle", "make_target"]


class LmdeployTarget(EngineTarget):
    """One scheduler and the sequences that run."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__(profile())
        self._size, self._experts = config.block_size, not config.partial_blocks
        self._expand = expander(config)
        self._scheduler = new_scheduler(config)
        self._manager = self._scheduler.block_manager
        self._prompts: dict[str, int] = {}
        self._private: dict[str, set[int]] = {}
        """Blocks of running requests that the trie need not have: copies, and all of `_inside`."""
        self._inside: set[str] = set()
        """Running requests with a hit inside a block: the trie may lack their blocks."""
        self._last_session = 0
        checkpoints = Checkpoints(self._scheduler) if config.state_rows else None
        self._view = View(self._scheduler, self._running, checkpoints)
        self._states = States(checkpoints, self._view, config)

    # --- steps ---

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """Schedule the request alone by one turn of the prefill scheduler."""
        tick()
        total = self._manager.num_gpu_blocks - 1
        if refused := refused_at_arrival(
            request, self._running, size=self._size, total=total, unit="blocks"
        ):
            return refused
        self._last_session += 1
        native = add_sequence(self._scheduler, self._last_session, request, experts=self._experts)
        if not self._turn(native, self._states.budget(0, len(request.tokens), compute)):
            self._scheduler.end_session(native.session_id)
            return self._no_space(len(request.tokens))
        self._running[request.id] = native
        self._prompts[request.id] = len(request.tokens)
        self._states.admitted(native)
        return self._scheduled(request.id, native, int(native.num_history_ids))

    def _turn(self, native: Any, budget: int | None) -> bool:
        """Schedule once with this token budget; whether the scheduler chose this request."""
        limits = self._scheduler.cache_config
        limits.max_prefill_token_num = UNLIMITED if budget is None else budget
        chosen = self._scheduler.schedule(is_prefill=True).running
        limits.max_prefill_token_num = UNLIMITED
        self._scheduler.activate_seqs(chosen)
        return native in chosen

    def _no_space(self, tokens: int) -> Refused:
        needed, free = -(-tokens // self._size), self._view.free()
        return Refused("no_space", needed, free, f"{needed} blocks in all, {free} free")

    def _scheduled(self, name: str, native: Any, hit: int) -> Scheduled:
        start, stop = int(native.num_history_ids), stop_of(native)
        step = self._numbered(name, native, stop)
        blocks, tables = self._tables(native)
        if hit % self._size:
            self._inside.add(name)
        self._private[name] = self._private_blocks(name, native, blocks[0])
        moves = self._states.moves(native, start, stop, self._prompts[name])
        return Scheduled(step, hit, start, stop, blocks, tables, *moves)

    def _private_blocks(self, name: str, native: Any, table: Table) -> set[int]:
        """Blocks that may have no place in the trie; a step may give some up for equal ones."""
        private = self._private.get(name, set())
        self._view.ended(private.difference(table))
        if name in self._inside:
            return set(table)
        return private.intersection(table) | self._view.copies(table, path(native))

    def _tables(self, native: Any) -> tuple[Tables, Tables]:
        rows = self._states.rows(native)
        return (self._view.table(native), *rows), (tuple(self._padded([native])[0]), *rows)

    def _padded(self, rows: list[Any]) -> list[list[int]]:
        padded = engine().pad_tables(self._scheduler.get_block_tables(rows))
        return [list(row) for row in self._expand(padded).tolist()]

    def _extend(
        self, live: Live, tokens: tuple[int, ...], compute: int | None
    ) -> Scheduled | Refused:
        """The next chunk, decoded tokens, or the next turn."""
        tick()
        name, native = live
        start, known = int(native.num_history_ids), int(native.num_all_ids)
        if known + len(tokens) == start:
            return Refused("invalid", detail="no token is left to compute")
        stopped = known == start and len(tokens) > 1 and start % self._size
        if stopped and not self._states:
            return self._next_turn(name, native, tokens, compute)
        self._append(native, tokens)
        size, last = chunk(native, self._bounded(name, start, known + len(tokens), compute))
        if reserve(self._scheduler, native, size, last=last):
            return self._scheduled(name, native, 0)
        self._take_back(native, known - start, known)
        return self._no_space(start + size)

    def _bounded(self, name: str, start: int, known: int, compute: int | None) -> int | None:
        if self._states and start >= self._prompts[name]:
            return self._states.decoded(start, known, compute)
        return self._states.budget(start, known, compute)

    def _append(self, native: Any, tokens: Table) -> None:
        """Append input to a running sequence; its tokens not yet computed stay pending."""
        if tokens:
            np = engine().np
            native.update_token_ids(
                np.array(tokens, dtype=np.int64), mode=engine().UpdateTokenMode.INPUTS
            )

    def _take_back(self, native: Any, pending: int, known: int) -> None:
        native.history_cache.resize(known)
        native._num_token_ids = pending

    def _next_turn(
        self, name: str, native: Any, tokens: Table, compute: int | None
    ) -> Scheduled | Refused:
        known = int(native.num_all_ids)
        native.state.finish()
        self._append(native, tokens)
        native.state.activate()
        counted = self._scheduler.block_trie.stats
        before = (counted.num_query_tokens, counted.num_hit_tokens)
        chosen = self._turn(native, compute)
        # a second turn asks and hits too, and the contract counts admissions alone
        counted.num_query_tokens, counted.num_hit_tokens = before
        if chosen:
            return self._scheduled(name, native, 0)
        if native.num_blocks == 0:  # it was rolled back to nothing
            del self._running[name], self._private[name]
            self._scheduler.end_session(native.session_id)
            return self._no_space(known + len(tokens))
        self._take_back(native, 0, known)
        native.state.activate()
        self._scheduler.activate_seqs([native])
        return self._no_space(known + len(tokens))

    def _complete(self, done: Step) -> tuple[Tables, Tables]:
        """Advance the sequence to the end of its step."""
        self._states.ran(done.native)
        done.native.set_step(done.details)
        if done.experts:
            record(self._scheduler.block_trie, done.native, done.experts)
        return self._tables(done.native)

    def experts(self, request_id: str) -> tuple[int | None, ...]:
        """Rows of the running sequence, those of blocks that it hit included."""
        return recorded(self._running[request_id])

    # --- the end of a request ---

    def _finish(self, live: Live) -> Tables:
        """End the session; the trie keeps its blocks. A victim of an eviction starts again."""
        tick()
        name, native = live
        blocks, _ = self._tables(native)
        self._view.ended(self._private.pop(name))
        self._inside.discard(name)
        self._scheduler.end_session(native.session_id)
        return blocks

    def batch(self, request_ids: tuple[str, ...]) -> Batch:
        """Padded and expanded as for a forward pass."""
        rows = self._padded([self._running[name] for name in request_ids])
        return Batch((tuple(tuple(row) for row in rows), *self._no_rows()))

    def _no_rows(self) -> tuple[tuple[()], ...]:
        return ((),) if self._states else ()

    def evict(self, count: int) -> Evicted:
        """Leaves that only the trie holds."""
        tick()
        before = self._view.cached()
        self._scheduler.block_trie.evict(count)
        return Evicted((tuple(sorted(before - self._view.cached())), *self._no_rows()))

    def reset(self) -> Released | Refused:
        """LMDeploy has no such verb: everything is evicted, which needs an idle engine."""
        if self._running:
            return Refused("busy", detail=f"{len(self._running)} requests are running")
        self._scheduler.block_trie.evict(self._manager.num_gpu_blocks)
        self._view.forget()
        return Released()

    def inspect(self) -> Inspection:
        """See `View`."""
        return self._view.inspect()


def make_target(config: TargetConfig) -> Target:
    """A fresh scheduler. Raises RuntimeError with the differences if the engine has drifted."""
    check_drift()
    kinds = tuple(group.kind for group in config.groups)
    if kinds and kinds not in profile().layouts:
        raise ValueError(f"groups {', '.join(kinds)}: layers of a model share one table")
    return LmdeployTarget(config)
