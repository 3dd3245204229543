"""The records of known bugs: properties and rules that exist, links, a page that is up to date."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.registry import open_handle
from kvproof.suites.framework.rooms import Room, rooms
from kvproof.suites.framework.versions import within
from kvproof.suites.runner import levels
from kvproof.suites.runner.known_bugs_table import known_bugs_table
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.documents import historical
from kvproof.suites.tests.documents.newest import of_package, showing

ROOMS = rooms()
BUGS = [bug for room in ROOMS for bug in room.bugs]
REPORTED = [bug for bug in BUGS if bug.reported]
EXISTING = set(property_names())


def test_there_are_bugs_of_every_engine():
    counts = {room.records.engine: sum(bug.reported for bug in room.bugs) for room in ROOMS}
    large = {engine for engine, count in counts.items() if count >= 35}
    assert large == {"LMCache", "LMDeploy", "SGLang", "vLLM"}
    assert sum(bool(bug.caught_by) for bug in REPORTED) >= 100


def test_every_named_property_exists():
    named = {name for bug in BUGS for name in bug.caught_by}
    assert not named - EXISTING


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.package)
def test_no_name_comes_twice_in_a_room(room):
    assert [name for name, n in Counter(bug.name for bug in room.bugs).items() if n > 1] == []


def test_no_id_comes_twice():
    assert [name for name, n in Counter(bug.name for bug in REPORTED).items() if n > 1] == []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.package)
def test_every_reference_is_a_link(room):
    for bug in room.bugs:
        for link in room.links(bug):
            assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/[\w/-]+", link.url), link
            assert link.text


def test_symptoms_are_one_short_sentence():
    for bug in BUGS:
        assert len(bug.symptom) <= (120 if bug.reported else 200), bug.name
        for text in (bug.symptom, bug.limit, bug.reason, bug.fixed):
            assert "|" not in text, bug.name
            assert not text.endswith("."), bug.name


def test_rules_are_rules():
    for bug in BUGS:
        assert all(re.fullmatch(r"[ABCDGHKMPQRSTVWX]\d{1,2}", rule) for rule in bug.rules), bug.name


def test_properties_in_reasons_exist():
    for bug in REPORTED:
        assert set(re.findall(r"`(\w+_\w+)`", bug.reason + bug.limit)) <= EXISTING, bug.name


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.package)
def test_a_release_in_no_range_of_a_bug_has_mended_it(room):
    """A record names what mended the bug if the newest release does not have it, and only then."""
    for bug in (each for each in room.bugs if each.shows):
        ranges = [bug.range_of(each) for each in bug.shows]
        has = any(within(showing(room, bug).version, text) for text in ranges)
        assert bool(bug.fixed) is not has, bug.name


def test_the_table_has_a_row_for_each_reported_bug():
    rows = re.findall(r"^\| ([\w-]+) \| \[", known_bugs_table(), re.MULTILINE)
    assert rows == [bug.name for bug in REPORTED]


def test_historical_bugs_are_those_that_the_newest_release_does_not_show():
    found = {room.package: [bug.name for bug in historical.historical(room)] for room in ROOMS}
    assert {name for name, bugs in found.items() if bugs} == {"lmdeploy", "sglang", "vllm"}
    assert all(bug.fixed for room in ROOMS for bug in historical.historical(room))
    shown = historical.table()
    assert "`salt_is_called_like_an_adapter`, 4 operations, search: fails in 0.23.0" in shown
    assert shown.count("\n| ") == sum(map(len, found.values())) + 2 * 3


@pytest.mark.nightly(reason="changes with an engine")
@pytest.mark.slow(reason="runs installed engines")
@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.package)
def test_properties_judge_the_engine_itself_and_others_do_not(room: Room, tmp_path: Path) -> None:
    judged: set[str] = set()
    for each in of_package(room.package):
        try:
            opened = open_handle(str(each), log_directory=tmp_path)
        except UsageError as missing:
            pytest.skip(f"{missing}: {missing.hint}")
        with opened as handle:
            suites = levels.suites(handle, "full")
            judged |= {prop.name for suite in suites for prop in suite.judged}
    named = {bug.name: set(bug.properties) - judged for bug in room.bugs}
    assert {name: wrong for name, wrong in named.items() if wrong} == {}, "to `elsewhere`"
    named = {bug.name: set(bug.elsewhere) & judged for bug in room.bugs}
    assert {name: wrong for name, wrong in named.items() if wrong} == {}, "to `properties`"
