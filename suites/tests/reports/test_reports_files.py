"""Reports become files: where they go, JUnit, and the summary of a CI step."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import AnyEvent, Ended, PropertyVerdict, Replayed
from kvproof.harness.records.fault_events import FaultsConcluded
from kvproof.harness.records.run_directory import Run
from kvproof.harness.records.sweep_events import Slower, SweepConcluded
from kvproof.reports.render import html
from kvproof.reports.render.junit import render_junit
from kvproof.reports.render.markdown import append_step_summary
from kvproof.reports.render.render import render
from kvproof.suites.tests.reports.report_kit import (
    recorded_run,
    terminal_text,
    with_events,
)


@pytest.fixture(scope="module")
def run() -> Run:
    return recorded_run()


def test_render_writes_what_is_asked_for(run: Run, tmp_path: Path) -> None:
    paths = render(run, directory=tmp_path / "new", formats=("junit", "html"))
    assert [path.name for path in paths.values()] == ["junit.xml", "report.html"]
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == [
        "junit.xml",
        "report.html",
    ]
    assert "✗" in paths["html"].read_text(encoding="utf-8")


def test_an_unknown_format_names_the_closest(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown report format 'htlm'") as caught:
        render(run, directory=tmp_path, formats=("junit", "htlm"))
    assert "did you mean 'html'?" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot write '.*file/report\.html'"):
        render(run, directory=tmp_path / "file", formats=("html",))


def test_the_path_of_the_page_is_printed_when_it_exists(run: Run, tmp_path: Path) -> None:
    here = msgspec.structs.replace(run, directory=tmp_path)
    assert "Report:" not in terminal_text(here)
    render(here, directory=tmp_path)
    assert f"Report:  {tmp_path}/report.html" in terminal_text(here, width=300)


def test_step_summary_is_appended_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert not append_step_summary("text")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary"))
    assert append_step_summary("one")
    assert append_step_summary("two\n")
    assert (tmp_path / "summary").read_text() == "one\ntwo\n"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    with pytest.raises(UsageError, match="GITHUB_STEP_SUMMARY"):
        append_step_summary("three")


# -- JUnit ---------------------------------------------------------------------------------------


def test_junit_has_one_case_per_target_and_property(run: Run) -> None:
    root = ET.fromstring(render_junit(run))
    named = [(case.get("classname"), case.get("name")) for case in root.iter("testcase")]
    assert len(set(named)) == len(named)
    for event in run.events:
        if isinstance(event, PropertyVerdict):
            assert (f"kvproof.{event.target}.{event.section}", event.property) in named


@pytest.mark.parametrize(
    ("verdict", "tag"),
    [("pass", None), ("fail", "failure"), ("inconclusive", "error"),
     ("unsupported", "skipped"), ("expected_failure", "skipped")],
)  # fmt: skip
def test_junit_verdicts(run: Run, verdict: str, tag: str | None) -> None:
    base = next(event for event in run.events if isinstance(event, PropertyVerdict))
    event = msgspec.structs.replace(base, verdict=verdict, reason="because")
    case = next(ET.fromstring(render_junit(with_events(run, [event]))).iter("testcase"))
    assert [child.tag for child in case] == ([tag] if tag else [])
    assert all(child.get("message") == "because" for child in case)


def test_junit_totals_and_properties(run: Run) -> None:
    root = ET.fromstring(render_junit(run))
    # two properties, a crash, two cells of a sweep, a slower one, and what the sweep concluded
    assert root.get("failures") == "7"
    for tag, total in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert len(list(root.iter(tag))) == int(root.get(total, "-1")) > 0
    suite = next(suite for suite in root if suite.get("name") == "vllm==0.33.0")
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["seed"] == "20261120"
    assert properties["version.hypothesis"] == "6.170.15"
    assert properties["engine"] == "vLLM 0.33.0"


@pytest.mark.parametrize(
    ("outcome", "tag"),
    [("FIXED", None), ("FAILED", "failure"), ("ERROR", "error")],
)  # fmt: skip
def test_junit_replays(run: Run, outcome: Any, tag: str | None) -> None:
    event = Replayed(target="t", path="a.json", outcome=outcome, expected="p")
    case = next(ET.fromstring(render_junit(with_events(run, [event]))).iter("testcase"))
    assert [child.tag for child in case] == ([tag] if tag else [])


@pytest.mark.parametrize(
    ("reported", "verdict", "total"),
    [
        (Slower(kernel="k", provider="p", case={"page": 16}, seconds=2.0, baseline=1.0,
                ratio=2.0, low=1.9, high=2.1), "regression", "failures"),
        (SweepConcluded(verdict="inconclusive", reason="cells never ran", planned=2, outcomes={}),
         "inconclusive", "errors"),
        (FaultsConcluded(verdict="fail", reason="3 survive", outcomes={"survived": 3}),
         "fail", "failures"),
        (None, "fail", "failures"),
        (None, "regression", "failures"),
        (None, "interrupted", "errors"),
    ],
)  # fmt: skip
def test_junit_of_a_run_that_does_not_pass_is_not_green(
    run: Run, reported: AnyEvent | None, verdict: Any, total: str
) -> None:
    ended = Ended(verdict=verdict, exit_code=1, sentence="it ended", seconds=1.0)
    root = ET.fromstring(render_junit(with_events(run, [reported, ended] if reported else [ended])))
    assert root.get(total) == "1"
    assert {root.get("failures"), root.get("errors")} == {"0", "1"}
    passed = msgspec.structs.replace(ended, verdict="pass", exit_code=0)
    root = ET.fromstring(render_junit(with_events(run, [passed])))
    assert (root.get("failures"), root.get("errors")) == ("0", "0")


def test_a_page_that_is_too_large_is_computed_once(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Charts do not depend on the number of failures that fit."""
    drawn: list[object] = []
    real = html.charts.throughput

    def throughput(*arguments: object) -> object:
        drawn.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(html.charts, "throughput", throughput)
    whole = html.render_html(run)
    once = len(drawn)
    assert once > 0
    drawn.clear()
    monkeypatch.setattr(html, "LIMIT", 0)
    assert len(html.render_html(run)) < len(whole)
    assert len(drawn) == once
