"""The table of known bugs: complete entries, properties that exist, a page that is up to date."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from kvproof.suites import known_bugs
from kvproof.suites.known_bugs import Bug, Engine
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.documents import judged

ROOT = Path(__file__).parents[3]
PAGE, README = ROOT / "docs" / "known-bugs.md", ROOT / "README.md"
ENGINES = known_bugs.load()
BUGS = [bug for engine in ENGINES for bug in engine.bug]
EXISTING = set(property_names())


def test_there_are_bugs_of_every_engine():
    assert {engine.engine: len(engine.bug) >= 35 for engine in ENGINES} == {
        "vLLM": True,
        "SGLang": True,
        "LMDeploy": True,
        "LMCache": True,
    }
    assert sum(bool(bug.properties) for bug in BUGS) >= 100


def test_what_judges_an_engine_is_what_its_page_names():
    assert judged.FILE.read_text() == judged.judged()
    assert {engine.engine for engine in ENGINES} == judged.NEWEST.keys()
    pages = {page.stem for page in judged.PAGES.glob("*.md")}
    assert {page for each in judged.NEWEST.values() for page in each} <= pages


def test_every_named_property_exists():
    named = {name for bug in BUGS for name in bug.properties}
    assert not named - EXISTING


def test_no_id_comes_twice():
    assert [name for name, count in Counter(bug.id for bug in BUGS).items() if count > 1] == []


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.engine)
def test_every_reference_is_a_link(engine):
    for bug in engine.bug:
        for link in engine.links(bug):
            assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/[\w/-]+", link.url), link
            assert link.text


def test_symptoms_are_one_short_sentence():
    for bug in BUGS:
        assert len(bug.symptom) <= 120, bug.id
        for text in (bug.symptom, bug.limit, bug.reason):
            assert "|" not in text, bug.id
            assert not text.endswith("."), bug.id


def test_rules_are_rules():
    for bug in BUGS:
        assert all(re.fullmatch(r"[ABCGHKMPRSTVX]\d{1,2}", rule) for rule in bug.rules), bug.id


def test_properties_in_reasons_exist():
    for bug in BUGS:
        assert set(re.findall(r"`(\w+_\w+)`", bug.reason + bug.limit)) <= EXISTING, bug.id


def test_the_page_is_up_to_date():
    assert PAGE.read_text().endswith(known_bugs.table()), (
        "docs/known-bugs.md ends with kvproof.suites.known_bugs.table(): write it again"
    )


def test_the_readme_counts_them():
    counts = re.findall(r"(\d+)\s+known\s+bugs", README.read_text())
    assert counts
    assert set(counts) == {str(len(BUGS))}


BUG = {
    "id": "x-1",
    "upstream": ["#1"],
    "symptom": "it broke",
    "mechanism": "index",
    "rules": ["T1"],
}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "x-1: give either what catches the bug or what it awaits"),
        ({"properties": ["a"], "awaits": "tiers", "reason": "b"}, "give either"),
        ({"awaits": "tiers"}, "a reason belongs to `awaits`"),
        ({"properties": ["a"], "reason": "b"}, "a reason belongs to `awaits`"),
        ({"awaits": "tiers", "reason": "b", "limit": "c"}, "a limit to what is caught"),
        ({"awaits": "luck", "reason": "b"}, "Invalid enum value 'luck'"),
        ({"properties": ["a"], "upstream": []}, "needs its source"),
        ({"properties": ["a"], "colour": "red"}, "unknown field `colour`"),
    ],
)
def test_an_incomplete_entry_is_refused(more, message):
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(BUG | more, Bug)


@pytest.mark.parametrize(
    ("reference", "text", "url"),
    [
        ("#12", "engine#12", "https://github.com/team/engine/issues/12"),
        ("other/port#3", "port#3", "https://github.com/other/port/issues/3"),
        ("other/port@9fa2", "port@9fa2", "https://github.com/other/port/commit/9fa2"),
        ("https://example.org/advisories/G-1", "G-1", "https://example.org/advisories/G-1"),
    ],
)
def test_references_become_links(reference, text, url):
    bug = msgspec.convert(BUG | {"upstream": [reference], "properties": ["a"]}, Bug)
    (link,) = Engine("E", "team/engine", (bug,)).links(bug)
    assert (link.text, link.url) == (text, url)


def test_a_reference_that_is_none_is_refused():
    bug = msgspec.convert(BUG | {"upstream": ["12"], "properties": ["a"]}, Bug)
    with pytest.raises(ValueError, match="'12' is no reference"):
        Engine("E", "team/engine", (bug,)).links(bug)
