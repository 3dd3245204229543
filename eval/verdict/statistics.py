"""Exact tests and intervals for counts of paired answers."""

from __future__ import annotations

from fractions import Fraction
from math import ceil, comb, exp, lgamma, log, log1p, sqrt
from statistics import NormalDist
from typing import NamedTuple


class Interval(NamedTuple):
    """A share and its bounds."""

    low: float
    high: float


def wilson(successes: int, total: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of a share. 0 to 1 if there is nothing to count."""
    if not total:
        return Interval(0.0, 1.0)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share, spread = successes / total, z * z / total
    middle = (share + spread / 2) / (1 + spread)
    half = z * sqrt(share * (1 - share) / total + spread / total / 4) / (1 + spread)
    low = 0.0 if not successes else middle - half
    high = 1.0 if successes == total else middle + half
    return Interval(low, high)


def at_least(successes: int, total: int) -> float:
    """How likely a fair coin gives so many heads or more."""
    ways = sum(comb(total, k) for k in range(successes, total + 1))
    return float(Fraction(ways, 2**total))


def mcnemar(lost: int, won: int) -> float:
    """Exact two-sided McNemar test of the pairs that changed one way and the other."""
    return min(1.0, 2 * at_least(max(lost, won), lost + won))


def upper_bound(successes: int, total: int, confidence: float = 0.95) -> float:
    """Clopper and Pearson's one-sided bound: a larger share would show more successes."""
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
    odds, none, all_ways = log(share) - log1p(-share), total * log1p(-share), lgamma(total + 1)
    return sum(
        exp(all_ways - lgamma(k + 1) - lgamma(total - k + 1) + k * odds + none)
        for k in range(successes + 1)
    )


def smallest_loss(tests: int, alpha: float) -> int:
    """How many answers must be lost, and none won, to be significant among so many tests."""
    return ceil(log(2 * tests / alpha, 2))
