"""Statistics against published values, definitions, and scipy."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kvproof.harness.statistics import (
    at_least,
    binomial_tail,
    centre_of_ratios,
    clopper_pearson,
    detectable,
    fisher,
    geometric_mean,
    holm,
    mann_whitney,
    mcnemar,
    median_of_ratios,
    net_loss_bound,
    normal_p,
    ratio_of_medians,
    smallest_loss,
    wilcoxon,
    wilson,
)

draws = settings(derandomize=True, database=None, deadline=None, max_examples=60)


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
        rejected = sum(
            math.comb(total, k) for k in range(total + 1) if mcnemar(k, total - k) <= 0.05
        )
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
    assert clopper_pearson(successes, total) == pytest.approx(bound, abs=5e-5)


def test_upper_bound_of_more_samples_than_a_float_can_count_ways():
    yes, total = clopper_pearson(600, 1200).as_integer_ratio()
    ways = sum(math.comb(1200, k) * yes**k * (total - yes) ** (1200 - k) for k in range(601))
    assert float(Fraction(ways, total**1200)) == pytest.approx(0.05, rel=1e-6)


@pytest.mark.parametrize("tests", [1, 2, 6, 12])
def test_the_smallest_loss_is_the_first_that_is_significant(tests: int) -> None:
    loss = smallest_loss(tests, 0.05)
    assert at_least(loss, loss) * tests <= 0.05 < at_least(loss - 1, loss - 1) * tests


@pytest.mark.parametrize(("right", "total"), [(47, 48), (10, 24), (20, 48)])
@pytest.mark.parametrize("chances", [(0.02, 0.0), (0.02, 0.02), (0.2, 0.1), (0.1, 0.4)])
def test_the_bound_of_the_net_loss_holds_as_often_as_stated(
    right: int, total: int, chances: tuple[float, float]
) -> None:
    """By all outcomes: lost of the right ones, won of the others."""
    lost, won = ([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]
                 for n, p in zip((right, total - right), chances, strict=True))  # fmt: skip
    true = chances[0] - chances[1] * (total - right) / right
    covered = sum(
        a * b
        for x, a in enumerate(lost)
        for y, b in enumerate(won)
        if net_loss_bound(x, y, right=right, total=total) >= true
    )
    assert covered >= 0.95


def test_a_net_loss_without_wins_is_that_of_one_share() -> None:
    assert net_loss_bound(3, 0, right=40, total=48) == clopper_pearson(3, 40)
    assert net_loss_bound(0, 0, right=0, total=48) == 1.0
    balanced = net_loss_bound(15, 15, right=200, total=503)
    assert 0 < balanced < clopper_pearson(15, 200)


@pytest.mark.parametrize(("count", "needed"), [(24, 8), (503, 8), (48, 3)])
def test_what_is_detectable_has_the_power_that_is_stated(count: int, needed: int) -> None:
    share = detectable(count, needed)
    assert binomial_tail(needed, count, share) == pytest.approx(0.8, abs=1e-6)
    assert detectable(needed - 1, needed) == 1.0


def test_p_is_that_of_all_orders_of_the_samples():
    generator = random.Random(1)
    for left, right in ((2, 3), (4, 4), (5, 3)):
        values = [generator.random() for _ in range(left + right)]
        u = sum(a > b for a in values[:left] for b in values[left:])
        as_large = 0
        for chosen in itertools.combinations(range(left + right), left):
            mine = [values[at] for at in chosen]
            rest = [values[at] for at in range(left + right) if at not in chosen]
            as_large += sum(a > b for a in mine for b in rest) >= u
        expected = as_large / math.comb(left + right, left)
        assert mann_whitney(values[:left], values[left:]) == pytest.approx(expected)


def test_many_samples_are_judged_as_exactly_as_few():
    for shift in (-0.05, 0.0, 0.05, 0.1):
        left = np.array([1.0 + at * 0.01 for at in range(30)])
        right = np.array([1.0 - shift + at * 0.01001 for at in range(30)])
        u = float((left[:, None] > right[None, :]).sum())
        near = normal_p(u, left, right)
        assert mann_whitney(left, right) == pytest.approx(near, abs=0.004)


def test_equal_samples_show_nothing():
    assert mann_whitney([1.0] * 9, [1.0] * 9) == 1.0


def test_holm_keeps_the_order_and_never_falls():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_signed_ranks_are_those_of_all_signs():
    generator = random.Random(2)
    for count in (3, 6):
        values = [generator.gauss(0.3, 1) for _ in range(count)]
        ranks = {
            at: rank
            for rank, at in enumerate(sorted(range(count), key=lambda i: abs(values[i])), 1)
        }
        seen = sum(ranks[at] for at in range(count) if values[at] > 0)
        signs = itertools.product((0, 1), repeat=count)
        sums = [sum(ranks[at] for at in range(count) if each[at]) for each in signs]
        assert wilcoxon(values) == pytest.approx(sum(s >= seen for s in sums) / 2**count)


def test_ratios_are_paired_by_repetition() -> None:
    """Both sides are slow in the second repetition; the ratio does not notice."""
    assert median_of_ratios([10, 5, 10, 10, 10], [2, 1, 2, 2, 2]) == (5, 5, 5)
    ratio = median_of_ratios([10, 12, 14, 16, 18], [1, 1, 1, 1, 1])
    assert ratio.middle == 14
    assert 10 <= ratio.low < 14 < ratio.high <= 18


def test_an_interval_narrows_with_more_repetitions() -> None:
    few, many = [10, 12, 14], [10, 12, 14] * 20
    wide, narrow = median_of_ratios(few, [1] * 3), median_of_ratios(many, [1] * 60)
    assert narrow.high - narrow.low < wide.high - wide.low


def test_a_ratio_is_above_one_for_the_faster_and_its_interval_holds_the_truth() -> None:
    quick, slow = [1.0, 1.01, 0.99, 1.0, 1.02] * 3, [2.0, 2.02, 1.98, 2.0, 2.01] * 3
    found = ratio_of_medians(slow, quick)
    assert found.middle == pytest.approx(2.0)
    assert found.low <= 2.0 <= found.high
    assert 1.9 < found.low < found.high < 2.1
    wide = ratio_of_medians([2.0, 6.0, 2.0, 6.0, 4.0], [1.0, 3.0, 1.0, 3.0, 2.0])
    assert wide.high - wide.low > 1
    assert ratio_of_medians(slow, quick, sure=50).low >= ratio_of_medians(slow, quick, sure=99).low


def test_the_geometric_mean_of_nothing_is_no_number() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert math.isnan(geometric_mean([]))


def test_chances_are_exact() -> None:
    assert fisher(8, 8, 0, 16) == pytest.approx(1 / math.comb(24, 8))
    assert fisher(0, 8, 3, 16) == pytest.approx(1.0)
    assert fisher(1, 1, 1, 1) == 1.0
    assert binomial_tail(2, 2, 0.2) == pytest.approx(0.04)
    assert binomial_tail(0, 5, 0.2) == pytest.approx(1.0)


# --- scipy as the oracle ---


def test_exact_tests_of_counts_are_those_of_scipy() -> None:
    for lost in range(12):
        for won in range(12):
            if lost + won:
                test = stats.binomtest(lost, lost + won, 0.5)
                assert mcnemar(lost, won) == pytest.approx(test.pvalue)
                tail = stats.binom.sf(lost - 1, lost + won, 0.2)
                assert binomial_tail(lost, lost + won, 0.2) == pytest.approx(tail)
    for total in (1, 17, 48, 503):
        for successes in {0, 1, total // 3, total - 1, total}:
            test = stats.binomtest(successes, total)
            found = test.proportion_ci(0.95, method="wilson")
            assert wilson(successes, total) == pytest.approx((found.low, found.high))
            exact = stats.binomtest(successes, total, alternative="less").proportion_ci(0.95)
            assert clopper_pearson(successes, total) == pytest.approx(exact.high)


@draws
@given(st.integers(1, 12), st.integers(1, 12), st.data())
def test_fisher_is_that_of_scipy(count: int, controls: int, data: st.DataObject) -> None:
    bad, controls_bad = data.draw(st.integers(0, count)), data.draw(st.integers(0, controls))
    table = [[bad, count - bad], [controls_bad, controls - controls_bad]]
    expected = stats.fisher_exact(table, alternative="greater").pvalue
    assert fisher(bad, count, controls_bad, controls) == pytest.approx(expected)


sides = st.lists(st.integers(-6, 6).map(float), min_size=2, max_size=9)


@draws
@given(sides, sides)
def test_mann_whitney_is_that_of_scipy(left: list[float], right: list[float]) -> None:
    tied = bool(set(left) & set(right))
    if tied and len({*left, *right}) == 1:
        assert mann_whitney(left, right) == 1.0
        return
    method = "asymptotic" if tied else "exact"
    expected = stats.mannwhitneyu(left, right, alternative="greater", method=method).pvalue
    assert mann_whitney(left, right) == pytest.approx(expected)


@draws
@given(st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=9))
def test_signed_ranks_are_those_of_scipy_ties_and_zeros_included(values: list[float]) -> None:
    kept = [value for value in values if value]
    if len(kept) < 2:
        assert wilcoxon(values) == (0.5 if sum(kept) > 0 else 1.0)
        return
    every = stats.PermutationMethod(n_resamples=math.inf)
    expected = stats.wilcoxon(kept, alternative="greater", method=every).pvalue
    assert wilcoxon(values) == pytest.approx(expected)


@draws
@given(st.permutations([1.0, -1.0, 2.0, 2.0, -2.0, 3.0]))
def test_the_order_of_tied_values_does_not_matter(values: list[float]) -> None:
    assert wilcoxon(values) == wilcoxon(sorted(values))


def test_two_values_of_equal_size_and_opposite_sign_show_nothing() -> None:
    assert wilcoxon([1.0, -1.0]) == wilcoxon([-1.0, 1.0]) == 0.75


def test_bootstrap_intervals_are_those_of_scipy() -> None:
    generator = np.random.Generator(np.random.PCG64(7))
    above, below = generator.normal(3, 0.3, 25), generator.normal(2, 0.2, 25)

    def same(found, samples, statistic, *, resamples=5_000, vectorized=True):
        expected = stats.bootstrap(
            samples,
            statistic,
            n_resamples=resamples,
            method="percentile",
            rng=1,
            vectorized=vectorized,
        ).confidence_interval
        assert found[1:] == pytest.approx((expected.low, expected.high), rel=0.02)

    def medians(a, b, axis):
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    same(ratio_of_medians(above, below), (above, below), medians)
    same(median_of_ratios(above, below), (above / below,), np.median)

    def centre(a):
        pairs = itertools.combinations_with_replacement(np.log(a), 2)
        return math.exp(np.median([sum(pair) / 2 for pair in pairs]))

    ratios = above[:12] / below[:12]
    found = centre_of_ratios(above[:12], below[:12])
    assert found.middle == pytest.approx(centre(ratios))
    same(found, (ratios,), centre, resamples=2_000, vectorized=False)
