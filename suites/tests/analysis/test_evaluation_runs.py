"""Evaluations as runs: compared, merged, over time, in JUnit, and after a server was made good."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kvproof.eval.run.records import ServerDied
from kvproof.eval.verdict.evaluated import EXITS, Evaluated, Judged, Table, Verdict
from kvproof.eval.verdict.measured import Measured
from kvproof.harness.analysis.history import history, read_history
from kvproof.harness.records.events import AnyEvent, Ended, PropertyVerdict
from kvproof.harness.records.resume import once
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.settings import Thresholds
from kvproof.reports.model.evaluation import evaluations_of
from kvproof.reports.render.html import render_html
from kvproof.reports.render.junit import render_junit
from kvproof.suites.tests.analysis.test_compare import verdict as other_verdict
from kvproof.suites.tests.analysis.test_compare import write_run
from kvproof.suites.tests.cli.cli_kit import here, refused

SERVER = Measured(
    configuration="on", model="m", engine="vllm", version="0.33.0", prefix_cache=True,
    settings={"block": 16}, command=("vllm", "serve"), url="http://127.0.0.1:8000/v1",
)  # fmt: skip


def judged(verdict: Verdict = "pass", wrong: float = 0.0, **other: Any) -> Evaluated:
    row = Judged(
        target="on", part="warm", sentence="no answer is lost against off", verdict=verdict,
        reasons=("9 answers lost",) if verdict != "pass" else (), pairs=48,
        figures={"wrong_answers": wrong},
    )  # fmt: skip
    fields: dict[str, Any] = {
        "benchmark": "longbench_v2", "title": "Synthetic data", "lines": ("48 samples",),
        "servers": (SERVER,), "rows": (row,), "verdict": verdict, "sentence": "no difference",
        "tables": (Table("Accuracy", ("configuration", "right"), (("on", "47/48"),), 1),),
        "summary": {},
    }  # fmt: skip
    return Evaluated(**(fields | other))


def write(place: Path, second: int, found: Evaluated) -> Path:
    code = EXITS[found.verdict]
    end = Ended(verdict=found.verdict, exit_code=code, sentence=found.sentence, seconds=1.0)
    return write_run(place, second, list(found.events()), verb="eval", end=end)


@pytest.mark.parametrize(
    ("before", "after", "code"), [("pass", "fail", 1), ("fail", "pass", 0), ("pass", "pass", 0)]
)
def test_verdicts_are_compared_and_figures_are_not(
    tmp_path: Path, before: Verdict, after: Verdict, code: int
) -> None:
    write(tmp_path / "base", 0, judged(before, wrong=0.0))
    write(tmp_path / "head", 60, judged(after, wrong=0.5))
    done = here("compare", "base", "head", cwd=tmp_path)
    assert done.code == code, done
    assert ("longbench_v2_warm" in done.out) == (before != after)
    assert "share of wrong answers" not in done.out


def test_benchmarks_are_merged_and_one_benchmark_twice_is_not(tmp_path: Path) -> None:
    write(tmp_path / "1", 0, judged("fail"))
    write(tmp_path / "2", 9, judged(benchmark="divergence", title="Divergence per token"))
    done = here("merge", "1", "2", "--output", "whole", cwd=tmp_path)
    assert done.code == 1, done
    page = (tmp_path / "whole" / "report.html").read_text()
    assert page.count("<h3>Accuracy</h3>") == 2
    assert "Divergence per token" in page
    write(tmp_path / "3", 18, judged())
    again = here("merge", "1", "3", "--output", "both", cwd=tmp_path)
    refused(again, "both evaluated longbench_v2", "kvproof compare")


def test_a_history_has_figures_and_verdicts_of_evaluations(tmp_path: Path) -> None:
    for number, word in enumerate(("pass", "pass", "fail")):
        write(tmp_path / str(number), number, judged(word, wrong=number / 10))  # type: ignore[arg-type]
    runs, unreadable = read_history(tmp_path)
    found = history(runs, Thresholds())
    assert not unreadable
    (trend,) = found.trends
    assert (trend.key.metric, [p.value for p in trend.points]) == ("wrong_answers", [0.0, 0.1, 0.2])
    (strip,) = found.verdicts
    assert strip.name == "on: longbench_v2_warm"
    assert [outcome for _, _, outcome in strip.spans] == ["pass", "fail"]


def test_junit_has_a_case_for_every_row_and_the_doubts_of_the_run(tmp_path: Path) -> None:
    doubtful = judged("fail", doubts=("no floor",))
    root = ET.fromstring(render_junit(read_run(write(tmp_path / "run", 0, doubtful))))
    cases = {case.get("name"): case for case in root.iter("testcase")}
    failure = cases["longbench_v2_warm"].find("failure")
    assert failure is not None
    assert failure.get("message") == "9 answers lost"
    assert "no floor" in "".join(cases["longbench_v2"].itertext())


def test_a_server_that_was_made_good_leaves_no_failure(tmp_path: Path) -> None:
    death = ServerDied(configuration="on", message="the server ended", log="boom\n<b>")
    first = list(judged("fail", deaths=(death,)).events())
    assert _servers(first) == ["fail"]
    page = render_html(read_run(write_run(tmp_path / "dead", 0, first, verb="eval")))
    assert "What the server of on wrote last" in page
    assert "&lt;b&gt;" in page
    both = once([*first, *judged(revived=("on",)).events()])
    assert _servers(both) == ["pass"]
    assert [table.title for table in evaluations_of(both)[0].tables] == ["Accuracy"]


def _servers(events: list[AnyEvent]) -> list[str]:
    return [
        event.verdict
        for event in events
        if isinstance(event, PropertyVerdict) and event.property == "longbench_v2_server"
    ]


def test_an_evaluation_of_0_14_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "base", 0, [other_verdict("a", "pass")])
    old = write_run(tmp_path / "head", 60, [], verb="eval", end=None)
    (old / "events.jsonl").unlink()
    for command in (("compare", "base", "head"), ("report", "head")):
        done = here(*command, cwd=tmp_path)
        refused(done, "an evaluation of version 0.14 or older", "the kvproof that wrote it")
