"""Rows of routed experts: a number that only the same history gives (R1-R3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kvproof.harness.oracle.request_state import FILLED_ROW, NO_ROW, ROW, Live, Step
from kvproof.harness.oracle.shadow_memory import Fingerprints
from kvproof.harness.oracle.violation import INVARIANT, SHADOW

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session

_BITS = np.uint64(2**31 - 1)


def rows_of(prints: Fingerprints) -> list[int]:
    """Return the row of each position: 31 bits of its fingerprint."""
    found: list[int] = (prints & _BITS).tolist()
    return found


class Experts:
    """Hands rows to the target with each completed step and judges those that come back."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._check = session.check
        self._provided: set[int] = set()
        """Fingerprints of positions for which a row was ever handed over."""

    def rows(self, step: Step) -> tuple[int, ...]:
        """Return one row for each position that a step computed."""
        return tuple(rows_of(step.live.prints[step.start : step.stop]))

    def computed(self, step: Step, rows: tuple[int, ...]) -> None:
        """Note which positions have a row of their own."""
        if not self._session.profile.experts:
            return
        live, kind = step.live, ROW if rows else NO_ROW
        fresh = np.full(step.stop - len(live.routed), kind, np.uint8)
        live.routed = np.concatenate((live.routed, fresh))
        if rows:
            self._provided.update(live.prints[step.start : step.stop].tolist())

    def of_hit(self, live: Live, hit: int) -> npt.NDArray[np.uint8]:
        """Return what must be known of the rows of a hit: those of units that are complete."""
        unit, ledger = self._session.layout.unit, self._session.ledger
        known = [ledger.routed(live.prints, index) for index in range(hit // unit)]
        kinds = [(FILLED_ROW if k.filled else ROW) if k.complete else NO_ROW for k in known]
        whole = np.repeat(np.array(kinds, np.uint8), unit)
        return np.concatenate((whole, np.full(hit % unit, NO_ROW, np.uint8)))

    def returned(self, live: Live, found: tuple[int | None, ...]) -> None:
        """Rows are those of a run without reuse, or reported as missing (R2)."""
        name, count = live.request.id, len(live.request.tokens) - 1
        self._check(
            "expert_rows_are_those_of_a_fresh_run",
            SHADOW,
            len(found) == count,
            lambda: f"request {name} got {len(found)} expert rows for {count + 1} tokens",
        )
        own, prints = rows_of(live.prints), live.prints.tolist()
        for position, row in enumerate(found):
            must = int(live.routed[position]) if position < len(live.routed) else NO_ROW
            if position < live.hit and live.epoch != self._session.epoch:
                must = NO_ROW  # rows of a hit went with the index
            self._row(name, position, row, own[position], must, prints[position] in self._provided)

    def _row(
        self,
        name: str,
        position: int,
        row: int | None,
        own: int,
        must: int,
        provided: bool,  # noqa: FBT001 - private
    ) -> None:
        if not provided:
            self._check(
                "missing_expert_rows_are_reported",
                INVARIANT,
                row is None,
                lambda: (
                    f"request {name} got expert row {row} for position {position}, for which no "
                    "row was ever recorded"
                ),
            )
            return
        self._check(
            "expert_rows_are_those_of_a_fresh_run",
            SHADOW,
            row in (None, own) and (row == own or must != ROW),
            lambda: f"request {name} got expert row {row} for position {position}, not {own}",
        )
        if must == FILLED_ROW:
            self._check(
                "missing_expert_rows_are_filled",
                INVARIANT,
                row == own,
                lambda: (
                    f"request {name} got no expert row for position {position}, although an equal "
                    "request has computed it with one after its block had none"
                ),
            )
