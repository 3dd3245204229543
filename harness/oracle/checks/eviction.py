"""What lost its identity: the target says so, and here it is judged whether it had to (B2, S7)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Inspection, Refused, Table
from kvproof.harness.oracle.cache_model import Entry
from kvproof.harness.oracle.request_state import NULL_BLOCK
from kvproof.harness.oracle.violation import INVARIANT

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session


class Drops:
    """Takes dropped blocks and checkpoints out of the ledger of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layout = session.layout

    def take(self, before: Inspection, dropped: tuple[Table, ...] | None) -> None:
        """Follow what was dropped since `before`; infer it where it is not reported."""
        session, layout = self._session, self._layout
        handed, victims = session.running.handed, session.running.victims
        if dropped is not None:
            held = session.holders()
            pool = self._pool(dropped, self._still_handed(held))
            rows = session.running.rewritten + self._rows(dropped)
            self._stays_held(pool, held)
            self._was_needed(before, {**pool, **victims}, len(handed))
            if layout.full or not (pool or victims):
                lost = {entry.content for entry in (*pool.values(), *victims.values())}
                self._checkpoint_was_needed(rows, lost)
            if session.profile.duplicates == "shared":
                session.ledger.keep_first_checkpoints()
        elif not layout.single and session.profile.index == "tree":
            while (orphan := session.ledger.orphan()) is not None:
                session.ledger.drop(orphan)
        self._keep_doubles()
        handed.clear()
        victims.clear()
        session.running.rewritten.clear()
        session.running.superseded.clear()

    def _keep_doubles(self) -> None:
        """Of equal blocks the second is cached if the first was evicted for it."""
        ledger, doubles = self._session.ledger, self._session.running.doubles
        for block, prints, index, group in doubles:
            if block != NULL_BLOCK and not ledger.in_pool(prints, index, group):
                ledger.store(block, prints, index, group)
        doubles.clear()

    def _pool(self, dropped: tuple[Table, ...], handed: Collection[int]) -> dict[int, Entry]:
        """Drop blocks of the shared pool; those handed out since then are dropped already."""
        ids = [b for g in self._layout.pooled if g < len(dropped) for b in dropped[g]]
        drop = self._session.ledger.drop
        return {b: entry for b in ids if b not in handed and (entry := drop(b))}

    def _still_handed(self, held: Collection[int]) -> Collection[int]:
        """Return what was handed out and is in use, where blocks behind a window are freed.

        There a block may be handed out, written and freed by one operation.
        """
        session = self._session
        handed = session.running.handed
        return handed & set(held) if session.profile.behind_windows == "freed" else handed

    def _rows(self, dropped: tuple[Table, ...]) -> list[Entry]:
        session, layout = self._session, self._layout
        if not layout.separate:
            return []
        keys = [k for g in layout.states if g < len(dropped)
                for k in session.states.keys(g, dropped[g])]  # fmt: skip
        return [entry for key in keys if (entry := session.ledger.drop_row(key))]

    def _stays_held(self, pool: dict[int, Entry], held: dict[int, int]) -> None:
        lost = next((b for b in pool if b in held and pool[b].group in self._layout.attention), 0)
        self._session.check(
            "blocks_keep_their_identity_while_there_is_room",
            INVARIANT,
            not lost,
            lambda: f"block {lost} is held and lost its identity",
            suspects=(lost,),
        )

    def _was_needed(self, before: Inspection, pool: dict[int, Entry], taken: int) -> None:
        """A unit is dropped only if there were too few free blocks without it.

        Where no order is declared, cached blocks may go before scratch (B3).
        """
        session = self._session
        undeclared = session.profile.eviction_order == "undeclared"
        if not pool or undeclared or isinstance(session.history[-1][0], ops.Evict):
            return
        attention = [b for b, entry in pool.items() if entry.group in self._layout.attention]
        if not attention and self._replaced(list(pool.values())):
            return
        prop = (
            "blocks_keep_their_identity_while_there_is_room"
            if attention
            else "a_mismatch_destroys_no_checkpoint"
        )
        enough = before.usage.free + len(pool) - self._layout.unit_blocks
        session.check(
            prop,
            INVARIANT,
            taken > enough,
            lambda: (
                f"blocks {sorted(pool)} lost their identity for {taken} blocks while "
                f"{before.usage.free} blocks without identity were free"
            ),
            suspects=tuple(sorted(pool)),
        )

    def _checkpoint_was_needed(self, rows: list[Entry], lost: Collection[object]) -> None:
        """A checkpoint of the separate pool goes with its unit, or when no row is free.

        Rows of units that went in the same operation may have been free only after it. What a
        refusal leaves behind is judged for itself (B4).
        """
        session = self._session
        superseded = session.running.superseded
        kept = [e for e in rows if e.anchor not in lost and session.ledger.anchored(e)]
        alone = [e for e in kept if e.anchor not in superseded]
        operation, answer = session.history[-1]
        if not alone or isinstance(operation, ops.Evict) or isinstance(answer, Refused):
            return
        if self._replaced(alone):
            return
        free = session.states.free_rows() - (len(rows) - len(kept))
        session.check(
            "a_mismatch_destroys_no_checkpoint",
            INVARIANT,
            free < 1,
            lambda: f"{len(alone)} checkpoints were dropped while {free} rows were free",
        )

    def _replaced(self, entries: list[Entry]) -> bool:
        """Tell whether these are checkpoints that a newer one of their request replaces (S6)."""
        replaced = self._session.running.replaceable
        return all(entry.content in replaced for entry in entries)
