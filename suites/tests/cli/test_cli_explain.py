"""`kvproof explain`: op logs, runs, and what is neither."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.harness.records.events import AnyEvent, Ended, Explained
from kvproof.harness.records.run_directory import Run, RunWriter, read_run
from kvproof.reports.render.html import render_html
from kvproof.reports.render.markdown import render_markdown
from kvproof.suites.tests.cli.cli_kit import here, refused
from kvproof.suites.tests.reports.report_kit import HOSTILE, recorded_run, with_events

BENCH = "bench --target reference --workload multi-turn:requests=40 --repetitions 1"
SMALL = "--case no_eviction --block-size 16 --no-growth --verify-tokens 60000"


def op_log(path: Path, **changes: Any) -> Path:
    operations = []
    for number in range(2):
        request = {"id": f"r{number}", "tokens": [1, 2, 3, 4, 5]}
        operations += [{"op": "admit", "request": request}, {"op": "complete"}]
    log = {
        "target": "reference",
        "property": "reads_return_own_content",
        "config": {"num_blocks": 9, "block_size": 3},
        "operations": operations,
    }
    path.write_text(json.dumps(log | changes))
    return path


def test_an_op_log_is_explained_request_by_request(tmp_path: Path) -> None:
    log = op_log(tmp_path / "log.json")
    ended = here("explain", str(log), cwd=tmp_path)
    assert ended.code == 0, ended.err
    lines = ended.out.splitlines()
    assert lines[:2] == [
        "r0: hit nothing: no token of it was computed and stored before",
        "r1: hit 3 of 4 reusable tokens: 1 lost because hits are whole units of 3 tokens",
    ]
    assert "alignment to whole units       1  25.0 %" in ended.out
    one = here("explain", str(log), "--request", "r1", cwd=tmp_path)
    assert one.out.splitlines()[0] == lines[1]


def test_a_bench_run_is_explained(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = here(*BENCH.split(), *SMALL.split(), "--output", str(run), cwd=tmp_path)
    assert ended.code == 0, ended.err
    reported = [event for event in read_run(run).events if isinstance(event, Explained)]
    assert len(reported) == 40
    assert all(sum(each.lost.values()) == each.optimum - each.hit for each in reported)
    out = here("explain", str(run), cwd=tmp_path).out
    assert (
        sum(" reusable tokens" in line or "hit nothing" in line for line in out.splitlines()) > 40
    )
    for text in ((run / "report.html").read_text(), (run / "report.md").read_text()):
        assert "Why hits were not longer" in text
        assert f"{sum(each.hit for each in reported):,}" in text


@pytest.mark.parametrize(
    ("record", "message", "hint"),
    [
        ("nothing.json", "cannot read op log", "name an op log"),
        ("empty", "is not a run directory", "give the directory"),
        ("text.json", "is no op log", "record one with"),
        ("part.json", "is a log of the suite 'hits'", "kvproof replay"),
        ("none.json", "it has no operations", "record one with"),
        ("idle.json", "admits no request on the reference", "name the log of a failure"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, record: str, message: str, hint: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.json").write_text("hello")
    part = {"suite": "hits", "target": "reference", "property": "p", "config": {}}
    part["operations"] = [{"op": "look_up"}]
    (tmp_path / "part.json").write_text(json.dumps(part))
    op_log(tmp_path / "none.json", operations=[])
    op_log(tmp_path / "idle.json", operations=[{"op": "complete"}])
    refused(here("explain", record, cwd=tmp_path), message, hint)


def test_an_unknown_request_and_a_run_without_explanations(tmp_path: Path) -> None:
    log = op_log(tmp_path / "log.json")
    refused(
        here("explain", str(log), "--request", "r11", cwd=tmp_path),
        "there is no request 'r11' in the record",
        "did you mean 'r1'?",
    )
    RunWriter(tmp_path / "run", recorded_run().manifest).close()
    refused(here("explain", "run", cwd=tmp_path), "explains no request", "kvproof bench")


def explained(**changes: Any) -> Explained:
    event = Explained(
        target="reference",
        workload="w",
        block_size=16,
        num_blocks=9,
        request="r0",
        prompt=100,
        hit=32,
        optimum=90,
        lost={"alignment": 10, "eviction": 48},
        sentence="hit 32 of 90",
    )
    return msgspec.structs.replace(event, **changes)


def report_of(*events: AnyEvent) -> Run:
    run = recorded_run()
    return with_events(run, [*run.events, *events])


def test_reports_sum_over_the_run() -> None:
    run = report_of(explained(), explained(request="r1", lost={"alignment": 58}))
    for text in (render_html(run), render_markdown(run)):
        assert "64 of 180 reusable tokens hit (35.6 %)" in text
        assert "alignment to whole units" in text
        assert "eviction" in text


def test_a_resumed_run_counts_once(tmp_path: Path) -> None:
    stopped = Ended(verdict="interrupted", exit_code=130, sentence="interrupted", seconds=1.0)
    run = report_of(explained(), stopped, explained())
    assert "32 of 90 reusable tokens hit" in render_markdown(run)
    writer = RunWriter(tmp_path / "run", run.manifest)
    for event in (explained(), stopped, explained()):
        writer.write(event)
    writer.close()
    ended = here("explain", "run", cwd=tmp_path)
    assert "32 of 90 reusable tokens hit" in ended.out


def test_limits_of_newer_code_and_hostile_names_are_shown_as_text() -> None:
    run = report_of(explained(target=HOSTILE, workload=HOSTILE, lost={HOSTILE: 58}))
    assert "<img" not in render_html(run)
    assert "<img" not in render_markdown(run)


def test_a_run_without_explanations_says_nothing_about_them() -> None:
    run = recorded_run()
    silent = with_events(run, [e for e in run.events if not isinstance(e, Explained)])
    assert "Why hits were not longer" in render_html(run)
    assert "Why hits were not longer" not in render_html(silent)
