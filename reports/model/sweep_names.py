"""Short names of the cells of a sweep, and the order of their values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvproof.harness.records.sweep_events import CaseValue, Cell
from kvproof.reports.model.sweep import SweepResult

_NEARLY_ALL = 0.75
"""A value that this share of the cells has is left out of names."""


class Names:
    """Short names of the cases of one kernel: values of nearly all cases are left out."""

    def __init__(self, cases: Sequence[Mapping[str, CaseValue]]) -> None:
        axes = list(cases[0]) if cases else []
        counts = {axis: Counter(case.get(axis, "") for case in cases) for axis in axes}
        self._usual = {axis: found.most_common(1)[0][0] for axis, found in counts.items()}
        self._always = {
            axis
            for axis, found in counts.items()
            if len(found) > 2 and max(found.values()) < _NEARLY_ALL * len(cases)
        }

    def __call__(self, case: Mapping[str, CaseValue]) -> str:
        """Name a cell by axes of many values, and by others whose value is not the usual one."""
        shown = [
            f"{axis} {value}"
            for axis, value in case.items()
            if axis in self._always or value != self._usual.get(axis)
        ]
        return ", ".join(shown) or "usual"

    @property
    def usual(self) -> str:
        """The values that names leave out."""
        shown = (f"{axis} {v}" for axis, v in self._usual.items() if axis not in self._always)
        return ", ".join(shown)


def names_of(result: SweepResult, kernel: str) -> Names:
    """Names of all cells of a kernel."""
    return Names([cell.case for cell in result.cells if cell.kernel == kernel])


class Rank:
    """Sorts values in the order of their axis, then by size."""

    def __init__(self, order: Sequence[CaseValue]) -> None:
        self._order = list(order)

    def __call__(self, value: CaseValue) -> tuple[int, float, str]:
        """A key to sort by."""
        place = self._order.index(value) if value in self._order else len(self._order)
        size = float(value) if isinstance(value, int | float) else 0.0
        return (0, size, "") if isinstance(value, int | float) else (place, size, str(value))


def axes_of(cells: Sequence[Cell]) -> list[str]:
    """Axes of a kernel's cells; all its cells have the same."""
    return list(cells[0].case) if cells else []
