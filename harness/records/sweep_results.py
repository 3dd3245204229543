"""Results of the cells of a sweep from its events: times, rates, ratios, neighbours."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np

from kvproof.harness.records.events import AnyEvent
from kvproof.harness.records.sweep_events import (
    CaseValue,
    Ceiling,
    Ceilings,
    Cell,
    SweepKernel,
    SweepStarted,
)
from kvproof.harness.statistics import Ratio, ratio_of_medians

CellKey: TypeAlias = tuple[str, str, str]
"""Kernel, provider, case in one line."""


class Row(NamedTuple):
    """The figures of one timed cell."""

    cell: Cell
    seconds: float
    """Median of a launch."""
    low: float
    """10th percentile of the samples."""
    high: float
    rate: float
    """Work per second in the unit of the kernel's ceiling."""
    unit: str
    fraction: float | None
    """Share of the ceiling; None if it was not measured."""


class Neighbours(NamedTuple):
    """Two timed cells of a provider that differ by one step along one axis."""

    axis: str
    slow: Row
    fast: Row
    ratio: float
    """Fraction of the ceiling of the fast one over that of the slow one; at least 1."""


def case_name(case: Mapping[str, CaseValue]) -> str:
    """The case in one line: `page=16 head_dim=128`."""
    return " ".join(f"{axis}={value}" for axis, value in case.items())


def key_of(cell: Cell) -> CellKey:
    """Identity of a cell within a run."""
    return cell.kernel, cell.provider, case_key(cell.case)


def case_key(case: Mapping[str, CaseValue]) -> str:
    """The same text for equal cases, for any order of their axes."""
    return json.dumps(case, sort_keys=True)


def latest(events: Iterable[AnyEvent]) -> dict[CellKey, Cell]:
    """The last event of each cell, in order of first appearance."""
    return {key_of(event): event for event in events if isinstance(event, Cell)}


def started(events: Iterable[AnyEvent]) -> SweepStarted | None:
    """The plan; None if no sweep began."""
    found = [event for event in events if isinstance(event, SweepStarted)]
    return found[-1] if found else None


def ceilings(events: Iterable[AnyEvent]) -> dict[int, dict[str, Ceiling]]:
    """Device -> its limits."""
    return {event.device: event.values for event in events if isinstance(event, Ceilings)}


def rows(events: Sequence[AnyEvent]) -> list[Row]:
    """The figures of all timed cells that are right."""
    begun, limits = started(events), ceilings(events)
    kernels = {each.name: each.ceiling for each in begun.kernels} if begun else {}
    return [
        row_of(cell, kernels[cell.kernel], limits.get(cell.device, {}))
        for cell in latest(events).values()
        if cell.outcome == "ok" and cell.samples and cell.kernel in kernels
    ]


def row_of(cell: Cell, ceiling: str, limits: Mapping[str, Ceiling]) -> Row:
    """The figures of a timed cell, held against one of the device's limits."""
    low, seconds, high = np.percentile(cell.samples, [10, 50, 90]).tolist()
    limit = limits.get(ceiling)
    rate = 1 / seconds if ceiling == "launch" else _work(cell, ceiling) / seconds
    most = None if limit is None else 1 / limit.value if ceiling == "launch" else limit.value
    fraction = rate / most if most else None
    return Row(cell, seconds, low, high, rate, _UNITS.get(ceiling, "B/s"), fraction)


_UNITS = {"matmul": "FLOP/s", "launch": "1/s"}


def _work(cell: Cell, ceiling: str) -> int:
    """Least work in the unit of a ceiling: a copy counts both ways, a link one."""
    cost = cell.cost
    if cost is None:
        return 0
    amounts = {
        "read": cost.read + cost.write,
        "copy": cost.read + cost.write,
        "link": max(cost.read, cost.write),
        "matmul": cost.flops,
    }
    return amounts.get(ceiling, 0)


def speedups(found: Sequence[Row], provider: str) -> dict[tuple[str, str], dict[str, Ratio]]:
    """(Kernel, case key) -> other provider -> its time over that of `provider`."""
    cases: dict[tuple[str, str], dict[str, Row]] = {}
    for row in found:
        place = (row.cell.kernel, case_key(row.cell.case))
        cases.setdefault(place, {})[row.cell.provider] = row
    return {
        place: {
            name: ratio_of_medians(row.cell.samples, sides[provider].cell.samples)
            for name, row in sides.items()
            if name != provider
        }
        for place, sides in cases.items()
        if provider in sides
    }


def neighbours(found: Sequence[Row], kernels: Sequence[SweepKernel]) -> list[Neighbours]:
    """All pairs of neighbouring cells of each provider, the greatest ratio first.

    Steps are between values of an axis that the cells have, in the order of the kernel's axis.
    """
    pairs = [pair for kernel in kernels for pair in _kernel_pairs(found, kernel)]
    return sorted(pairs, key=lambda pair: -pair.ratio)


def _kernel_pairs(found: Sequence[Row], kernel: SweepKernel) -> Iterator[Neighbours]:
    own = [row for row in found if row.cell.kernel == kernel.name and row.fraction]
    for axis, order in kernel.axes.items():
        lines: dict[tuple[str, str], dict[CaseValue, Row]] = {}
        for row in own:
            others = {name: value for name, value in row.cell.case.items() if name != axis}
            if row.cell.case.get(axis) in order:
                line = lines.setdefault((row.cell.provider, case_key(others)), {})
                line[row.cell.case[axis]] = row
        used = [value for value in order if any(value in line for line in lines.values())]
        for line in lines.values():
            for left, right in pairwise(used):
                if left in line and right in line:
                    yield _pair(axis, line[left], line[right])


def _pair(axis: str, left: Row, right: Row) -> Neighbours:
    slow, fast = sorted((left, right), key=lambda row: row.fraction or 0.0)
    assert slow.fraction
    assert fast.fraction
    return Neighbours(axis, slow, fast, fast.fraction / slow.fraction)
