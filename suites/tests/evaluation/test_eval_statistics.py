"""Statistics against published values, definitions, and scipy where it is installed."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import pytest

from kvproof.eval.verdict.statistics import at_least, mcnemar, smallest_loss, upper_bound, wilson
from kvproof.harness.analysis.statistics import holm


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_as_in_newcombe_1998(successes: int, total: int, low: float, high: float) -> None:
    """Statistics in Medicine 17, 857-872, table I, method 3."""
    found = wilson(successes, total)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_wilson_is_symmetric_and_stays_within_0_and_1() -> None:
    for total in (1, 7, 503):
        for successes in range(total + 1):
            found, mirrored = wilson(successes, total), wilson(total - successes, total)
            assert 0 <= found.low <= successes / total <= found.high <= 1
            assert found.low == pytest.approx(1 - mirrored.high)
    assert wilson(0, 0) == (0, 1)


@pytest.mark.parametrize(
    ("lost", "won", "p"),
    [
        (0, 0, 1.0),
        (1, 9, 0.021484375),  # 2 * (1 + 10) / 2**10
        (9, 2, 0.06543),  # the example of the R package exact2x2
        (5, 0, 0.0625),
        (0, 6, 0.03125),
        (7, 7, 1.0),
        (86, 150, 3.716e-05),  # Agresti, approval of the prime minister: z = 4.17
    ],
)
def test_mcnemar(lost: int, won: int, p: float) -> None:
    assert mcnemar(lost, won) == pytest.approx(p, rel=1e-4)
    assert mcnemar(won, lost) == mcnemar(lost, won)


def test_mcnemar_never_rejects_too_often() -> None:
    """Its level is exact: summed over all outcomes of fair flips it stays below alpha."""
    for total in range(1, 60):
        rejected = sum(comb(total, k) for k in range(total + 1) if mcnemar(k, total - k) <= 0.05)
        assert rejected / 2**total <= 0.05


def test_more_heads_are_less_likely() -> None:
    assert at_least(0, 5) == 1
    assert at_least(5, 5) == 1 / 32
    assert at_least(8, 10) == 56 / 1024


def test_holm_as_in_the_textbook_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("successes", "total", "bound"),
    [
        (0, 10, 1 - 0.05 ** (1 / 10)),  # the rule of three, exact
        (0, 503, 1 - 0.05 ** (1 / 503)),
        (3, 3, 1.0),
        (2, 20, 0.2826),  # Clopper and Pearson's, 95 % one-sided
    ],
)
def test_upper_bound(successes: int, total: int, bound: float) -> None:
    assert upper_bound(successes, total) == pytest.approx(bound, abs=5e-5)


def test_upper_bound_of_more_samples_than_a_float_can_count_ways():
    bound = Fraction(upper_bound(600, 1200))
    ways = (comb(1200, k) * bound**k * (1 - bound) ** (1200 - k) for k in range(601))
    assert float(sum(ways)) == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize("tests", [1, 2, 6, 12])
def test_the_smallest_loss_is_the_first_that_is_significant(tests: int) -> None:
    loss = smallest_loss(tests, 0.05)
    assert mcnemar(loss, 0) * tests <= 0.05 < mcnemar(loss - 1, 0) * tests


def test_all_of_it_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats", reason="scipy is no dependency of kvproof")
    for lost in range(12):
        for won in range(12):
            if lost + won:
                test = stats.binomtest(lost, lost + won, 0.5)
                assert mcnemar(lost, won) == pytest.approx(test.pvalue)
    for total in (1, 17, 48, 503):
        for successes in {0, 1, total // 3, total - 1, total}:
            test = stats.binomtest(successes, total)
            found = test.proportion_ci(0.95, method="wilson")
            assert wilson(successes, total) == pytest.approx((found.low, found.high))
            exact = stats.binomtest(successes, total, alternative="less").proportion_ci(0.95)
            assert upper_bound(successes, total) == pytest.approx(exact.high)
