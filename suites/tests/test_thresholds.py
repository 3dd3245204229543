"""Limits and baselines: what fails, what is inconclusive, and what is left out with a reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.events import BenchSummary
from kvproof.harness.settings import GateSettings, Limit
from kvproof.harness.thresholds import Judgement, judge_thresholds, load_baseline, save_baseline

HERE = {"cpu": "a", "cores": "2"}


def summary(**changes: object) -> BenchSummary:
    row = BenchSummary(
        target="reference",
        workload="shared-heads:requests=400",
        block_size=16,
        num_blocks=1000,
        case="no_eviction",
        repetitions=3,
        tokens_per_second=1e8,
        low=0.9e8,
        high=1.1e8,
        p50_us=10.0,
        p99_us=20.0,
        hit_rate=0.7,
        harness_share=0.01,
        bytes_per_block=100.0,
    )
    return msgspec.structs.replace(row, **changes)


def limit(**changes: object) -> Limit:
    given = {"target": "reference", "block_size": 16, "metric": "tokens_per_second", **changes}
    return Limit(**given)  # type: ignore[arg-type]  # the test chooses the fields


def judged(
    limits: list[Limit], *summaries: BenchSummary, targets: tuple[str, ...] = ()
) -> Judgement:
    settings = GateSettings(threshold=tuple(limits))
    return judge_thresholds(summaries, settings, None, hardware=HERE, targets=targets)


@pytest.mark.parametrize(
    ("bounds", "verdicts"),
    [
        ({"min": 1e8}, ["pass"]),
        ({"min": 1.1e8}, ["fail"]),
        ({"max": 1e8}, ["pass"]),
        ({"max": 0.9e8}, ["fail"]),
        ({"min": 1e7, "max": 1e7}, ["pass", "fail"]),
    ],
)
def test_a_figure_stays_within_its_limits(bounds: dict[str, float], verdicts: list[str]) -> None:
    found = judged([limit(**bounds)], summary()).thresholds
    assert [each.verdict for each in found] == verdicts
    assert all(each.measured == 1e8 for each in found)


def test_the_name_says_what_was_compared() -> None:
    (found,) = judged([limit(metric="p99_us", max=5.0)], summary()).thresholds
    assert found.name == "reference no_eviction block 16: p99_us <= 5"


def test_an_engine_means_all_its_versions() -> None:
    rows = [summary(target="vllm==0.33.0"), summary(target="vllm==0.34.0"), summary()]
    found = judged([limit(target="vllm", min=1.0)], *rows).thresholds
    assert [each.name.split()[0] for each in found] == ["vllm==0.33.0", "vllm==0.34.0"]


def test_a_target_that_gave_no_figure_is_inconclusive() -> None:
    (found,) = judged([limit(min=1.0)], targets=("reference",)).thresholds
    assert (found.verdict, found.measured) == ("inconclusive", None)
    assert "not measured" in found.reason


def test_a_figure_that_a_target_does_not_have_is_inconclusive() -> None:
    (found,) = judged([limit(metric="index_bytes_per_block", max=1.0)], summary()).thresholds
    assert found.verdict == "inconclusive"


def test_a_target_that_is_not_in_the_run_is_skipped() -> None:
    found = judged([limit(target="vllm", min=1.0)], summary())
    assert found.thresholds == []
    assert "vllm is not a target of this run" in found.skipped[0].reason


@pytest.mark.parametrize(
    ("wanted", "peer", "judged_lines"),
    [("", "", 0), ("vllm", "", 0), ("vllm", "sglang==1", 0), ("vllm", "vllm==0.33.0", 1)],
)
def test_a_ratio_needs_its_peer(wanted: str, peer: str, judged_lines: int) -> None:
    row = summary(peer=peer, ratio=40.0 if peer else None)
    found = judged([limit(metric="ratio", peer=wanted, min=36)], row)
    assert len(found.thresholds) == judged_lines
    assert len(found.skipped) == 1 - judged_lines


def against_baseline(
    tmp_path: Path, now: BenchSummary, *, hardware: dict[str, str] = HERE
) -> Judgement:
    path = tmp_path / "baseline.json"
    save_baseline(path, [summary()], hardware=HERE, versions={"python": "3"})
    stored = load_baseline(path)
    return judge_thresholds([now], GateSettings(), stored, hardware=hardware)


@pytest.mark.parametrize(
    ("changes", "verdicts"),
    [
        ({}, ["pass", "pass"]),
        ({"tokens_per_second": 0.76e8, "high": 0.8e8}, ["pass", "pass"]),
        ({"tokens_per_second": 0.7e8, "high": 0.72e8}, ["fail", "pass"]),
        ({"tokens_per_second": 0.7e8, "high": 0.9e8}, ["inconclusive", "pass"]),
        ({"bytes_per_block": 126.0}, ["pass", "fail"]),
        ({"bytes_per_block": None}, ["pass"]),
    ],
)
def test_a_regression_is_a_loss_beyond_what_is_tolerated(
    tmp_path: Path, changes: dict[str, object], verdicts: list[str]
) -> None:
    found = against_baseline(tmp_path, summary(**changes))
    assert [each.verdict for each in found.thresholds] == verdicts
    assert found.skipped == []


def test_a_baseline_of_other_hardware_is_left_out(tmp_path: Path) -> None:
    found = against_baseline(tmp_path, summary(), hardware={"cpu": "b", "cores": "2"})
    assert found.thresholds == []
    assert [each.reason for each in found.skipped] == [
        "measured on other hardware: cpu 'a' there, 'b' here"
    ]


def test_what_the_baseline_does_not_have_is_named(tmp_path: Path) -> None:
    found = against_baseline(tmp_path, summary(block_size=64))
    assert found.thresholds == []
    assert "reference no_eviction block 64" in found.skipped[0].part


def test_no_baseline_is_no_comparison(tmp_path: Path) -> None:
    assert load_baseline(tmp_path / "none.json") is None
    assert judged([], summary()) == ([], [])


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": 3}'])
def test_a_broken_baseline_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"baseline\.json' is not a baseline"):
        load_baseline(path)


def test_a_baseline_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text('{"format": 99, "hardware": {}, "versions": {}, "rows": []}')
    with pytest.raises(UsageError, match="newer kvproof"):
        load_baseline(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write baseline .*No such file"):
        save_baseline(tmp_path / "no" / "b.json", [summary()], hardware=HERE, versions={})
