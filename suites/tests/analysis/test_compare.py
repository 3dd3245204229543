"""Comparisons: what is claimed, what is refused, and how a command ends."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvproof.harness.analysis.compare import compare
from kvproof.harness.analysis.estimate import decide, estimate, least_p
from kvproof.harness.analysis.series import rounds, series_of
from kvproof.harness.analysis.sides import read_side
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.records.bench_events import GrowthPoint
from kvproof.harness.records.events import (
    BenchSample,
    Checked,
    Ended,
    HarnessFault,
    PropertyVerdict,
    Replayed,
    TargetFailed,
)
from kvproof.harness.records.run_directory import Manifest, RunWriter, read_run
from kvproof.harness.records.sweep_events import Cell
from kvproof.harness.settings import CompareSettings
from kvproof.harness.statistics import mann_whitney
from kvproof.reports.render.compare_page import html, markdown
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.reports.report_kit import TAGS, Page

NOISE = (1.0, 1.01, 0.99, 1.02, 0.98, 1.005, 0.995, 1.015)


DONE = Ended(verdict="pass", exit_code=0, sentence="done", seconds=1.0)


def write_run(place: Path, second: int, events, *, hardware=None, verb="bench", end=DONE) -> Path:
    manifest = Manifest(
        id=place.name,
        verb=verb,
        command=["kvproof", verb],
        started=f"2026-11-20T10:{second // 60:02d}:{second % 60:02d}+00:00",
        config={},
        versions={"kvproof": "0.4.0"},
        hardware=hardware or {"processor": "some cpu"},
        commit="abc",
    )
    writer = RunWriter(place, manifest)
    for event in events:
        writer.write(event)
    if end is not None:
        writer.write(end)
    writer.close()
    return place


def sample(
    seconds: float, *, repetition: int = 0, hits: int = 500, target: str = "reference"
) -> BenchSample:
    return BenchSample(
        target=target,
        workload="w",
        block_size=16,
        num_blocks=100,
        case="no_eviction",
        repetition=repetition,
        requests=10,
        tokens=1000,
        hit_tokens=hits,
        cpu_seconds=seconds,
        wall_seconds=seconds,
        p50_us=seconds * 1e3,
        p99_us=seconds * 2e3,
        harness_share=0.01,
    )


def verdict(name: str, word: str, *, target: str = "reference") -> PropertyVerdict:
    return PropertyVerdict(
        target=target,
        property=name,
        section="B",
        rules=["B1"],
        sentence="it holds",
        verdict=word,
        reason="because" if word != "pass" else "",
    )


def checked(word: str, *, target: str = "reference") -> Checked:
    return Checked(
        target=target,
        workload="w",
        block_size=16,
        num_blocks=100,
        requests=1,
        tokens=16,
        slots_compared=16,
        verdict=word,
        message="false hit" if word == "fail" else "",
    )


def in_turns(tmp_path: Path, factor: float, *, runs: int = 10, **more):
    """Both sides, one run after the other of each, with the same noise in another order."""
    for number in range(runs):
        noise = (NOISE[number % 8], NOISE[(3 * number + 2) % 8])
        for side, scale, what in (("base", 1.0, noise[0]), ("head", factor, noise[1])):
            second = 20 * number + 10 * (side == "head")
            write_run(tmp_path / side / f"{number:02d}", second, [sample(scale * what)], **more)
    return tmp_path / "base", tmp_path / "head"


def judged(base: Path, head: Path):
    return compare(read_side(base, base), read_side(head, head), CompareSettings())


def changes(found):
    return {row.key.metric: row.change for row in found.rows}


def test_pairs_see_through_a_machine_that_drifts():
    drift = [1.0, 1.4, 2.0, 0.8, 1.7, 1.1, 2.4, 0.9, 1.3, 1.9]
    noise = [1 + 0.01 * (at % 3 - 1) for at in range(10)]
    base = [[load] for load in drift]
    head = [[1.15 * load * tremble] for load, tremble in zip(drift, noise, strict=True)]
    apart = estimate(base, head, margin=0.05)
    side_by_side = estimate(base, head, margin=0.05, paired=True)
    words = [
        decide(f, 6 * min(f.p_slower, f.p_faster), margin=0.05, alpha=0.05)
        for f in (apart, side_by_side)
    ]
    assert words == ["inconclusive", "slower"]


def test_what_so_few_samples_can_show():
    assert least_p(3, 3) == mann_whitney([4, 5, 6], [1, 2, 3]) == pytest.approx(0.05)


@pytest.mark.parametrize(("factor", "word"), [(1.3, "slower"), (1 / 1.3, "faster"), (1.0, "same")])
def test_a_change_is_claimed_only_beyond_its_threshold(factor, word):
    base, head = [[x] for x in NOISE], [[factor * x * 1.001] for x in NOISE]
    found = estimate(base, head, margin=0.05)
    assert found.counted == "runs"
    p = 2 * min(found.p_slower, found.p_faster)
    assert decide(found, p, margin=0.05, alpha=0.05) == word


def test_a_loss_within_the_threshold_is_none():
    found = estimate([[x] for x in NOISE], [[1.04 * x] for x in NOISE], margin=0.05)
    assert decide(found, 2 * found.p_slower, margin=0.05, alpha=0.05) != "slower"


def test_sides_in_turns_show_a_slowdown_and_end_with_4(tmp_path):
    found = judged(*in_turns(tmp_path, 1.25))
    assert changes(found)["cpu_per_token"] == "slower"
    assert changes(found)["misses"] == "same"
    assert found.code is Exit.REGRESSION
    assert not found.differences


def test_equal_sides_are_the_same(tmp_path):
    found = judged(*in_turns(tmp_path, 1.0))
    assert set(changes(found).values()) == {"same"}
    assert found.code is Exit.PASS


def test_too_few_runs_are_inconclusive_and_say_how_many_it_takes(tmp_path):
    found = judged(*in_turns(tmp_path, 1.25, runs=2))
    assert changes(found)["cpu_per_token"] == "inconclusive"
    assert "5 on each side can" in found.undecided[0].reason


def test_sides_one_after_the_other_have_twice_the_threshold(tmp_path):
    events = [sample(x, repetition=at) for at, x in enumerate(NOISE)]
    write_run(tmp_path / "base", 0, events)
    write_run(tmp_path / "head", 60, events)
    base, head = (series_of([read_run(tmp_path / side)]) for side in ("base", "head"))
    (key, *_) = base
    assert rounds(base[key], head[key]) == 1
    row = judged(tmp_path / "base", tmp_path / "head").rows[0]
    assert row.threshold == pytest.approx(0.10)


def test_what_a_resumed_bench_measured_again_counts_once(tmp_path):
    point = GrowthPoint(
        at=1.0,
        target="t",
        block_size=16,
        cached_blocks=10,
        nanoseconds_per_token=5.0,
        low=4.0,
        high=6.0,
    )
    write_run(
        tmp_path / "run", 0, [point, msgspec.structs.replace(point, nanoseconds_per_token=7.0)]
    )
    (series,) = series_of([read_run(tmp_path / "run")]).values()
    assert series.runs == [[7.0]]


def test_counted_figures_need_no_samples(tmp_path):
    write_run(tmp_path / "base", 0, [sample(1.0, hits=500)])
    write_run(tmp_path / "head", 60, [sample(1.0, hits=480)])
    found = judged(tmp_path / "base", tmp_path / "head")
    assert changes(found)["misses"] == "worse"
    assert found.code is Exit.REGRESSION


def test_another_machine_refuses_times_and_not_what_is_counted(tmp_path):
    write_run(tmp_path / "base", 0, [sample(1.0), verdict("a", "pass")])
    other = {"processor": "another cpu"}
    write_run(tmp_path / "head", 60, [sample(2.0), verdict("a", "pass")], hardware=other)
    found = judged(tmp_path / "base", tmp_path / "head")
    assert set(changes(found)) == {"misses"}
    assert "say nothing about another" in found.refused[0]
    assert found.differences[0].what == "machine processor"
    assert found.code is Exit.PASS


def test_a_new_failure_ends_with_1_and_a_lost_verdict_with_3(tmp_path):
    write_run(tmp_path / "base", 0, [verdict("a", "pass"), verdict("b", "fail")])
    write_run(tmp_path / "head", 60, [verdict("a", "fail"), verdict("b", "pass")])
    found = judged(tmp_path / "base", tmp_path / "head")
    assert [(c.subject.name, c.trend) for c in found.verdicts] == [("a", "worse"), ("b", "better")]
    assert found.code is Exit.FAILURE
    write_run(tmp_path / "lost", 90, [verdict("a", "inconclusive")])
    assert judged(tmp_path / "base", tmp_path / "lost").code is Exit.INCONCLUSIVE


def test_a_check_that_fails_and_a_target_that_dies_end_with_1(tmp_path):
    write_run(tmp_path / "base", 0, [sample(1.0), checked("pass"), verdict("a", "pass")])
    write_run(tmp_path / "wrong", 60, [sample(1.0), checked("fail")])
    found = judged(tmp_path / "base", tmp_path / "wrong")
    ((subject, _, new, _),) = found.verdicts
    assert (subject.kind, new.reason, found.code) == ("checked", "false hit", Exit.FAILURE)
    death = TargetFailed(target="reference", kind="crash", message="segfault")
    for name, before in (("dead", [verdict("a", "pass")]), ("stillborn", [])):
        write_run(tmp_path / name, 60, [*before, death])
        found = judged(tmp_path / "base", tmp_path / name)
        ((subject, _, new, _),) = found.verdicts
        assert (subject.kind, new.reason) == ("target", "crash: segfault")
        assert found.code is Exit.FAILURE
    with pytest.raises(UsageError, match="no figure and no verdict in common"):
        judged(tmp_path / "dead", tmp_path / "stillborn")


def test_a_head_that_was_cut_short_shows_nothing(tmp_path):
    write_run(tmp_path / "base", 0, [verdict("a", "pass"), verdict("b", "pass")], end=None)
    again = [DONE, verdict("c", "pass")]
    fault = HarnessFault(where="kvproof run", message="it broke")
    stopped = msgspec.structs.replace(DONE, verdict="interrupted", exit_code=130)
    cases = {
        "killed": ([], None),
        "resumed": (again, None),
        "stopped": ([], stopped),
        "broken": ([fault], DONE),
    }
    for name, (more, end) in cases.items():
        write_run(tmp_path / name, 60, [verdict("a", "pass"), *more], end=end)
        found = judged(tmp_path / "base", tmp_path / name)
        assert found.code is Exit.INCONCLUSIVE
        assert "1 run of the head cut short" in markdown(found)
    write_run(tmp_path / "whole", 60, [verdict("a", "pass")])
    assert judged(tmp_path / "base", tmp_path / "whole").code is Exit.PASS


def test_verdicts_are_matched_across_versions_of_an_engine(tmp_path):
    def reported(target: str, word: str):
        outcome = {"pass": "FIXED", "fail": "FAILED"}[word]
        replayed = Replayed(target=target, path="corpus/x.log", outcome=outcome)
        return [verdict("a", word, target=target), replayed]

    write_run(tmp_path / "base", 0, [*reported("vllm==1", "pass"), sample(1.0, target="vllm==1")])
    write_run(tmp_path / "head", 60, [*reported("vllm==2", "fail"), sample(1.0, target="vllm==2")])
    found = judged(tmp_path / "base", tmp_path / "head")
    assert {(c.subject.kind, c.subject.target) for c in found.verdicts} == {
        ("property", "vllm"),
        ("op log", "vllm"),
    }
    assert (found.code, found.only_base, found.only_head) == (Exit.FAILURE, 0, 0)
    events = [sample(1.0, target="vllm==2"), sample(1.0, target="vllm==3")]
    write_run(tmp_path / "two", 90, events)
    keys = series_of([read_run(tmp_path / "two")])
    assert {key.subject for key in keys} == {"vllm==2", "vllm==3"}


def test_clocks_that_differ_explain_any_time(tmp_path):
    def cell(factor, mhz):
        times = [factor * x * 1e-5 for x in NOISE]
        return Cell(
            kernel="k",
            provider="p",
            case={"page": 16},
            outcome="ok",
            samples=times,
            clocks={"sm_mhz": mhz},
        )

    write_run(tmp_path / "base", 0, [cell(1, 1980.0)])
    write_run(tmp_path / "head", 60, [cell(1.5, 1200.0)])
    write_run(tmp_path / "slow", 60, [cell(1.5, 1975.0)])
    (row,) = judged(tmp_path / "base", tmp_path / "head").rows
    assert (row.change, row.reason) == ("inconclusive", "the GPU ran at 1980 MHz, then at 1200 MHz")
    assert judged(tmp_path / "base", tmp_path / "slow").rows[0].change == "slower"


def test_nothing_in_common_is_refused(tmp_path):
    write_run(tmp_path / "base", 0, [sample(1.0)])
    write_run(tmp_path / "head", 60, [verdict("a", "pass")])
    with pytest.raises(UsageError, match="no figure and no verdict in common"):
        judged(tmp_path / "base", tmp_path / "head")
    with pytest.raises(UsageError, match="is on both sides"):
        judged(tmp_path / "base", tmp_path / "base")


def test_the_command_writes_all_three_files_and_a_step_summary(tmp_path):
    in_turns(tmp_path, 1.25)
    summary = tmp_path / "summary.md"
    done = here(
        "compare", "base", "head", "--output", "out", cwd=tmp_path, GITHUB_STEP_SUMMARY=str(summary)
    )
    assert done.code == 4, done
    assert "SLOWER" in done.out
    reported = msgspec.json.decode((tmp_path / "out" / "comparison.json").read_bytes())
    assert reported["exit_code"] == 4
    assert {row["change"] for row in reported["rows"]} >= {"slower", "same"}
    page = Page((tmp_path / "out" / "comparison.html").read_text())
    assert page.tags <= TAGS
    assert "CPU time per token" in " ".join(page.text)
    assert summary.read_text() == (tmp_path / "out" / "comparison.md").read_text()


def test_a_baseline_stands_for_its_runs(tmp_path):
    in_turns(tmp_path, 1.0)
    done = here("baseline", "save", "base", "--name", "night", cwd=tmp_path)
    assert (done.code, "10 runs" in done.out) == (0, True), done
    assert here("compare", "night", "head", cwd=tmp_path).code == 0
    again = ("baseline", "save", "head", "--name", "night")
    refused(here(*again, cwd=tmp_path), "exists", "--replace")
    assert here(*again, "--replace", cwd=tmp_path).code == 0
    refused(here("baseline", "save", "base", "--name", "../x", cwd=tmp_path), "is no name", "dots")
    refused(here("compare", "nobody", "head", cwd=tmp_path), "or a saved baseline", "baseline save")


def test_a_baseline_counts_a_run_once_however_often_it_is_named(tmp_path):
    in_turns(tmp_path, 1.0, runs=2)
    (tmp_path / "base" / "latest").symlink_to("01")
    (tmp_path / "elsewhere").symlink_to("base")
    named = ("base/00", "base/01", "base/latest", "base", "elsewhere")
    done = here("baseline", "save", *named, "--name", "night", cwd=tmp_path)
    assert (done.code, "2 runs" in done.out) == (0, True), done


def test_thresholds_come_from_the_settings_file(tmp_path):
    in_turns(tmp_path, 1.25)
    settings = "[compare.threshold]\ncpu_per_token = 0.4\np50 = 0.4\np99 = 0.4\n"
    (tmp_path / "kvproof.toml").write_text(settings)
    assert here("compare", "base", "head", cwd=tmp_path).code == 0
    (tmp_path / "kvproof.toml").write_text("[compare]\nalpha = 2.0\n")
    refused(here("compare", "base", "head", cwd=tmp_path), "compare.alpha")
    (tmp_path / "kvproof.toml").write_text("[compare.threshold]\np90 = 0.4\n")
    refused(here("compare", "base", "head", cwd=tmp_path), "compare.threshold.p90", "p99")


def test_foreign_text_stays_text(tmp_path):
    bad = "<script>alert(1)</script>|\x1b[31m"
    write_run(tmp_path / "base", 0, [verdict(bad, "pass")])
    write_run(tmp_path / "head", 60, [verdict(bad, "fail")])
    found = judged(tmp_path / "base", tmp_path / "head")
    assert "<script>" not in html(found) + markdown(found)
    assert "\x1b" not in html(found) + markdown(found)
