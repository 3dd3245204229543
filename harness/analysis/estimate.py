"""Whether two sides of costs differ by more than a margin. Pure functions over numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from kvproof.harness.statistics import (
    Samples,
    centre_of_ratios,
    mann_whitney,
    ratio_of_medians,
    wilcoxon,
)

Side: TypeAlias = Sequence[Sequence[float]]
"""Samples of each run."""

Change: TypeAlias = Literal["slower", "faster", "same", "inconclusive"]

LEAST_RUNS = 6
"""From so many runs on each side every run counts once, with its median: samples of one process
share its memory layout and its minute, and are no independent evidence."""

Counted: TypeAlias = Literal["pairs of runs", "runs", "samples"]


class Estimate(NamedTuple):
    """Cost of the head over that of the base, and how sure it is."""

    ratio: float
    low: float
    high: float
    """95 % bootstrap interval."""
    p_slower: float
    """Probability of such samples if the head were at most the margin slower."""
    p_faster: float
    base_n: int
    head_n: int
    counted: Counted

    @property
    def least_p(self) -> float:
        """The smallest one-sided p that as many can show."""
        return least_p(self.base_n, self.head_n, self.counted)


def estimate(base: Side, head: Side, *, margin: float, paired: bool = False) -> Estimate:
    """Compare two sides; `margin` is the largest change that counts as none, as a fraction.

    `paired`: run i of one side was measured next to run i of the other, so that disturbances of the
    machine affect both.
    """
    per_run = min(len(base), len(head)) >= LEAST_RUNS
    before, after = (_units(side, per_run=per_run) for side in (base, head))
    if per_run and paired:
        return _of_pairs(before, after, margin)
    return Estimate(
        *ratio_of_medians(after, before),
        p_slower=mann_whitney(after, before * (1 + margin)),
        p_faster=mann_whitney(before, after * (1 + margin)),
        base_n=len(before),
        head_n=len(after),
        counted="runs" if per_run else "samples",
    )


def _of_pairs(before: Samples, after: Samples, margin: float) -> Estimate:
    centre = centre_of_ratios(after, before)
    logs, beyond = np.log(after / before), math.log1p(margin)
    return Estimate(
        *centre,
        p_slower=wilcoxon(logs - beyond),
        p_faster=wilcoxon(-logs - beyond),
        base_n=len(before),
        head_n=len(after),
        counted="pairs of runs",
    )


def _units(side: Side, *, per_run: bool) -> Samples:
    if per_run:
        return np.array([np.median(run) for run in side])
    return np.array([sample for run in side for sample in run])


def least_p(left: int, right: int, counted: Counted = "samples") -> float:
    """The smallest one-sided p that so many can show."""
    if counted == "pairs of runs":
        return float(2**-left)
    return 1 / math.comb(left + right, left)


def decide(found: Estimate, p: float, *, margin: float, alpha: float) -> Change:
    """The decision for one row; `p` is two-sided and adjusted for the table.

    A change is claimed if the whole interval is beyond the margin and p is below alpha; no change,
    if the whole interval is within it.
    """
    bound = 1 + margin
    if p < alpha and found.low > bound:
        return "slower"
    if p < alpha and found.high < 1 / bound:
        return "faster"
    if 1 / bound <= found.low and found.high <= bound:
        return "same"
    return "inconclusive"
