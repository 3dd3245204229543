"""Reports say what a run recorded: the right verdict, nothing lost, nothing that breaks a page."""

from __future__ import annotations

import io
import json
import os
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from kvproof.harness.errors import UsageError
from kvproof.harness.records import (
    AnyEvent,
    Ended,
    Failure,
    HarnessFault,
    Manifest,
    PropertyVerdict,
    Replayed,
    Run,
    read_run,
)
from kvproof.reports.collect import build
from kvproof.reports.html import render_html
from kvproof.reports.junit import render_junit
from kvproof.reports.markdown import append_step_summary, code, render_markdown
from kvproof.reports.render import render
from kvproof.reports.terminal import print_run

SNAPSHOTS = Path(__file__).parent / "snapshots"
RECORDED = SNAPSHOTS / "report_run"
"""Written by hand, no measurement: a gate of three targets with every kind of event and verdict."""

HOSTILE = (
    "</script></style></title><img src=x onerror=alert(1)>\"'`&{{7*7}}{% raw %}{#"
    "\x1b[31m\x00\x9b\u202e]]>--><!--|```\n\n# x\n[y](javascript:alert(1))\ud83d"
)
CLOSED = {"event", "verdict", "kind", "state", "isolation", "outcome", "rule"}
"""Fields with a closed set of values: nothing foreign can stand in them."""


@pytest.fixture(scope="module")
def run() -> Run:
    recorded = read_run(RECORDED)
    assert recorded.torn == 0
    return msgspec.structs.replace(recorded, directory=Path("runs/gate"))


def with_events(run: Run, events: list[AnyEvent]) -> Run:
    return msgspec.structs.replace(run, events=events)


def changed(value: Any, kind: Any, strings: Any, numbers: Any) -> Any:
    """The same record with every free string and every number replaced."""

    def walk(item: Any, name: str = "", *, record: bool = False) -> Any:
        if isinstance(item, dict):
            return {
                key if record else strings(key): walk(inner, key) for key, inner in item.items()
            }
        if isinstance(item, list):
            return [walk(inner, name, record=name in ("history", "blocks")) for inner in item]
        if isinstance(item, str):
            return item if name in CLOSED else strings(item)
        return numbers(item) if type(item) in (int, float) else item

    return msgspec.convert(walk(msgspec.to_builtins(value), record=True), kind)


def mutated(run: Run, strings: Any = lambda x: x, numbers: Any = lambda x: x) -> Run:
    return msgspec.structs.replace(
        run,
        manifest=changed(run.manifest, Manifest, strings, lambda number: number),
        events=[changed(event, AnyEvent, strings, numbers) for event in run.events],
    )


def terminal_text(run: Run, *, width: int = 80, encoding: str = "utf-8", tty: bool = False) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="")
    print_run(run, Console(file=file, force_terminal=tty, width=width, color_system=None))
    file.flush()
    return raw.getvalue().decode(encoding)


def same_as_snapshot(name: str, text: str) -> None:
    path = SNAPSHOTS / name
    text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    if os.environ.get("KVPROOF_UPDATE_SNAPSHOTS") == "1":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), (
        f"{name} changed; if that is meant, set KVPROOF_UPDATE_SNAPSHOTS=1 and read the difference"
    )


class Page(HTMLParser):
    """Tags, attributes, ids and links of a page; fails on tags that do not close."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self._open.append(tag)
        self._saw(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._saw(tag, attrs)

    def _saw(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


TAGS = frozenset(
    """a article b body br caption code dd details div dl dt figcaption figure footer h1 h2 h3 h4
    head header html i li meta nav p path pre rect section span style summary svg table tbody td
    text th thead title tr ul""".split()  # noqa: SIM905 - a paragraph is easier to read
)


# -- what a report says --------------------------------------------------------------------------


def test_terminal_snapshot_in_a_pipe(run: Run) -> None:
    same_as_snapshot("report_terminal_pipe.txt", terminal_text(run))


def test_terminal_snapshot_on_a_wide_terminal(run: Run) -> None:
    same_as_snapshot("report_terminal_wide.txt", terminal_text(run, width=100, tty=True))


def test_markdown_snapshot(run: Run) -> None:
    same_as_snapshot("report_summary.md", render_markdown(run))


def test_every_failure_shows_history_blocks_script_and_oracle(run: Run) -> None:
    page = "".join(Page(render_html(run)).text)
    for failure in (event for event in run.events if isinstance(event, Failure)):
        for step in failure.history:
            assert step.op in page
            assert step.arguments in page
            assert step.answer in page
            assert step.note in page
        for block in failure.blocks:
            assert f"block {block.block}" in page
        assert failure.script in page
        assert f"caught by {failure.oracle}" in page
        assert f"runs/gate/{failure.script_path}" in page


def test_a_suspect_block_is_marked_by_a_word(run: Run) -> None:
    assert "! suspect" in "".join(Page(render_html(run)).text)
    assert "block 2: ! suspect, held by r2, holds positions 0..15" in terminal_text(run)


def test_every_cell_of_the_matrix_links_to_something_that_exists(run: Run) -> None:
    page = Page(render_html(run))
    inner = [link[1:] for link in page.links if link.startswith("#")]
    cells = sum(isinstance(event, PropertyVerdict) for event in run.events)
    assert len(inner) > cells
    assert set(inner) <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)


def test_each_verdict_has_symbol_and_word(run: Run) -> None:
    page = re.sub(r"\s+", " ", "".join(Page(render_html(run)).text))
    for shown in ("✓ pass", "✗ FAIL", "? inconclusive", "– unsupported", "≈ expected failure"):  # noqa: RUF001 - the dash is the symbol
        assert shown in page


def test_charts_state_findings_and_carry_their_numbers(run: Run) -> None:
    page = "".join(Page(render_html(run)).text)
    assert "Block 16, no eviction: reference serves 38.9 times the tokens of vllm==0.33.0" in page
    assert "38.9 times vllm==0.33.0 (37.3 to 40.1)" in page
    assert "LRU needs 50,000 blocks for nine tenths of what an infinite cache hits" in page
    assert "+18 % from 1 k to 1 M cached blocks (reference)" in page
    assert "reference: 57.0 % of 12,354 admissions reused cached blocks" in page
    assert "36.64 %" in page


def test_skipped_parts_come_with_the_command(run: Run) -> None:
    for text in (render_html(run), terminal_text(run), render_markdown(run)):
        assert "kvproof targets install sglang==0.5.23" in text


# -- runs that did not go well -------------------------------------------------------------------


def test_a_killed_run_is_rendered_and_says_so(run: Run, tmp_path: Path) -> None:
    lines = (RECORDED / "events.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "run.json").write_bytes((RECORDED / "run.json").read_bytes())
    (tmp_path / "events.jsonl").write_bytes(b"".join(lines[:84]) + lines[84][:40])
    killed = read_run(tmp_path)
    assert killed.torn == 1
    assert build(killed).outcome.word == "FAIL"
    for text in (render_html(killed), terminal_text(killed, width=200), render_markdown(killed)):
        assert "was killed" in text
        assert "1 unreadable line" in text
    assert int(ET.fromstring(render_junit(killed)).get("errors", "0")) > 0


def test_a_killed_run_without_failures_is_incomplete_not_pass(run: Run) -> None:
    passed = [e for e in run.events if isinstance(e, PropertyVerdict) and e.verdict == "pass"]
    outcome = build(with_events(run, list(passed))).outcome
    assert (outcome.word, outcome.tone, outcome.closed) == ("INCOMPLETE", "inconclusive", False)


def test_a_run_taken_up_again_and_killed_is_not_closed(run: Run) -> None:
    assert build(run).outcome.closed
    assert not build(with_events(run, [*run.events, run.events[5]])).outcome.closed


def test_an_empty_run_renders(run: Run) -> None:
    empty = with_events(run, [])
    Page(render_html(empty))
    assert "INCOMPLETE" in terminal_text(empty)
    assert "INCOMPLETE" in render_markdown(empty)
    assert ET.fromstring(render_junit(empty)).get("errors") == "1"


def test_each_event_alone_renders(run: Run) -> None:
    for event in run.events:
        alone = with_events(run, [event])
        Page(render_html(alone))
        assert terminal_text(alone, width=60)
        assert render_markdown(alone)
        assert render_junit(alone)


@pytest.mark.parametrize("number", [0, 1, -3, 10**15])
def test_no_number_breaks_a_report(run: Run, number: int) -> None:
    odd = mutated(run, numbers=lambda old: type(old)(number))
    Page(render_html(odd))
    assert terminal_text(odd)
    assert render_markdown(odd)
    assert render_junit(odd)


def test_a_fault_of_the_harness_is_no_verdict_about_a_target(run: Run) -> None:
    fault = HarnessFault(where="shadow", message="KeyError: 3", traceback="Traceback ...")
    ended = Ended(verdict="harness", exit_code=70, sentence="kvproof failed", seconds=1.0)
    faulty = with_events(run, [fault, ended])
    assert build(faulty).outcome.word == "HARNESS ERROR"
    assert "This says nothing about a target" in render_html(faulty)
    assert ET.fromstring(render_junit(faulty)).get("failures") == "0"


def test_a_failure_is_not_taken_back_by_a_later_chunk(run: Run) -> None:
    found = next(e for e in run.events if isinstance(e, PropertyVerdict) and e.verdict == "fail")
    later = msgspec.structs.replace(found, verdict="pass", reason="")
    assert build(with_events(run, [found, later])).verdicts("fail") == [found]
    assert build(with_events(run, [later, found])).verdicts("fail") == [found]


def test_equal_fingerprints_are_counted_not_repeated(run: Run) -> None:
    failure = next(event for event in run.events if isinstance(event, Failure))
    report = build(with_events(run, [failure] * 3))
    assert [finding.times for finding in report.findings] == [3]


# -- foreign text --------------------------------------------------------------------------------


def test_hostile_strings_stay_text_in_html(run: Run) -> None:
    text = render_html(mutated(run, lambda old: old + HOSTILE))
    page = Page(text)
    assert page.tags <= TAGS
    assert not any(name.startswith("on") for name in page.attributes)
    assert not any(link.startswith("javascript") for link in page.links)
    assert "{{7*7}}{% raw %}{#" in "".join(page.text)
    assert not set(text) & set("\x00\x1b\x9b\u202e")
    text.encode("utf-8")


def test_only_web_addresses_become_links(run: Run) -> None:
    failure = next(event for event in run.events if isinstance(event, Failure))
    for bad in ("javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "http://[", "x"):
        page = Page(
            render_html(with_events(run, [msgspec.structs.replace(failure, related=[bad])]))
        )
        assert all(link.startswith("#") for link in page.links)


def test_a_page_asks_for_nothing_outside(run: Run) -> None:
    text = render_html(run)
    page = Page(text)
    assert page.tags <= TAGS
    assert "default-src 'none'; style-src 'unsafe-inline'" in text
    assert not re.search(r"url\(|@import|<link|<script|<img", text)
    assert page.attributes & {"src", "srcset", "style", "action"} == set()


def test_hostile_strings_stay_text_in_the_terminal(run: Run) -> None:
    text = terminal_text(mutated(run, lambda old: old + HOSTILE + "[bold red]"))
    assert not set(text) & set("\x00\x1b\x9b\u202e")
    assert "[bold red]" in text


def test_hostile_strings_keep_junit_well_formed(run: Run) -> None:
    root = ET.fromstring(render_junit(mutated(run, lambda old: old + HOSTILE)))
    assert len(list(root.iter("testcase"))) == int(root.get("tests", "0"))
    assert any("<img src=x onerror" in case.get("name", "") for case in root.iter("testcase"))


def test_hostile_strings_do_not_leave_code_or_cells_in_markdown(run: Run) -> None:
    text = render_markdown(mutated(run, lambda old: old + HOSTILE))
    outside = re.sub(r"^(`{3,})[^`\n]*\n.*?^\1$", "", text, flags=re.MULTILINE | re.DOTALL)
    outside = re.sub(r"(?<!`)(`+)(?!`)(?:(?!\n).)*?(?<!`)\1(?!`)", "", outside)
    assert "<img" not in outside
    assert "\n# x" not in outside
    assert set(re.findall(r"</?\w+", outside)) <= {"<details", "<summary", "</summary", "</details"}


def test_a_code_span_cannot_be_left() -> None:
    assert code("a``b|c") == "```a``b\\|c```"
    assert code("`") == "`` ` ``"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_the_terminal_needs_no_utf8(run: Run, encoding: str) -> None:
    text = terminal_text(mutated(run, lambda old: old + " 末 é"), encoding=encoding)
    assert "x FAIL" in text
    assert "\\u672b" in text


def test_lines_fit_into_80_columns(run: Run) -> None:
    commands = re.compile(r"python |pip |kvproof ")
    long = [line for line in terminal_text(run).splitlines() if len(line) > 80]
    assert all(commands.search(line) for line in long)


# -- files ---------------------------------------------------------------------------------------


def test_a_page_stays_below_a_megabyte(run: Run) -> None:
    failure = next(event for event in run.events if isinstance(event, Failure))
    verdict = next(event for event in run.events if isinstance(event, PropertyVerdict))
    large = msgspec.structs.replace(failure, script="x = 1\n" * 9000, history=failure.history * 30)
    many: list[AnyEvent] = [
        msgspec.structs.replace(large, fingerprint=f"{place:08x}") for place in range(1500)
    ]
    many += [
        msgspec.structs.replace(verdict, property=f"p{place}", target=f"target {place % 4}")
        for place in range(240)
    ]
    assert len(render_html(with_events(run, [*run.events, *many])).encode()) < 1_000_000
    assert len(render_markdown(with_events(run, [*run.events, *many])).encode()) < 1_000_000


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
    with pytest.raises(UsageError, match=r"cannot write the report '.*file/report\.html'"):
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
    assert root.get("failures") == "3"  # two properties and a crash
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


def test_the_recorded_run_covers_every_event_type() -> None:
    lines = (RECORDED / "events.jsonl").read_bytes().splitlines()
    tags = {json.loads(line)["event"] for line in lines}
    known = {kind.__struct_config__.tag for kind in AnyEvent.__args__}
    assert known - tags == {"harness_fault"}  # a gate with one would end with it; tested above
