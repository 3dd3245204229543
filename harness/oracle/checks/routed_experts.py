"""Checks of routed experts: each row is the number that only the same history gives (R1-R3)."""

from __future__ import annotations

import numpy as np

from kvproof.harness.model.fingerprints import Fingerprints
from kvproof.harness.oracle.cache_model import FILLED_ROW, NO_ROW, ROW
from kvproof.harness.oracle.state import OracleState, RequestState, Step
from kvproof.harness.oracle.violation import INVARIANT, SHADOW, fail

_FRESH = "expert_rows_are_those_of_a_fresh_run"
_REPORTED = "missing_expert_rows_are_reported"
_FILLED = "missing_expert_rows_are_filled"
_BITS = np.uint64(2**31 - 1)


def rows_of(prints: Fingerprints) -> list[int]:
    """Return the row of each position: 31 bits of its fingerprint."""
    found: list[int] = (prints & _BITS).tolist()
    return found


class ExpertChecks:
    """Passes rows to the target with each completed step and checks those that come back."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._provided: set[int] = set()
        """Fingerprints of positions for which the target ever got a row."""

    def rows(self, step: Step) -> tuple[int, ...]:
        """Return one row for each position that a step computed."""
        return tuple(rows_of(step.live.prints[step.start : step.stop]))

    def computed(self, step: Step, rows: tuple[int, ...]) -> None:
        """Note which positions have a row of their own."""
        live, kind = step.live, ROW if rows else NO_ROW
        fresh = np.full(step.stop - len(live.routed), kind, np.uint8)
        live.routed = np.concatenate((live.routed, fresh))
        if rows:
            self._provided.update(live.prints[step.start : step.stop].tolist())

    def returned(self, live: RequestState, found: tuple[int | None, ...]) -> None:
        """Rows are those of a run without reuse, or reported as missing (R2)."""
        state, name, count = self._state, live.request.id, len(live.request.tokens) - 1
        state.checks[_FRESH] += 1
        if len(found) != count:
            sentence = f"request {name} got {len(found)} expert rows for {count + 1} tokens"
            fail(state, _FRESH, SHADOW, sentence)
        own, prints = rows_of(live.prints), live.prints.tolist()
        for position, row in enumerate(found):
            if prints[position] not in self._provided:
                self._never_recorded(name, position, row)
                continue
            must = int(live.routed[position]) if position < len(live.routed) else NO_ROW
            if position < live.hit and live.epoch != state.epoch:
                must = NO_ROW  # rows of a hit went with the index
            self._row(name, position, row, own=own[position], must=must)

    def _never_recorded(self, name: str, position: int, row: int | None) -> None:
        self._state.checks[_REPORTED] += 1
        if row is not None:
            fail(
                self._state,
                _REPORTED,
                INVARIANT,
                f"request {name} got expert row {row} for position {position}, for which no row "
                "was ever recorded",
            )

    def _row(self, name: str, position: int, row: int | None, *, own: int, must: int) -> None:
        counts = self._state.checks
        counts[_FRESH] += 1
        if row not in (None, own) or (row != own and must == ROW):
            sentence = f"request {name} got expert row {row} for position {position}, not {own}"
            fail(self._state, _FRESH, SHADOW, sentence)
        if must == FILLED_ROW:
            counts[_FILLED] += 1
            if row != own:
                fail(
                    self._state,
                    _FILLED,
                    INVARIANT,
                    f"request {name} got no expert row for position {position}, although an equal "
                    "request has computed it with one after its block had none",
                )
