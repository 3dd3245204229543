"""Whether two sides differ by more than a margin: Mann-Whitney, Wilcoxon, Holm, bootstrap.

Pure functions over numbers. A sample is a cost, so that a ratio above 1 is a loss.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Side: TypeAlias = Sequence[Sequence[float]]
"""Samples of each run."""

Change: TypeAlias = Literal["slower", "faster", "same", "inconclusive"]

LEAST_RUNS = 6
"""From so many runs on each side every run counts once, with its median: samples of one process
share its memory layout and its minute, and are no independent evidence."""

Counted: TypeAlias = Literal["pairs of runs", "runs", "samples"]

_RESAMPLES = 2_000
_EXACT = 60
"""Samples of both sides up to which p is exact; beyond, the normal approximation is as good."""


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
    """Compare two sides; `margin` is the largest change that is none, as a fraction.

    `paired`: run i of one side was measured next to run i of the other, so that what disturbed
    the machine for a while disturbed both.
    """
    per_run = min(len(base), len(head)) >= LEAST_RUNS
    before, after = (_units(side, per_run=per_run) for side in (base, head))
    if per_run and paired:
        return _of_pairs(after / before, margin)
    low, high = _interval(before, after)
    return Estimate(
        ratio=float(np.median(after) / np.median(before)),
        low=low,
        high=high,
        p_slower=greater(after, before * (1 + margin)),
        p_faster=greater(before, after * (1 + margin)),
        base_n=len(before),
        head_n=len(after),
        counted="runs" if per_run else "samples",
    )


def _of_pairs(ratios: npt.NDArray[np.float64], margin: float) -> Estimate:
    logs, beyond = np.log(ratios), math.log1p(margin)
    rng = np.random.Generator(np.random.PCG64(0))
    drawn = logs[rng.integers(len(logs), size=(_RESAMPLES, len(logs)))]
    low, high = np.percentile(_centres(drawn), [2.5, 97.5])
    return Estimate(
        ratio=math.exp(_centres(logs[None, :])[0]),
        low=math.exp(low),
        high=math.exp(high),
        p_slower=above_zero(logs - beyond),
        p_faster=above_zero(-logs - beyond),
        base_n=len(ratios),
        head_n=len(ratios),
        counted="pairs of runs",
    )


def _centres(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Median of all pairwise means of each row (Hodges and Lehmann).

    It belongs to signed ranks: little noisier than the mean, and one bad pair hardly moves it.
    """
    left, right = np.triu_indices(rows.shape[1])
    found: npt.NDArray[np.float64] = np.median((rows[:, left] + rows[:, right]) / 2, axis=1)
    return found


def above_zero(values: npt.ArrayLike) -> float:
    """One-sided p of Wilcoxon's signed ranks that values tend to be positive; exact."""
    found = np.asarray(values, float)
    ranks = np.argsort(np.argsort(np.abs(found), kind="stable")) + 1
    positive = int(ranks[found > 0].sum())
    counts = [1]
    for rank in range(1, len(found) + 1):
        wide = [0] * rank
        counts = [a + b for a, b in zip(counts + wide, wide + counts, strict=True)]
    return sum(counts[positive:]) / sum(counts)


def _units(side: Side, *, per_run: bool) -> npt.NDArray[np.float64]:
    if per_run:
        return np.array([np.median(run) for run in side])
    return np.array([sample for run in side for sample in run])


def _interval(
    before: npt.NDArray[np.float64], after: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Bounds of the ratio of medians; each side is resampled on its own."""
    rng = np.random.Generator(np.random.PCG64(0))
    ratios = medians(after, rng) / medians(before, rng)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def medians(samples: npt.NDArray[np.float64], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Medians of so many samples, drawn again and again with replacement."""
    drawn = rng.integers(len(samples), size=(_RESAMPLES, len(samples)))
    found: npt.NDArray[np.float64] = np.median(samples[drawn], axis=1)
    return found


def greater(left: npt.ArrayLike, right: npt.ArrayLike) -> float:
    """One-sided p of Mann-Whitney that `left` tends to be greater; exact for few samples."""
    mine, theirs = np.asarray(left, float), np.asarray(right, float)
    larger = (mine[:, None] > theirs[None, :]).sum()
    ties = (mine[:, None] == theirs[None, :]).sum()
    u = float(larger + ties / 2)
    if not ties and len(mine) + len(theirs) <= _EXACT:
        counts = _distribution(len(mine), len(theirs))
        return sum(counts[int(u) :]) / sum(counts)
    return _normal(u, mine, theirs)


@lru_cache(maxsize=64)
def _distribution(left: int, right: int) -> tuple[int, ...]:
    """Index u -> in how many orders of the samples u pairs have the left one greater."""
    counts = [1]
    for number in range(1, left + 1):  # Gaussian binomial coefficient, factor by factor
        counts = _divided(_multiplied(counts, right + number), number)
    return tuple(counts)


def _multiplied(counts: list[int], power: int) -> list[int]:
    """Times 1 - x**power."""
    wide = counts + [0] * power
    return [count - (wide[at - power] if at >= power else 0) for at, count in enumerate(wide)]


def _divided(counts: list[int], power: int) -> list[int]:
    """By 1 - x**power, which leaves no rest."""
    found = list(counts)
    for at in range(power, len(found)):
        found[at] += found[at - power]
    return found[: len(found) - power]


def _normal(u: float, mine: npt.NDArray[np.float64], theirs: npt.NDArray[np.float64]) -> float:
    n, m = len(mine), len(theirs)
    whole = n + m
    _, times = np.unique(np.concatenate([mine, theirs]), return_counts=True)
    tied = float((times**3 - times).sum()) / (whole * (whole - 1)) if whole > 1 else 0.0
    variance = n * m / 12 * (whole + 1 - tied)
    if variance <= 0:
        return 1.0
    return 0.5 * math.erfc((u - n * m / 2 - 0.5) / math.sqrt(2 * variance))


def least_p(left: int, right: int, counted: Counted = "samples") -> float:
    """The smallest one-sided p that so many can show."""
    if counted == "pairs of runs":
        return float(2**-left)
    return 1 / math.comb(left + right, left)


def holm(values: Sequence[float]) -> list[float]:
    """P values adjusted for being several (Holm), in the order given."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


def decide(found: Estimate, p: float, *, margin: float, alpha: float) -> Change:
    """What may be said; `p` is two-sided and adjusted for the table.

    A change is claimed if the whole interval lies beyond the margin and p is below alpha; that
    there is none, if the whole interval lies within it.
    """
    bound = 1 + margin
    if p < alpha and found.low > bound:
        return "slower"
    if p < alpha and found.high < 1 / bound:
        return "faster"
    if 1 / bound <= found.low and found.high <= bound:
        return "same"
    return "inconclusive"
