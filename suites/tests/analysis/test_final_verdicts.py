"""Which verdict of a resumed run counts: one rule, and every site that needs one uses it."""

from __future__ import annotations

import io
import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from kvproof.harness.analysis.history import history
from kvproof.harness.analysis.merge import merge
from kvproof.harness.analysis.verdicts import outcomes
from kvproof.harness.cli.runs import run_directory
from kvproof.harness.pytest_plugin import Broken, Verdict
from kvproof.harness.records.events import AnyEvent, Ended, PropertyVerdict, Replayed
from kvproof.harness.records.resume import final_verdicts, once
from kvproof.harness.records.run_directory import Run, RunWriter, read_run
from kvproof.harness.settings import Thresholds
from kvproof.reports.model.build import build
from kvproof.suites.tests.analysis.test_compare import checked, verdict, write_run
from kvproof.suites.tests.analysis.test_merge import failure

PASS = verdict("a", "pass")
PROVEN = replace(verdict("a", "fail"), fingerprint="f1")
UNMET = replace(verdict("a", "fail"), reason="it was expected to fail and did not")
LACKING = verdict("a", "inconclusive")
KNOWN = verdict("a", "expected_failure")
STOPPED = Ended(verdict="interrupted", exit_code=130, sentence="interrupted", seconds=1.0)

HISTORIES: dict[str, tuple[list[AnyEvent], str, int]] = {
    "a failure with a reproducer stays": ([PROVEN, STOPPED, PASS], "fail", 1),
    "a failure without one is judged anew": ([UNMET, STOPPED, KNOWN], "expected_failure", 0),
    "the last verdict counts": ([LACKING, STOPPED, PASS], "pass", 0),
    "also if it is worse": ([PASS, STOPPED, LACKING], "inconclusive", 3),
    "a recorded failure lets nothing pass": ([failure("f1", 0), STOPPED, PASS], "fail", 1),
    "nor leaves it open": ([failure("f1", 0), STOPPED, LACKING], "fail", 1),
    "a known failure stays known": ([failure("f1", 0), KNOWN], "expected_failure", 0),
}
by_history = pytest.mark.parametrize(
    ("events", "word", "code"), HISTORIES.values(), ids=HISTORIES.keys()
)


@by_history
def test_the_rule(events: list[AnyEvent], word: str, code: int) -> None:
    (found,) = final_verdicts(events)
    assert found.verdict == word
    assert [each for each in once(events) if isinstance(each, PropertyVerdict)] == [found]
    assert [type(each) for each in once(events) if not isinstance(each, PropertyVerdict)] == [
        type(each) for each in events if not isinstance(each, PropertyVerdict)
    ]


def test_suites_and_targets_are_judged_apart() -> None:
    other = replace(PROVEN, suite="hits")
    foreign = replace(PROVEN, target="vllm")
    found = final_verdicts([other, foreign, PASS])
    assert [(each.target, each.suite, each.verdict) for each in found] == [
        ("reference", "hits", "fail"),
        ("vllm", "cache", "fail"),
        ("reference", "cache", "pass"),
    ]


def test_a_failed_check_stays_failed() -> None:
    assert once([checked("fail"), STOPPED, checked("pass")]) == [STOPPED, checked("fail")]
    assert once([checked("inconclusive"), checked("pass")]) == [checked("pass")]


def resumed(tmp_path: Path, events: list[AnyEvent], *, verb: str = "fuzz") -> tuple[Run, int]:
    """Record the parts of a run as the command does; its records and its exit code."""
    parts: list[list[AnyEvent]] = [[]]
    for event in events:
        if isinstance(event, Ended):
            parts.append([])
        else:
            parts[-1].append(event)
    console, code = Console(file=io.StringIO()), 0
    for part in parts:
        with run_directory(verb, config={}, output=tmp_path / "run", console=console) as active:
            for event in part:
                active.write(event)
            if part is not parts[-1]:
                raise KeyboardInterrupt
        code = int(active.exit_code)
    return read_run(tmp_path / "run"), code


@by_history
def test_all_sites_agree(tmp_path: Path, events: list[AnyEvent], word: str, code: int) -> None:
    run, ended = resumed(tmp_path, events)
    assert ended == code, "exit code"
    banner = {0: "PASS", 1: "FAIL", 3: "INCONCLUSIVE"}
    report = build(run)
    assert report.outcome.word == banner[code], "banner"
    assert [cell.verdict for row in report.rows for cell in row.cells.values()] == [word], "row"
    (outcome,) = (o for s, o in outcomes([run]).items() if s.kind == "property")
    assert outcome.verdict == word, "compare"
    (strip,) = history([run], Thresholds()).verdicts
    assert strip.spans == ((0, 0, word),), "history"
    merged = [e for e in merge([run]).events if isinstance(e, PropertyVerdict)]
    assert [event.verdict for event in merged] == [word], "merge"
    expected = history([run], Thresholds()).expected
    assert bool(expected) == (word == "expected_failure"), "expected failures of the history"


class Parent:
    """A suite of the plugin with these events recorded."""

    problem = ""
    directory = None

    def __init__(self, events: list[AnyEvent]) -> None:
        self.events = events

    def of(self, kind: type) -> list[AnyEvent]:
        return [event for event in self.events if isinstance(event, kind)]


@by_history
def test_the_pytest_plugin_agrees(events: list[AnyEvent], word: str, code: int) -> None:
    item = object.__new__(Verdict)
    item.name, item.parent = "a", Parent(events)
    if word == "pass":
        item.runtest()
        return
    raised = pytest.xfail.Exception if word == "expected_failure" else Broken
    with pytest.raises(raised) as reported:
        item.runtest()
    assert word != "fail" or "it broke" in str(reported.value) or "because" in str(reported.value)


def test_a_record_of_0_13_that_took_a_failure_back_is_no_pass(tmp_path: Path) -> None:
    closed = Ended(verdict="pass", exit_code=0, sentence="1 pass", seconds=1.0)
    write_run(tmp_path / "old", 0, [PROVEN, STOPPED, PASS], end=closed)
    report = build(read_run(tmp_path / "old"))
    assert report.outcome.word == "FAIL"
    assert len(report.verdicts("fail")) == 1
    assert "1 property fails: a" in report.outcome.sentence


def test_times_go_on_when_a_run_is_resumed(tmp_path: Path) -> None:
    manifest = read_run(write_run(tmp_path / "other", 0, [])).manifest
    first = RunWriter(tmp_path / "run", manifest)
    first._start -= 1.2  # as if it had worked for that long
    first.write(PASS)
    first.close()
    second = RunWriter(tmp_path / "run", manifest)
    second.write(PASS)
    before, after = (event.at for event in read_run(tmp_path / "run").events)
    assert 1.2 <= before <= after < 60
    assert second.seconds >= after
    second.close()


def test_the_length_of_a_resumed_run_is_that_of_all_parts(tmp_path: Path) -> None:
    run, _ = resumed(tmp_path, [PASS, STOPPED, PASS])
    times = [event.at for event in run.events]
    assert times == sorted(times)
    assert run.ended is not None
    assert run.ended.seconds == pytest.approx(times[-1], abs=0.05)


def test_parts_of_0_13_that_each_count_from_zero_are_put_in_a_row(tmp_path: Path) -> None:
    place = write_run(tmp_path / "run", 0, [PASS], end=None)
    lines = (place / "events.jsonl").read_text().splitlines()
    parts = [lines[0].replace(lines[0].split('"at":')[1].split(",")[0], at) for at in
             ("1.0", "1.2", "0.201", "0.5", "0.1")]  # fmt: skip
    (place / "events.jsonl").write_text("\n".join(parts) + "\n")
    run = read_run(place)
    assert [event.at for event in run.events] == [1.0, 1.2, 1.401, 1.7, 1.8]
    assert build(run).seconds == 1.8


def test_a_run_that_0_13_wrote_interrupted_and_resumed_is_read(tmp_path: Path) -> None:
    """Written by `kvproof run --budget debug` of commit fe4a948, ended by SIGTERM and repeated."""
    place = tmp_path / "run"
    shutil.copytree(Path(__file__).parent / "run_of_0_13", place)
    lines = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
    assert any(b["at"] < a["at"] for a, b in pairwise(lines)), "each part counts from 0"
    run = read_run(place)
    assert (run.torn, run.manifest.versions["kvproof"]) == (0, "0.13.0")
    assert [event.at for event in run.events] == sorted(event.at for event in run.events)
    report = build(run)
    assert report.outcome.word == "INCONCLUSIVE"
    assert report.seconds == run.events[-1].at > lines[-1]["seconds"]
    judged = final_verdicts(run.events)
    assert {event.verdict for event in judged} == {"pass", "inconclusive"}
    assert len(judged) == len({event.property for event in judged}) > 30
    assert history([run], Thresholds()).verdicts
    merged = [e for e in merge([run]).events if isinstance(e, PropertyVerdict)]
    assert {e.property: e.verdict for e in merged} == {e.property: e.verdict for e in judged}


def test_a_failed_log_leads_where_no_property_fails(tmp_path: Path) -> None:
    """The headline of a failed run began with "1 property inconclusive"."""
    log = Replayed(target="reference", path="a.json", outcome="FAILED", message="it fails")
    run, code = resumed(tmp_path, [LACKING, log])
    assert code == 1
    assert run.ended is not None
    assert run.ended.sentence.startswith("1 log FAILED; 1 property inconclusive")
