"""Ratios of two benches: which agree, which differ, which one of them lacks."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kvproof.harness.analysis.bench_ratios import agreements
from kvproof.harness.errors import UsageError
from kvproof.harness.records.bench_events import BenchPair
from kvproof.suites.tests.bench.test_bench_schedulers import POINT
from kvproof.suites.tests.bench.test_bench_tiers import SUMMARY
from kvproof.suites.tests.reports.report_kit import recorded_run, with_events

PAIR = BenchPair(
    target="reference", peer="a", workload="w", block_size=16, num_blocks=9, case="eviction",
    repetitions=5, ratio=2.0, low=1.9, high=2.1,
)  # fmt: skip


def test_ratios_agree_within_a_tenth_of_the_smaller() -> None:
    run = recorded_run()
    slower = replace(POINT, target="b", p50_us=6000)
    base = with_events(run, [PAIR, SUMMARY, POINT, slower])
    head = with_events(
        run, [replace(PAIR, ratio=2.19), SUMMARY, POINT, replace(slower, p50_us=6700)]
    )
    found, alone = agreements(base, head)
    assert [(each.key.case, each.agrees) for each in found] == [
        ("scheduler", False),
        ("eviction", True),
        ("tiers, store", True),
    ]
    assert found[0].apart == pytest.approx(67 / 60)
    assert not alone


def test_a_ratio_of_one_run_only_is_named() -> None:
    run = recorded_run()
    found, alone = agreements(with_events(run, [PAIR, SUMMARY]), with_events(run, [PAIR]))
    assert len(found) == 1
    assert [key.case for key in alone] == ["tiers, store"]
    with pytest.raises(UsageError, match="no ratio in common"):
        agreements(with_events(run, [SUMMARY]), with_events(run, [PAIR]))
