"""Reports lead with what is wrong, fold what does not apply, and begin a pass with its figures."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from kvproof.harness.records.events import AnyEvent, Ended, Exercised, PropertyVerdict, Verdict
from kvproof.harness.records.run_directory import Run
from kvproof.reports.model.build import build
from kvproof.reports.render.console import Screen
from kvproof.reports.render.html import render_html
from kvproof.reports.render.terminal import LiveProgress
from kvproof.reports.values.headline import leading, others
from kvproof.reports.values.svg import Table as Figures
from kvproof.suites.tests.reports.report_kit import recorded_run, terminal_text, with_events


def verdict(
    name: str, kind: Verdict, *, target: str = "mine", section: str = "B"
) -> PropertyVerdict:
    return PropertyVerdict(
        target=target,
        property=name,
        section=section,
        rules=[f"{section}1"],
        sentence="it holds",
        verdict=kind,
    )


def judged(*verdicts: PropertyVerdict) -> Run:
    effort = Exercised(
        target="mine", suite="cache", test_cases=7, operations={}, situations={}, seconds=1.0
    )
    failed = any(each.verdict == "fail" for each in verdicts)
    events: list[AnyEvent] = [effort, *verdicts]
    ended = Ended(
        verdict="fail" if failed else "pass", exit_code=int(failed), sentence="", seconds=2.0
    )
    return with_events(recorded_run(), [*events, ended])


MIXED = (
    verdict("good", "pass", section="A"),
    verdict("odd", "unsupported", section="A"),
    verdict("lost", "fail", section="T"),
    verdict("fine", "pass", section="T"),
    verdict("found", "fail", section="T"),
)


def test_the_headline_begins_with_what_is_wrong_and_counts_a_property_once() -> None:
    more = (
        *MIXED,
        verdict("lost", "pass", target="other"),
        verdict("good", "pass", target="other"),
    )
    assert leading(more) == "2 properties fail: lost, found"
    assert others(more) == "2 pass, 1 unsupported"
    assert leading(MIXED[:1]) == ""
    unclear = (*MIXED[:2], verdict("dark", "inconclusive"))
    assert leading(unclear) == "1 property inconclusive: dark"
    assert others(unclear) == "1 pass, 1 unsupported"


def test_a_report_without_a_sentence_of_its_run_has_the_same_headline() -> None:
    report = build(judged(*MIXED))
    assert report.outcome.sentence.startswith("2 properties fail: lost, found")
    assert terminal_text(judged(*MIXED)).count("2 properties fail") == 1


def test_the_worst_come_first() -> None:
    report = build(judged(*MIXED))
    assert [section.letter for section in report.sections] == ["T", "A"]
    assert [row.property for row in report.sections[0].rows] == ["lost", "found", "fine"]


def test_what_no_target_supports_is_folded_with_its_count() -> None:
    many = [verdict(f"p{number}", "unsupported", section="M") for number in range(200)]
    run = judged(*MIXED, *many)
    text, page = terminal_text(run), render_html(run)
    assert "4 properties on 1 target" in text
    assert "201 more are unsupported here" in text
    assert "Media" not in text
    assert "<summary>201 properties unsupported</summary>" in page
    assert page.index('<details class="unsupported">') < page.index("<code>p7</code>")


def test_a_pipe_gets_one_line_for_all_of_them() -> None:
    file = io.StringIO()
    with LiveProgress(Console(file=file, width=100, color_system=None)) as live:
        for number in range(200):
            live.event(verdict(f"p{number}", "unsupported"))
        live.event(verdict("good", "pass"))
    assert file.getvalue().splitlines() == [
        "+ pass mine good",
        "- unsupported mine: 200 properties, reasons in the report",
    ]


@pytest.mark.parametrize(("verdicts", "first"), [(MIXED[:1], "Coverage"), (MIXED, "properties on")])
def test_a_clean_pass_begins_with_its_figures(
    verdicts: tuple[PropertyVerdict, ...], first: str
) -> None:
    text, page = terminal_text(judged(*verdicts)), render_html(judged(*verdicts))
    figures, matrix = text.index("Coverage"), text.index(" on 1 target")
    assert (figures < matrix) is (first == "Coverage")
    assert (page.index('id="situations"') < page.index('id="matrix"')) is (first == "Coverage")


def test_figures_of_a_suite_carry_their_names_where_a_narrow_page_has_no_head() -> None:
    page = render_html(judged(*MIXED))
    row = page[page.index('class="numbers cards"') :].split("<tbody>")[1].split("</tr>")[0]
    named = re.findall(r'<td class="n" data-head="([a-z ]+)">([^<]*)</td>', row)
    assert row.count("<td") == len(named) == 5
    assert dict(named)["test cases"] == "7"
    assert dict(named)["time"] == "1.00 s"


FLOOR = Figures(
    ("floor", "answers", "tokens", "mean KL"),
    (("recomputed, again", "184", "12,288", "0"), ("recomputed, together", "96", "", "1e-05")),
    words=1,
)


@pytest.mark.parametrize("width", [80, 42, 38, 30, 16])
def test_no_number_of_a_table_is_broken_or_cut(width: int) -> None:
    file = io.StringIO()
    Screen(Console(file=file, width=width)).figures(FLOOR)
    words = set(file.getvalue().replace(", ", " ").split())
    assert {"184", "12,288", "96", "1e-05", "recomputed", "together"} <= {
        word.rstrip(",") for word in words
    }
    assert max(map(len, file.getvalue().splitlines())) <= width
