"""`kvproof faults` as a user runs it: the kill matrix, its records, its exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import settings
from msgspec.structs import replace

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.cli.actions.faults import conclude
from kvproof.harness.errors import ANSWERS
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.records.events import HarnessFault, Skipped
from kvproof.harness.records.fault_events import FaultJudged, FaultsConcluded, FaultsStarted, Kill
from kvproof.harness.records.run_directory import Manifest, Run, read_run
from kvproof.reports.model.faults import (
    describe,
    kills_table,
    matrix_of,
    mechanisms_table,
    modules_table,
)
from kvproof.reports.render.html import render_html
from kvproof.reports.render.markdown import render_markdown
from kvproof.suites.faults.alone import TOLERATED, shadow_alone
from kvproof.suites.faults.catalogue import find
from kvproof.suites.faults.child import FAILS_WITHOUT
from kvproof.suites.faults.verdict import CRASH, HANG, judged
from kvproof.suites.faults.worker_pool import FaultProgress, WorkerCrashed, judge_faults
from kvproof.suites.runner.levels import suites
from kvproof.suites.tests.cli.cli_kit import kvproof
from kvproof.suites.tests.framework.suite_faults import UNSHRUNK

ALONE = ("faults", "--alone", "--only", "refusal_leaks")
"""By the property that the catalogue names."""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    return folder, kvproof(*ALONE, "--output", "run", cwd=folder)


@pytest.mark.nightly(reason="its parts are tested fast")
@pytest.mark.slow(reason="finds planted faults by exploration")
def test_a_fault_is_found_and_the_matrix_says_how(ran):
    folder, done = ran
    assert done.code == 0, done.out + done.err
    assert "refusal_leaks" in done.out
    assert "1 of 1 fault found (100.0 %)" in done.out
    (event,) = [e for e in read_run(folder / "run").events if isinstance(e, FaultJudged)]
    assert event.outcome == "killed"
    assert (event.kill.property, event.kill.suite) == ("refusal_changes_nothing", "cache")
    assert 0 < event.kill.cases < 200
    assert 0 < event.kill.size < 10
    assert event.bugs == ["vllm-18"]


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="finds planted faults by exploration")
def test_the_reports_have_the_matrix(ran):
    folder, _ = ran
    html = (folder / "run" / "report.html").read_text()
    markdown = (folder / "run" / "report.md").read_text()
    for text in (html, markdown):
        assert "Planted faults" in text
        assert "refusal" in text
        assert "metamorphic pair" in text
    assert 'href="#faults"' in html


def test_the_script_fails_with_the_fault_and_passes_without(ran):
    folder, _ = ran
    (event,) = [e for e in read_run(folder / "run").events if isinstance(e, FaultJudged)]
    script = str(folder / "run" / event.kill.script_path)
    planted = [sys.executable, "-m", "kvproof.suites.faults", "refusal_leaks", script]
    broken = subprocess.run(planted, capture_output=True, text=True, check=False)
    assert broken.returncode == 1, broken.stderr
    assert event.kill.sentence in broken.stderr
    assert subprocess.run([sys.executable, script], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("refusal_laeks", "x.py"), "did you mean 'refusal_leaks'?"),
        (("refusal_leaks",), "usage: python -m kvproof.suites.faults NAME"),
    ],
)
def test_nothing_is_planted_for_a_typing_error(arguments, reported):
    planted = [sys.executable, "-m", "kvproof.suites.faults", *arguments]
    done = subprocess.run(planted, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert reported in done.stderr


def test_a_complete_run_is_not_begun_again(ran):
    folder, _ = ran
    again = kvproof(*ALONE, "--output", "run", cwd=folder)
    assert again.code == 2
    assert "it is complete" in again.err


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (("--only", "nothing"), "no fault matches --only 'nothing'"),
        (("--workers", "0"), "--workers 0 must be at least 1"),
        (("--budget", "debug"), "debug"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path, arguments, reported):
    done = kvproof("faults", *arguments, cwd=tmp_path)
    assert done.code == 2
    assert reported in done.err
    assert not [*tmp_path.iterdir()]


def test_the_catalogue_is_listed(tmp_path):
    done = kvproof("faults", "--list", "--only", "blocks", cwd=tmp_path)
    assert done.code == 0
    assert "stale_epoch" in done.out
    assert "vllm-29" in done.out
    assert not [*tmp_path.iterdir()]


def reports(*names, limit=600.0, directory):
    found = judge_faults(
        [find(name) for name in names],
        budget="pr",
        seed=None,
        directory=directory,
        workers=1,
        limit=limit,
    )
    return [report for report in found if not isinstance(report, FaultProgress)]


def test_a_fault_that_does_not_end_counts_as_one_that_hangs(tmp_path):
    (event,) = reports("refusal_leaks", limit=0.05, directory=tmp_path)
    assert isinstance(event, FaultJudged)
    assert (event.outcome, event.kill.oracle) == ("killed", HANG)


def test_a_fault_that_does_not_fit_is_a_fault_of_kvproof(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "kvproof.suites.faults.worker_pool.Job", lambda name, *rest: ("gone", *rest)
    )
    (event,) = reports("refusal_leaks", directory=tmp_path)
    assert isinstance(event, WorkerCrashed)
    assert event.message


SAID = 'print(\'{"event":"said","suite":"kernels","done":7}\', flush=True)'
ENDS = [
    (f"{SAID}; import os; os.abort()", (8, "the worker was killed by SIGABRT")),
    (f"{SAID}; import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None),
    ("import os; os.abort()", None),
    (f"{SAID}; raise SystemExit(1)", None),
]
"""What the process of a fault does -> test cases and sentence, if the fault counts as found."""


@pytest.mark.parametrize(("does", "found"), ENDS)
def test_memory_damaged_while_it_is_judged_is_the_faults_doing(tmp_path, monkeypatch, does, found):
    monkeypatch.setattr("kvproof.suites.faults.worker_pool.COMMAND", (sys.executable, "-c", does))
    (event,) = reports("padding_row_copied", directory=tmp_path)
    if found is None:
        assert isinstance(event, WorkerCrashed)
        return
    assert (event.outcome, event.kill.oracle, event.kill.suite) == ("killed", CRASH, "kernels")
    assert (event.kill.property, event.kill.cases, event.kill.sentence) == (ANSWERS, *found)


@pytest.mark.nightly(reason="another fault goes through the verb")
@pytest.mark.slow(reason="finds planted faults by exploration")
def test_a_soundness_fault_is_seen_by_a_shadow_memory_alone(tmp_path):
    (event,) = reports("double_free", directory=tmp_path)
    assert event.kill.oracle == "invariant"
    assert event.shadow.oracle == "shadow memory"
    assert "reads position" in event.shadow.sentence  # a property of what was read, by its cause
    assert event.shadow.size > 1


@pytest.mark.nightly(reason="minutes; `.ci/run` judges the reference by all oracles")
@pytest.mark.slow(reason="finds planted faults by exploration")
def test_the_shadow_memory_alone_sees_nothing_wrong_in_the_reference():
    handle = InProcessHandle("reference", make_target)
    (suite, *_) = suites(handle, "full")
    with shadow_alone():
        seen = suite.explore(settings(UNSHRUNK, max_examples=70), tolerate=TOLERATED)
    assert (seen.violation, seen.died, dict(seen.tolerated)) == (None, None, {})
    assert seen.checks["expert_rows_are_those_of_a_fresh_run"]


def kill(oracle="invariant", **more):
    reported = {"suite": "cache", "property": "usage_adds_up", "sentence": "it does not", **more}
    return Kill(oracle=oracle, cases=3, seconds=0.5, size=2, **reported)


SEEN = judged(find("double_free"), kill(), shadow=kill("shadow memory"))
UNSEEN = judged(find("lost_reference"), kill())
COUNTED = judged(find("refusal_leaks"), kill())
SURVIVOR = judged(find("hit_evicted"), None, reason="ran: cache", cases=200)
LEFT_OUT = judged(find("hit_evicted"), None, reason=FAILS_WITHOUT, left_out=True)


WITHOUT = "left out, as the engine fails without them, too: hit_evicted"


@pytest.mark.parametrize(
    ("events", "allowed", "expected", "verdict", "reported"),
    [
        ([SEEN, COUNTED], 0, 2, "pass", ""),
        ([SEEN, SURVIVOR], 0, 2, "fail", "1 survived, 0 may: hit_evicted"),
        ([SEEN, SURVIVOR], 1, 2, "pass", "1 survived, 1 may: hit_evicted"),
        ([SEEN, UNSEEN], 1, 2, "fail", "no shadow memory saw lost_reference"),
        ([SEEN], 0, 2, "inconclusive", "1 of 2 faults were judged"),
        ([SEEN, LEFT_OUT], 0, 1, "pass", WITHOUT),
        ([SEEN, LEFT_OUT], 0, 2, "inconclusive", f"1 of 2 faults were judged; {WITHOUT}"),
        ([SURVIVOR, judged(find("hit_evicted"), kill("shadow memory"), shadow=kill())], 0, 1,
         "pass", ""),
    ],
)  # fmt: skip
def test_the_verdict(events, allowed, expected, verdict, reported):
    found = conclude(events, allowed=allowed, expected=expected)
    assert (found.verdict, found.reason) == (verdict, reported)


def run_of(tmp_path, *events):
    started = FaultsStarted(budget="pr", planned=4, allowed=0)
    return Run(
        directory=tmp_path,
        manifest=Manifest(
            id="x",
            verb="faults",
            command=["kvproof"],
            started="",
            config={},
            versions={},
            hardware={},
        ),
        events=[started, *events],
    )


def test_survivors_and_what_no_shadow_memory_saw_stand_out(tmp_path):
    matrix = matrix_of(run_of(tmp_path, SEEN, UNSEEN, COUNTED, SURVIVOR).events)
    assert [each.fault for each in matrix.survivors] == ["hit_evicted"]
    assert [each.fault for each in matrix.unseen] == ["lost_reference"]
    first, *_ = kills_table(matrix).rows
    assert first[0] == "blocks: hit_evicted"
    assert "SURVIVED" in first
    cells = [cell for row in kills_table(matrix).rows for cell in row]
    assert "NOT SEEN" in cells
    (row,) = mechanisms_table(matrix).rows
    assert row == ("blocks", "invariant 3", "4", "3", "3", "3", "0.5", "0.5")
    assert "3 of 4 faults found (75.0 %)" in matrix.sentence
    assert "found 1 of 2 that it has to" in matrix.sentence
    assert "first failure: median 500 ms, p90 500 ms; 3 and 3 test cases" in matrix.sentence


@pytest.mark.parametrize("source", ["", "3 faults drawn over 9 executed lines"])
def test_a_fault_that_is_left_out_counts_neither_as_found_nor_as_a_survivor(tmp_path, source):
    _, *events = run_of(tmp_path, SEEN, COUNTED, LEFT_OUT).events
    started = FaultsStarted(budget="pr", planned=3, allowed=0, source=source)
    matrix = matrix_of([started, *events])
    assert matrix.survivors == []
    assert "2 of 2 faults found (100.0 %" in matrix.sentence
    assert "1 fault left out: the engine fails without it, too" in matrix.sentence
    assert "left out" in [row[3] for row in kills_table(matrix).rows]
    counted = [row[1:3] for row in modules_table(matrix).rows]
    assert sum(int(of) for of, _ in counted) == sum(int(found) for _, found in counted) == 2
    verdict, line = describe(LEFT_OUT)
    assert (verdict, line) == ("", "hit_evicted is left out: the engine fails without it, too")


def test_seconds_to_the_first_failure_are_ranks(tmp_path):
    slow = replace(SEEN, fault="slow", kill=replace(SEEN.kill, seconds=9.0, cases=40))
    matrix = matrix_of(run_of(tmp_path, SEEN, UNSEEN, COUNTED, slow).events)
    (row,) = mechanisms_table(matrix).rows
    assert row[-2:] == ("0.5", "9.0")
    assert "median 500 ms, p90 9.00 s; 3 and 40 test cases" in matrix.sentence


def test_reports_of_unfinished_runs_render(tmp_path):
    run = run_of(
        tmp_path,
        SURVIVOR,
        HarnessFault(where="fault x", message="broken"),
        Skipped(part="fault y", reason="no torch"),
        FaultsConcluded(verdict="fail", reason="<b>1 survived</b>", outcomes={}),
    )
    assert "<b>1 survived</b>" not in render_html(run)
    assert "SURVIVED" in render_markdown(run)
