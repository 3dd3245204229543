"""Every property has an example failure on its page, or a reason why it has none."""

from __future__ import annotations

from pathlib import Path

from kvproof.harness.records.base import Step
from kvproof.harness.records.fault_events import FaultJudged, Kill
from kvproof.suites.faults.catalogue import everything, find
from kvproof.suites.faults.verdict import judged
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.documents import examples, property_pages

MOST_BYTES = 300_000

WITHOUT: dict[str, str] = {}
"""Property without an example -> the reason."""


def test_every_property_has_an_example_or_a_reason() -> None:
    """A new property: `python -m kvproof.suites.tests.documents.examples` names its fault."""
    have = {*examples.load_examples()}
    assert have & WITHOUT.keys() == set()
    assert {*property_names()} == have | WITHOUT.keys()


def test_every_example_is_short_and_of_a_fault_that_is_planted() -> None:
    lines = examples.FILE.read_bytes().splitlines()
    assert len(examples.FILE.read_bytes()) < MOST_BYTES
    assert len(lines) == len(examples.load_examples()) > 100
    for each in examples.load_examples().values():
        assert each.sentence
        assert not everything()[each.fault].equivalent
        texts = [text for step in each.history for text in (step.arguments, step.answer)]
        assert max(map(len, texts)) < 2 * examples.LONGEST


def found(fault: str, prop: str, *verbs: str) -> FaultJudged:
    """The event of a fault that a property finds by a history."""
    history = [Step(op=verb, arguments="a|b `c`", answer="x" * 1000) for verb in verbs]
    kill = Kill(suite="cache", property=prop, oracle="invariant", sentence="1, expected 2",
                cases=1, seconds=1.0, size=len(history), history=history)  # fmt: skip
    return judged(find(fault), kill)


def test_the_shortest_history_in_the_reference_is_the_example(tmp_path, monkeypatch) -> None:
    events = [
        found("namespace_ignored", "namespaces_are_separate", "admit", "complete", "admit"),
        found("namespace_untagged", "namespaces_are_separate", "admit", "admit"),
        found("namespace_ignored", "a_property_that_is_gone", "admit"),
        found("namespace_ignored", "usage_adds_up"),
    ]
    monkeypatch.setattr(examples, "FILE", tmp_path / "examples.jsonl")
    monkeypatch.setattr(examples, "load_examples", dict)
    examples.write(events)
    (line,) = (tmp_path / "examples.jsonl").read_text().splitlines()
    assert '"namespace_untagged"' in line
    assert '["admit","a|b `c`"' in line
    assert len(line) < 1000


def test_a_page_shows_what_a_fault_does(monkeypatch) -> None:
    example = examples.Example(
        property="usage_adds_up",
        fault="namespace_ignored",
        sentence="`1` <b>",
        history=[examples.Operation("admit", "r1: [0|1]\n", "")],
    )
    monkeypatch.setattr(property_pages, "load_examples", lambda: {"usage_adds_up": example})
    page = property_pages.pages()[f"{property_pages.FOLDER}/usage_adds_up.md"]
    section = page.partition("## Example failure\n")[2].partition("## ")[0]
    assert find("namespace_ignored").story in section
    assert "> `'1' <b>`" in section
    assert "| 1 | admit `r1: [0|1]` |  |" in section
    assert "`kvproof faults --only namespace_ignored` repeats it." in section


def test_the_file_is_in_its_place() -> None:
    assert Path(examples.__file__).with_name("examples.jsonl") == examples.FILE
