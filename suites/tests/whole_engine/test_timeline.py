"""A failure of a whole engine is drawn from its record: who ran when, on which blocks."""

from __future__ import annotations

import msgspec
import pytest

from kvproof.harness.records.events import Failure
from kvproof.harness.records.run_directory import Run
from kvproof.harness.records.timeline import Timeline
from kvproof.reports.charts.timeline import MOST_STEPS, timeline_picture
from kvproof.reports.charts.timeline_text import timeline_lines
from kvproof.reports.render.html import render_html
from kvproof.reports.render.markdown import render_markdown
from kvproof.reports.values.svg import Box
from kvproof.suites.framework.component_suite import counterexample
from kvproof.suites.framework.evidence import evidence
from kvproof.suites.tests.reports.report_kit import (
    HOSTILE,
    TAGS,
    Page,
    mutated,
    recorded_run,
    terminal_text,
    with_events,
)
from kvproof.suites.tests.whole_engine.toy_suite import toy_suite

ENGINE = {"blocks": 18, "block_size": 16, "token_budget": 24, "max_requests": 6, "max_length": 192}
SALTED = [
    ("submit", {"id": "r0", "family": 0, "shared": 32, "own": 1, "answers": 9}),
    ("step", {"count": 3, "lag": 0, "delay": 0}),
    ("submit", {"id": "r1", "family": 0, "shared": 32, "own": 2, "answers": 1, "salt": "s"}),
    ("submit", {"id": "r2", "family": 1, "shared": 8, "own": 2, "answers": 1}),
    ("abort", {"number": 2}),
    ("step", {"count": 4, "lag": 0, "delay": 0}),
]


def failure_of(fault: str, operations: list[tuple[str, dict[str, object]]]) -> Failure:
    found = counterexample(toy_suite(fault), {"engine": ENGINE}, operations)
    assert found is not None
    proof = evidence(found, "toy")
    return Failure(
        target="toy", property=found.violation.property, rules=["W1"], oracle="shadow memory",
        sentence=found.violation.sentence, fingerprint="0", op_log="f.json", script=proof.script,
        script_path="f.py", history=proof.history, timeline=proof.timeline,
    )  # fmt: skip


@pytest.fixture(scope="module")
def failure() -> Failure:
    return failure_of("salt_ignored", SALTED)


@pytest.fixture(scope="module")
def timeline(failure: Failure) -> Timeline:
    assert failure.timeline is not None
    return failure.timeline


@pytest.fixture(scope="module")
def run(failure: Failure) -> Run:
    return with_events(recorded_run(), [failure])


def test_the_record_says_who_ran_when_on_which_blocks(timeline: Timeline) -> None:
    lanes = {each.request: each for each in timeline.requests}
    assert timeline.failed == 4
    assert (lanes["r0"].arrived, lanes["r0"].ended) == (0, -1)
    assert (lanes["r1"].arrived, lanes["r1"].ended) == (3, 4)
    assert (lanes["r2"].ended, lanes["r2"].outcome) == (3, "aborted")
    assert [(each.first, each.last) for each in lanes["r0"].spans] == [(1, 4)]
    first, *_, last = timeline.launches
    assert [(row.request, row.start, row.stop, row.samples) for row in first.rows] == [
        ("r0", 0, 24, False)
    ]
    (hit,) = (row for row in last.rows if row.request == "r1")
    assert hit.hit == 32
    assert hit.reads[0][:2] == first.rows[0].writes[0]
    assert timeline.operations[1] == ("step", 0, 3)


def test_the_slots_of_the_failing_read_have_expected_and_found_content(timeline: Timeline) -> None:
    assert {each.request for each in timeline.slots} == {"r1"}
    assert [(each.first, each.last, each.wrong) for each in timeline.slots] == [
        (0, 15, 16),
        (16, 31, 16),
        (32, 33, 0),
    ]
    assert "it holds position 0 of r0" in timeline.slots[0].found
    assert timeline.slots[2].found == ""


def test_another_block_than_the_managers_is_marked() -> None:
    steps = [("submit", {"id": "r0", "family": 0, "shared": 60, "own": 1, "answers": 9}),
             ("step", {"count": 8, "lag": 0, "delay": 0})]  # fmt: skip
    found = failure_of("table_is_late", steps)
    assert found.property == "kernel_tables_address_their_blocks"
    assert found.timeline is not None
    assert found.timeline.launches


def test_the_text_has_a_line_for_each_request_and_each_block_that_was_read(
    timeline: Timeline,
) -> None:
    lines = timeline_lines(timeline)
    found = {line[:18].strip(): line[19:] for line in lines if line[18:19] == " "}
    assert found["a r0"] == "PPdd"
    assert found["b r1"] == "   P"
    assert found["operation"] == "2226"
    first = timeline.slots[0].block
    assert found[f"block {first}"] == "Aaa! <- wrong content"
    assert any(line.startswith(f"x block {first}, must hold 0 to 15 of r1: ") for line in lines)
    assert all(len(line) < 80 for line in lines[: lines.index("r0: prompt of 33, 9 answers")])


def test_the_picture_stays_inside_and_marks_the_wrong_blocks(timeline: Timeline) -> None:
    picture = timeline_picture(timeline)
    boxes = [shape for shape in picture.shapes if isinstance(shape, Box)]
    assert all(box.x >= 0 and box.x + box.width <= picture.width for box in boxes)
    assert all(box.y >= 0 and box.y + box.height <= picture.height for box in boxes)
    suspects = [box for box in boxes if "suspect" in box.style]
    assert len(suspects) == 4  # two blocks, each in the step and at the read


def test_the_last_steps_of_a_long_history_are_shown() -> None:
    found = failure_of("never_ends", [("submit", {**SALTED[0][1], "priority": 1}), ("drain", {})])
    assert found.timeline is not None
    assert found.timeline.failed > MOST_STEPS
    picture = timeline_picture(found.timeline)
    assert all(s.x + s.width <= picture.width for s in picture.shapes if isinstance(s, Box))
    assert "left out" in "\n".join(timeline_lines(found.timeline))


def test_all_reports_show_it(run: Run, timeline: Timeline) -> None:
    page = render_html(run)
    assert "Until step 4, which failed" in page
    assert Page(page).tags <= TAGS
    for text in (render_markdown(run), terminal_text(run)):
        for line in timeline_lines(timeline)[:8]:
            assert line.rstrip() in text


def test_hostile_names_stay_text(run: Run) -> None:
    hostile = mutated(run, lambda old: old + HOSTILE)
    page = Page(render_html(hostile))
    assert page.tags <= TAGS
    assert not any(name.startswith("on") for name in page.attributes)
    assert not set(terminal_text(hostile)) & set("\x1b\x9b\u202e")
    lines = render_markdown(hostile).splitlines()
    (first,) = (index for index, line in enumerate(lines) if line.startswith("step "))
    assert lines[first - 1].startswith("````")  # longer than the one in the names


@pytest.mark.parametrize("number", [-1, 0, 10**9])
def test_absurd_numbers_draw_something(run: Run, number: int) -> None:
    wild = mutated(run, numbers=lambda old: number)
    assert "which failed" in render_html(wild)
    assert terminal_text(wild)


def test_a_history_that_no_longer_fails_has_no_timeline() -> None:
    found = counterexample(toy_suite("salt_ignored"), {"engine": ENGINE}, SALTED)
    assert found is not None
    history = found.history
    history.suite = toy_suite()
    assert evidence(found, "toy").timeline is None


def test_older_records_have_none(failure: Failure) -> None:
    old = msgspec.to_builtins(failure)
    del old["timeline"]
    assert msgspec.convert(old, Failure).timeline is None
