"""Every statistic of kvproof: bootstrap intervals, rank tests, exact tests of counts.

Pure functions over numbers. Resampling uses a fixed seed, so equal samples give equal intervals.
Tests are exact where that is affordable; the tests of this module compare them with scipy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float64]

RESAMPLES = 2_000
"""Resamples of a bootstrap."""

_EXACT = 60
"""Samples of both sides up to which p is exact; beyond, the normal approximation is as good."""


class Interval(NamedTuple):
    """Bounds of an estimate."""

    low: float
    high: float


class Ratio(NamedTuple):
    """A ratio with the bounds of its bootstrap interval."""

    middle: float
    low: float
    high: float


def ratio_of_medians(above: npt.ArrayLike, below: npt.ArrayLike, *, sure: float = 95.0) -> Ratio:
    """Median of `above` over median of `below`, unpaired, with bounds at `sure` percent."""
    rng = _generator()
    own, other = np.asarray(below, float), np.asarray(above, float)
    lower = np.median(resampled(own, rng), axis=1)
    low, high = _bounds(np.median(resampled(other, rng), axis=1) / lower, sure)
    return Ratio(float(np.median(other) / np.median(own)), low, high)


def median_of_ratios(above: npt.ArrayLike, below: npt.ArrayLike) -> Ratio:
    """Median of paired ratios with its 95 % interval: sample i goes with sample i."""
    ratios = np.divide(above, below)
    low, high = _bounds(np.median(resampled(ratios, _generator()), axis=1))
    return Ratio(float(np.median(ratios)), low, high)


def centre_of_ratios(above: npt.ArrayLike, below: npt.ArrayLike) -> Ratio:
    """Hodges and Lehmann's centre of paired ratios, over their logarithms, with 95 % bounds.

    It belongs to signed ranks: little noisier than the mean, and one bad pair hardly moves it.
    """
    logs = np.log(np.divide(above, below))
    low, high = _bounds(_centres(resampled(logs, _generator())))
    return Ratio(math.exp(_centres(logs[None, :])[0]), math.exp(low), math.exp(high))


def resampled(samples: Samples, rng: np.random.Generator) -> Samples:
    """Rows of as many samples, drawn with replacement: `RESAMPLES` x `len(samples)`."""
    return samples[rng.integers(len(samples), size=(RESAMPLES, len(samples)))]


def geometric_mean(values: Iterable[float]) -> float:
    """Of positive numbers; NaN of none."""
    logs = [math.log(value) for value in values]
    return math.exp(math.fsum(logs) / len(logs)) if logs else math.nan


def _generator() -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(0))


def _bounds(values: Samples, sure: float = 95.0) -> Interval:
    low, high = np.percentile(values, [50 - sure / 2, 50 + sure / 2])
    return Interval(float(low), float(high))


def _centres(rows: Samples) -> Samples:
    left, right = np.triu_indices(rows.shape[1])
    found: Samples = np.median((rows[:, left] + rows[:, right]) / 2, axis=1)
    return found


def mann_whitney(left: npt.ArrayLike, right: npt.ArrayLike) -> float:
    """One-sided p that `left` tends to be greater; exact for few samples without ties."""
    mine, theirs = np.asarray(left, float), np.asarray(right, float)
    larger = (mine[:, None] > theirs[None, :]).sum()
    ties = (mine[:, None] == theirs[None, :]).sum()
    u = float(larger + ties / 2)
    if not ties and len(mine) + len(theirs) <= _EXACT:
        counts = _distribution(len(mine), len(theirs))
        return sum(counts[int(u) :]) / sum(counts)
    return normal_p(u, mine, theirs)


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


def normal_p(u: float, mine: Samples, theirs: Samples) -> float:
    """Mann-Whitney's p by the normal approximation, corrected for ties and continuity."""
    n, m = len(mine), len(theirs)
    whole = n + m
    _, times = np.unique(np.concatenate([mine, theirs]), return_counts=True)
    tied = float((times**3 - times).sum()) / (whole * (whole - 1)) if whole > 1 else 0.0
    variance = n * m / 12 * (whole + 1 - tied)
    if variance <= 0:
        return 1.0
    return 0.5 * math.erfc((u - n * m / 2 - 0.5) / math.sqrt(2 * variance))


def wilcoxon(values: npt.ArrayLike) -> float:
    """Exact one-sided signed-rank p for positive values; ties share ranks, zeros are left out."""
    found = np.asarray(values, float)
    found = found[found != 0]
    ranks = _doubled_ranks(np.abs(found))
    positive = int(ranks[found > 0].sum())
    counts = [1]
    for rank in ranks.tolist():
        wide = [0] * rank
        counts = [a + b for a, b in zip(counts + wide, wide + counts, strict=True)]
    return sum(counts[positive:]) / sum(counts)


def _doubled_ranks(values: Samples) -> npt.NDArray[np.int64]:
    """Twice the average rank of each value, which is whole."""
    below = (values[:, None] > values[None, :]).sum(axis=1)
    equal = (values[:, None] == values[None, :]).sum(axis=1)
    ranks: npt.NDArray[np.int64] = 2 * below + equal + 1
    return ranks


def holm(values: Sequence[float]) -> list[float]:
    """P values adjusted for being several (Holm), in the order given."""
    order = sorted(range(len(values)), key=lambda index: values[index])
    adjusted = [0.0] * len(values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - rank) * values[index]))
        adjusted[index] = largest
    return adjusted


def wilson(successes: int, total: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share. 0 to 1 if there is nothing to count."""
    if not total:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = successes / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z * math.sqrt(share * (1 - share) / total + spread / total / 4) / (1 + spread)
    low = 0.0 if not successes else middle - half
    high = 1.0 if successes == total else middle + half
    return Interval(low, high)


def at_least(successes: int, total: int) -> float:
    """Probability that a fair coin gives so many heads or more."""
    ways = sum(math.comb(total, k) for k in range(successes, total + 1))
    return float(Fraction(ways, 2**total))


def binomial_tail(successes: int, total: int, share: float) -> float:
    """Probability of at least so many successes, each with probability `share`."""
    return sum(
        math.comb(total, k) * share**k * (1 - share) ** (total - k)
        for k in range(successes, total + 1)
    )


def mcnemar(lost: int, won: int) -> float:
    """Exact two-sided McNemar test of the pairs that changed one way and the other."""
    return min(1.0, 2 * at_least(max(lost, won), lost + won))


def fisher(bad: int, count: int, controls_bad: int, controls: int) -> float:
    """Probability of at least `bad` of `count`, if controls are as often bad (one-sided)."""
    total, marked = count + controls, bad + controls_bad
    ways = sum(
        math.comb(count, each) * math.comb(controls, marked - each)
        for each in range(bad, min(count, marked) + 1)
    )
    return ways / math.comb(total, marked)


def clopper_pearson(successes: int, total: int, confidence: float = 0.95) -> float:
    """One-sided upper bound of a share: a larger one would show more successes."""
    if successes >= total:
        return 1.0
    low, high = successes / total, 1.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        if _at_most(successes, total, middle) > 1 - confidence:
            low = middle
        else:
            high = middle
    return high


def _at_most(successes: int, total: int, share: float) -> float:
    """Sum over logarithms: `comb` of some thousand samples is no float any more."""
    odds = math.log(share) - math.log1p(-share)
    none, all_ways = total * math.log1p(-share), math.lgamma(total + 1)
    return sum(
        math.exp(all_ways - math.lgamma(k + 1) - math.lgamma(total - k + 1) + k * odds + none)
        for k in range(successes + 1)
    )


def smallest_loss(tests: int, alpha: float) -> int:
    """How many answers must be lost, and none won, to be significant among so many tests."""
    return math.ceil(math.log(tests / alpha, 2))


def net_loss_bound(
    lost: int, won: int, *, right: int, total: int, confidence: float = 0.95
) -> float:
    """Upper bound of (lost - won) / right: shares of right answers that are lost, less those won.

    `right` of `total` answers were right before. Two exact bounds share the error: lost at most,
    won at least. Where none is won, losses have it alone. 1 if nothing was right.
    """
    if not right:
        return 1.0
    if not won:
        return clopper_pearson(lost, right, confidence)
    sure = (1 + confidence) / 2
    wrong = total - right
    least = 1 - clopper_pearson(wrong - won, wrong, sure)
    return min(1.0, clopper_pearson(lost, right, sure) - least * wrong / right)


def detectable(count: int, needed: int, power: float = 0.8) -> float:
    """Smallest share of wrong answers that gives at least `needed` of `count` with this power.

    1 if `count` is too small for any.
    """
    if needed > count:
        return 1.0
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if binomial_tail(needed, count, middle) >= power else (middle, high)
        )
    return high
