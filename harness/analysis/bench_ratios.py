"""Whether two benches agree: the ratios of their sides, which another machine should not change."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

from kvproof.harness.errors import UsageError
from kvproof.harness.records.bench_events import (
    TIER_COPIES,
    BenchPair,
    SchedulerPoint,
    TierSummary,
)
from kvproof.harness.records.resume import once
from kvproof.harness.records.run_directory import Run

TOLERANCE = 1.1
"""Two ratios agree if the larger one is at most so many times the other."""


class RatioKey(NamedTuple):
    """Subject of a ratio."""

    case: str
    detail: str
    above: str
    below: str


class Agreement(NamedTuple):
    """One ratio in both benches."""

    key: RatioKey
    base: float
    head: float

    @property
    def apart(self) -> float:
        """The larger over the smaller."""
        return max(self.base, self.head) / min(self.base, self.head)

    @property
    def agrees(self) -> bool:
        """Whether they lie within the tolerance."""
        return self.apart <= TOLERANCE


def agreements(base: Run, head: Run) -> tuple[list[Agreement], list[RatioKey]]:
    """Return the ratios that both have, the farthest apart first, and those that one has.

    Raises UsageError if none is in both.
    """
    one, other = dict(_ratios(base)), dict(_ratios(head))
    both = [Agreement(key, one[key], other[key]) for key in one if key in other]
    if not both:
        raise UsageError(
            "the two runs have no ratio in common",
            "give two runs of kvproof bench with two targets or more and the same cases",
        )
    return sorted(both, key=lambda each: -each.apart), sorted(one.keys() ^ other.keys())


def _ratios(run: Run) -> Iterator[tuple[RatioKey, float]]:
    points = []
    for event in once(run.events):
        match event:
            case BenchPair():
                at = f"{event.groups or 'full'}, block {event.block_size}"
                yield RatioKey(event.case, at, event.target, event.peer), event.ratio
            case TierSummary(ratio=float(ratio)) if event.operation not in TIER_COPIES:
                yield RatioKey(*_tier(event), event.target, event.peer), ratio
            case SchedulerPoint():
                points.append(event)
    yield from _steps(points)


def _tier(event: TierSummary) -> tuple[str, str]:
    return f"tiers, {event.operation}", f"{event.object_bytes >> 10} KiB, {event.clients} engines"


def _steps(points: list[SchedulerPoint]) -> Iterator[tuple[RatioKey, float]]:
    """Median step of each other scheduler over that of the first, cell by cell."""

    def cell(point: SchedulerPoint) -> tuple[int, int]:
        return point.requests, point.prompt_tokens

    for (requests, tokens), found in groupby(sorted(points, key=cell), cell):
        first, *others = found
        at = f"{requests:,} requests of {tokens:,} tokens"
        for other in others:
            yield RatioKey("scheduler", at, first.target, other.target), other.p50_us / first.p50_us
