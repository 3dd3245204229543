"""Limits and baselines: what fails, what is inconclusive, and what is left out with a reason."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvproof.harness.analysis.baseline import load_baseline, save_baseline
from kvproof.harness.analysis.thresholds import Judgement, judge_thresholds
from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import BenchSample, BenchSummary
from kvproof.harness.settings import GateSettings, Limit

HERE = {"cpu": "a", "cores": "2"}


def summary(**changes: object) -> BenchSummary:
    row = BenchSummary(
        target="reference",
        workload="shared-prefix:requests=400",
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


def samples(*speeds: float, **changes: object) -> list[BenchSample]:
    """Repetitions of so many million tokens per second."""
    row = BenchSample(
        target="reference", workload="shared-prefix:requests=400", block_size=16, num_blocks=1000,
        case="no_eviction", repetition=0, requests=400, tokens=1_000_000, hit_tokens=0,
        cpu_seconds=1.0, wall_seconds=1.0, p50_us=1.0, p99_us=1.0, harness_share=0.0,
        cached_blocks=1,
    )  # fmt: skip
    return [msgspec.structs.replace(row, cpu_seconds=1 / each, **changes) for each in speeds]


BEFORE = (98, 99, 100, 100, 101, 102)


def against_baseline(
    tmp_path: Path,
    now: BenchSummary,
    *speeds: float,
    hardware: dict[str, str] = HERE,
    before: tuple[float, ...] = BEFORE,
) -> Judgement:
    path = tmp_path / "baseline.json"
    save_baseline(path, [summary()], samples(*before), hardware=HERE, versions={"python": "3"})
    stored = load_baseline(path)
    return judge_thresholds(
        [now], GateSettings(), stored, hardware=hardware, samples=samples(*(speeds or BEFORE))
    )


@pytest.mark.parametrize(
    ("speeds", "changes", "verdicts"),
    [
        (BEFORE, {}, ["pass", "pass"]),
        ((180, 190, 200, 200, 210, 220), {}, ["pass", "pass"]),
        ((82, 83, 84, 84, 85, 86), {}, ["pass", "pass"]),
        ((68, 69, 70, 70, 71, 72), {}, ["fail", "pass"]),
        ((60, 65, 70, 80, 90, 100), {}, ["inconclusive", "pass"]),
        (BEFORE, {"bytes_per_block": 126.0}, ["pass", "fail"]),
        (BEFORE, {"bytes_per_block": None}, ["pass"]),
    ],
)
def test_a_regression_is_a_loss_beyond_what_is_tolerated(
    tmp_path: Path, speeds: tuple[float, ...], changes: dict[str, object], verdicts: list[str]
) -> None:
    found = against_baseline(tmp_path, summary(**changes), *speeds)
    assert [each.verdict for each in found.thresholds] == verdicts
    assert found.skipped == []


def test_too_few_repetitions_say_how_many_it_takes(tmp_path: Path) -> None:
    found = against_baseline(tmp_path, summary(), 50, 50, before=(100, 100)).thresholds[0]
    assert (found.verdict, found.limit) == ("inconclusive", pytest.approx(0.8e8))
    assert found.reason.startswith("2 and 2 samples cannot show anything among 1 rows: 4 on each")


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


@pytest.mark.parametrize(
    "text", [b"{", b"[]", b'{"rows": 3}', b'{"format": 2, "hardware": {"a": "\xff"}}']
)
def test_a_broken_baseline_is_named(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "baseline.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=r"baseline\.json' is not a baseline"):
        load_baseline(path)


@pytest.mark.parametrize(("number", "words"), [(99, "a newer kvproof"), (1, "an older kvproof")])
def test_a_baseline_of_another_version_is_refused(tmp_path: Path, number: int, words: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(f'{{"format": {number}, "hardware": {{}}, "versions": {{}}, "rows": []}}')
    with pytest.raises(UsageError, match=words):
        load_baseline(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write baseline .*No such file"):
        save_baseline(tmp_path / "no" / "b.json", [summary()], [], hardware=HERE, versions={})
