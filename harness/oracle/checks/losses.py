"""Checks of what loses its place in the cache: blocks, checkpoints, frozen copies (B2, S7)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Inspection, Refused, Scheduled, Table
from kvproof.harness.oracle.contents import Entry
from kvproof.harness.oracle.state import NULL_BLOCK, OracleState
from kvproof.harness.oracle.violation import INVARIANT, fail

_KEEP = "blocks_keep_their_identity_while_there_is_room"
_MISMATCH = "a_mismatch_destroys_no_checkpoint"
_NULL = "null_block_is_never_used"
_PARENTS = "no_block_outlives_its_parent"


class Lost(NamedTuple):
    """What one operation took out of the cache."""

    blocks: Mapping[int, Entry]
    """Blocks of the shared pool."""
    rows: list[Entry]
    """Checkpoints of the separate pool."""
    alone: list[Entry]
    """Those of them that did not go with their unit, nor for a newer one of their request."""


class LossChecks:
    """Takes evicted blocks and checkpoints out of the model, and demands a reason for each."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = state.layout
        self._counts = state.checks
        self._pool = state.model.pool
        self._shares = state.profile.duplicates == "shared"

    def run(self, before: Inspection, found: Inspection, held: Mapping[int, int]) -> Lost:
        """Remove blocks evicted since `before`, reported or inferred, from the model (B2, S7)."""
        dropped, gone = found.dropped, dict[int, Entry]()
        rows, alone = list[Entry](), list[Entry]()
        state, changes = self._state, self._state.changes
        if dropped is not None:
            self._counts[_MISMATCH] += bool(self._layout.states)
            self._no_null_block(dropped)
            pool = self._remove_blocks(dropped, self._still_allocated(held))
            rows = changes.overwritten
            if self._layout.separate:
                rows = rows + self._remove_rows(dropped)
            self._stays_held(pool, held)
            if gone := {**pool, **changes.victims}:
                self._was_needed(before, gone, len(changes.allocated))
            if state.partial and self._layout.separate:
                self._frozen_as_one(gone, rows)
            if rows and (self._layout.full or not (pool or changes.victims)):
                alone = self._checkpoint_was_needed(before, rows, gone)
            if self._shares and self._layout.states:
                state.model.keep_first_checkpoints()
        elif not self._layout.single:
            gone = dict(changes.victims)
            while state.profile.index == "tree" and (orphan := state.model.orphan()) is not None:
                state.model.drop(orphan)
        if changes.duplicates_freed:
            self._keep_duplicates()
        return Lost(gone, rows, alone)

    def _no_null_block(self, dropped: tuple[Table, ...]) -> None:
        self._counts[_NULL] += 1
        if any(NULL_BLOCK in ids for ids in dropped):
            sentence = f"the blocks {dropped} are reported as evicted, the null block among them"
            fail(self._state, _NULL, INVARIANT, sentence)

    def _keep_duplicates(self) -> None:
        model = self._state.model
        for block, prints, index, group in self._state.changes.duplicates_freed:
            if block != NULL_BLOCK and not model.in_pool(prints, index, group):
                model.store(block, prints, index, group)

    def _remove_blocks(
        self, dropped: tuple[Table, ...], allocated: Collection[int]
    ) -> dict[int, Entry]:
        """Remove blocks of the shared pool; those handed out since are removed already."""
        ids = [b for g in self._layout.pooled if g < len(dropped) for b in dropped[g]]
        return self._state.model.drop_all(block for block in ids if block not in allocated)

    def _still_allocated(self, held: Collection[int]) -> Collection[int]:
        """Return the blocks that were allocated and, if windows are freed, are in use.

        With freed windows, one operation may allocate, write and free a block.
        """
        allocated = self._state.changes.allocated
        freed = self._state.profile.behind_windows == "freed"
        return allocated & set(held) if freed else allocated

    def _remove_rows(self, dropped: tuple[Table, ...]) -> list[Entry]:
        layout, state = self._layout, self._state
        keys = [
            key
            for g in layout.states
            if g < len(dropped)
            for key in state.recurrent.keys(g, dropped[g])
        ]
        return [entry for key in keys if (entry := state.model.drop_row(key))]

    def _stays_held(self, pool: dict[int, Entry], held: Mapping[int, int]) -> None:
        lost = next((b for b in pool if b in held and pool[b].group in self._layout.attention), 0)
        self._state.checks[_KEEP] += 1
        if lost:
            sentence = f"block {lost} is held and lost its identity"
            fail(self._state, _KEEP, INVARIANT, sentence, suspects=(lost,))

    def _was_needed(self, before: Inspection, pool: dict[int, Entry], taken: int) -> None:
        """A unit is evicted only if too few blocks were free without it.

        Where no order is declared, cached blocks may go before uncached ones (B3).
        """
        state = self._state
        order = state.profile.eviction_order
        if order == "undeclared" or isinstance(state.history[-1][0], ops.Evict):
            return
        if order == "lru_by_use":
            self._some_were_needed(before, pool, taken)
            return
        attention = [b for b, entry in pool.items() if entry.group in self._layout.attention]
        if not attention and self._replaced(list(pool.values())):
            return
        prop = _KEEP if attention else _MISMATCH
        enough = before.usage.free + len(pool) - self._largest(pool)
        state.checks[prop] += 1
        if taken <= enough:
            fail(
                state,
                prop,
                INVARIANT,
                f"blocks {sorted(pool)} lost their identity for {taken} blocks while "
                f"{before.usage.free} blocks without identity were free",
                suspects=tuple(sorted(pool)),
                facts={"dropped": tuple(sorted(pool)), "taken": taken, "free": before.usage.free},
            )

    def _largest(self, pool: Mapping[int, Entry]) -> int:
        """Return the most blocks of those that went that the step may not have needed.

        That is what went as one, and last: a checkpoint of another unit goes apart from the units,
        and neither is a reason for the other. A checkpoint that is replaced goes after its heir.
        """
        layout = self._layout
        units = {entry.content for entry in pool.values() if entry.group in layout.full}
        lone = [e for e in pool.values() if e.group in layout.states and e.anchor not in units]
        apart = [e for e in lone if e.content not in self._state.replaceable]
        if not (units and apart):
            return layout.unit_blocks
        rest = min(layout.unit_blocks, max(layout.state_blocks, len(pool) - len(lone)))
        return rest + len(lone) - len(apart)

    def _some_were_needed(self, before: Inspection, pool: dict[int, Entry], taken: int) -> None:
        """Where whole leaves go by their last use: they go for a step that lacks blocks.

        It may ask for more than it takes: SGLang asks for the tokens of a step and a page, also
        where they go into a page that is there. What a refusal evicts is judged with it (B4).
        """
        state, known = self._state, self._pool.by_content
        cached = [
            block
            for block, entry in pool.items()
            if entry.group in self._layout.full and entry.idle_since is not None
            if not (entry.tail or entry.content in known)
        ]
        answer, one = state.history[-1][1], state.profile.pools == "shared" or self._layout.single
        if not cached or isinstance(answer, Refused) or state.config.host_blocks:
            return
        state.checks[_KEEP] += 1
        if isinstance(answer, Scheduled) and (not one or taken + 1 >= before.usage.free):
            return
        fail(
            state,
            _KEEP,
            INVARIANT,
            f"blocks {sorted(cached)} lost their identity in an operation that took {taken} blocks "
            f"while {before.usage.free} were free",
            suspects=tuple(sorted(cached)),
            facts={"dropped": tuple(sorted(cached)), "taken": taken, "free": before.usage.free},
        )

    def _frozen_as_one(self, gone: Mapping[int, Entry], rows: list[Entry]) -> None:
        """A checkpoint inside a block goes with the frozen copy of the block, and it with it."""
        state, known = self._state, self._pool.by_content
        copies = {entry.content for entry in gone.values() if entry.tail} - known.keys()
        left = [key for key, entry in state.model.rows.items() if entry.anchor in copies]
        there = {entry.anchor for entry in state.model.rows.values()}
        kept = [
            block
            for entry in rows
            for block in (known.get(entry.anchor, ()) if entry.anchor not in there else ())
            if state.model.cached[block].tail
        ]
        self._counts[_PARENTS] += 1
        if left or kept:
            fail(
                state,
                _PARENTS,
                INVARIANT,
                f"checkpoints in slots {left} stay without the frozen copies that they go on from"
                if left
                else f"frozen copies in blocks {kept} stay without their checkpoints",
                suspects=tuple(kept),
            )

    def _checkpoint_was_needed(
        self, before: Inspection, rows: list[Entry], gone: Mapping[int, Entry]
    ) -> list[Entry]:
        """A checkpoint of the separate pool is evicted with its unit, or when no row is free.

        One inside a block is evicted for blocks as well, with the frozen copy of its block: the two
        are one, and neither is a reason for the other. Rows of units evicted by the same operation
        may have become free only after it. Evictions of a refused call are checked apart (B4).
        """
        state = self._state
        frozen = {entry.content: entry.parent for entry in gone.values() if entry.tail}
        units = {entry.content for entry in gone.values() if not entry.tail}
        kept = [e for e in rows if self._unit_stays(frozen.get(e.anchor, e.anchor), units)]
        superseded = state.changes.superseded
        apart = [e for e in kept if frozen.get(e.anchor, e.anchor) not in superseded]
        alone = [e for e in apart if e.content not in state.replaceable]
        operation, answer = state.history[-1]
        if not alone or isinstance(operation, ops.Evict) or isinstance(answer, Refused):
            return []
        short = max(0, len(state.changes.allocated) - before.usage.free)
        for_blocks = min(short, sum(entry.anchor in frozen for entry in alone))
        replaced = len(apart) - len(alone)
        free = state.free_rows() - (len(rows) - len(kept)) - replaced - for_blocks
        state.checks[_MISMATCH] += 1
        if free >= 1 and len(alone) > for_blocks:
            sentence = f"{len(alone)} checkpoints were dropped while {free} rows were free" + (
                f", {for_blocks} of them for blocks" if for_blocks else ""
            )
            facts = {"dropped": len(alone), "rows": len(rows), "free_rows": free}
            fail(state, _MISMATCH, INVARIANT, sentence, facts=facts)
        return alone

    def _unit_stays(self, unit: int, gone: Collection[int]) -> bool:
        return unit not in gone and (not unit or unit in self._pool.by_content)

    def _replaced(self, entries: list[Entry]) -> bool:
        """Whether a newer checkpoint of their request replaces all of these (S6)."""
        return all(entry.content in self._state.replaceable for entry in entries)
