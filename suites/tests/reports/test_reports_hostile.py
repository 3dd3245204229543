"""Nothing foreign breaks a page, a terminal or a file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import msgspec
import pytest

from kvproof.harness.records.events import AnyEvent, Failure, PropertyVerdict
from kvproof.harness.records.run_directory import Run
from kvproof.reports.render.html import render_html
from kvproof.reports.render.junit import render_junit
from kvproof.reports.render.markdown import code, render_markdown
from kvproof.suites.tests.reports.report_kit import (
    HOSTILE,
    TAGS,
    Page,
    mutated,
    recorded_run,
    terminal_text,
    with_events,
)


@pytest.fixture(scope="module")
def run() -> Run:
    return recorded_run()


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
