"""Records of bugs, and the expected failures of a release that follow from them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from kvproof.harness.errors import UsageError
from kvproof.suites.framework import expected_failures, rooms
from kvproof.suites.framework.bugs import Bug, Records, link
from kvproof.suites.framework.versions import within
from kvproof.suites.runner.levels import property_names

BUG = {"id": "x-1", "upstream": ["#1"], "symptom": "it broke", "rules": ["T1"]}
SHOWS = [{"property": "usage_adds_up"}]


@pytest.mark.parametrize(
    ("version", "versions", "inside"),
    [
        ("0.33.0", ">=0.33", True),
        ("0.33.0", ">0.33", False),
        ("0.33", "==0.33.0", True),
        ("0.9.0", ">=0.10", False),
        ("0.24.0", ">=0.12,<0.24", False),
        ("0.23.9", ">=0.12,<0.24", True),
        ("0.19.1", ">=0.18.1,!=0.19.1,<0.24", False),
        ("0.19.2", ">=0.18.1, !=0.19.1, <0.24", True),
        ("0.33.0+cpu", "<=0.33", True),
        ("0.33.1.dev2+g1", ">=0.33.1", True),
        ("0.5.15", ">=0.5.15,<0.5.16", True),
        ("0.5.16", ">=0.5.15,<0.5.16", False),
        ("5.23.0", ">=5.23", True),
        ("a working copy", ">=0", False),
        ("", ">=0", False),
    ],
)
def test_a_release_lies_in_a_range(version, versions, inside):
    assert within(version, versions) is inside


@pytest.mark.parametrize("versions", ["", "0.14", ">=0.14;<0.18", ">=0.14,", "~=0.14", ">=a"])
def test_what_is_no_range_is_refused(versions):
    with pytest.raises(ValueError, match=r"is no range of releases, for example '>=0\.14,<0\.18'"):
        within("0.33.0", versions)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "x-1: give either what catches the bug or what it awaits"),
        ({"properties": ["a"], "awaits": "tiers", "reason": "b"}, "give either"),
        ({"elsewhere": ["a"], "awaits": "tiers", "reason": "b"}, "give either"),
        ({"awaits": "tiers"}, "a reason belongs to `awaits`"),
        ({"properties": ["a"], "reason": "b"}, "a reason belongs to `awaits`"),
        ({"awaits": "tiers", "reason": "b", "limit": "c"}, "a limit to what is caught"),
        ({"awaits": "luck", "reason": "b"}, "Invalid enum value 'luck'"),
        ({"properties": ["a"], "upstream": []}, "a bug needs its source"),
        ({"properties": ["a"], "id": ""}, "a record needs an id or a finding"),
        ({"properties": ["a"], "symptom": ""}, "a bug needs its symptom"),
        ({"properties": ["a"], "colour": "red"}, "unknown field `colour`"),
        ({"properties": ["a"], "versions": "0.14"}, "'0.14' is no range"),
        ({"shows": SHOWS, "versions": ">=1"}, "needs the name of a mechanism"),
        ({"shows": SHOWS, "mechanism": "m"}, "needs `versions`"),
        ({"shows": [{**SHOWS[0], "versions": "1"}], "mechanism": "m"}, "'1' is no range"),
    ],
)
def test_an_incomplete_record_is_refused(more, message):
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert(BUG | more, Bug)


def test_a_finding_needs_no_rules_and_names_its_predicate():
    bug = msgspec.convert({"finding": "f", "symptom": "s", "shows": SHOWS, "versions": ">=1"}, Bug)
    assert (bug.name, bug.predicate, bug.reported, bug.caught_by) == (
        "f", "f", False, ("usage_adds_up",)
    )  # fmt: skip


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
    (found,) = Records("E", "team/engine", (bug,)).links(bug)
    assert (found.text, found.url) == (text, url)


def test_a_reference_that_is_none_is_refused():
    with pytest.raises(ValueError, match="'12' is no reference"):
        link("12", "team/engine")


# --- expected failures ---

HEAD = 'engine = "vLLM"\nrepository = "vllm-project/vllm"\n'
ENTRY = """
[[bug]]
id = "{id}"
symptom = "it broke"
upstream = ["#7"]
rules = ["T1"]
mechanism = "{mechanism}"
versions = ">=1,<3"
shows = [{{ property = "{property}"{more} }}]
"""


def entry(prop="usage_adds_up", mechanism="chunk_across_blocks", more="", **fields):
    return ENTRY.format(property=prop, mechanism=mechanism, more=more, id=fields.get("id", "v-1"))


def load(folder: Path, text: str, target="vllm", version="1.2", name="bugs.toml", **options):
    path = folder / "vllm" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
    names = property_names()
    return expected_failures.load(target, version, folder=folder, names=names, **options)


@pytest.mark.parametrize(
    ("target", "version", "count"),
    [
        ("vllm", "1", 1),
        ("vllm", "2.9", 1),
        ("vllm", "3", 0),
        ("vllm-engine", "1", 0),
        ("x", "1", 0),
    ],
)
def test_entries_are_those_of_a_target_and_release(tmp_path, target, version, count):
    found = load(tmp_path, HEAD + entry(), target, version)
    assert [each.property for each in found] == ["usage_adds_up"] * count


def test_an_entry_has_what_its_record_says(tmp_path):
    more = ', goes_on = false, reason = "why", rates = { "1.2" = 0.5, "2.0" = 9.0 }'
    (found,) = load(tmp_path, HEAD + entry(more=more))
    assert (found.reason, found.goes_on, found.rate, found.history) == ("why", False, 0.5, None)
    assert found.upstream == "https://github.com/vllm-project/vllm/issues/7"
    assert not found.strict, "there is no lock of the release: the bug may be mended"


def test_a_bug_may_be_mended_in_a_build_of_a_locked_release(tmp_path):
    text = HEAD + entry().replace(">=1,<3", ">=0.33")
    (released,) = load(tmp_path, text, "vllm", "0.33.0")
    (own,) = load(tmp_path, text, "vllm", "0.33.0", build="0.33.0+mine")
    assert (released.strict, own.strict) == (True, False)


def test_a_finding_has_a_history_but_where_another_failure_comes_first(tmp_path):
    text = entry().replace('mechanism = "', 'finding = "f"\nmechanism = "')
    (found,) = load(tmp_path / "a", HEAD + text)
    assert found.history == tmp_path / "a" / "vllm" / "findings" / "f" / "history.json"
    assert found.reason == "it broke (suites/engines/vllm/findings/f)"
    text = text.replace('usage_adds_up"', 'usage_adds_up", replayed = false')
    (found,) = load(tmp_path / "b", HEAD + text)
    assert found.history is None


def test_the_layer_of_a_bug_is_that_of_its_target(tmp_path):
    text = HEAD + entry().replace("versions", 'layer = "loop"\nversions')
    assert load(tmp_path, text) == []
    assert len(load(tmp_path, text, "vllm-engine")) == 1


@pytest.mark.parametrize(("unsupported", "left"), [((), 1), (("blocks",), 1), (("lmcache",), 0)])
def test_an_entry_needs_what_shows_it(tmp_path, unsupported, left):
    text = HEAD + entry().replace("versions", 'needs = "lmcache"\nversions')
    assert len(load(tmp_path, text, unsupported=unsupported)) == left


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (entry("usage_add_up"), "v-1 names the property 'usage_add_up'", "'usage_adds_up'"),
        (entry("zzz"), "v-1 names the property 'zzz'", "--list-properties"),
        (entry() + 'why = "x"', "bugs.toml' is no list of bugs", ""),
        ('[[bug]]\nid = "v-1"', "bugs.toml' is no list of bugs", ""),
        ("[[bug", "bugs.toml' is no list of bugs", ""),
        ("# \udcff", "bugs.toml' is no list of bugs: 'utf-8' codec can't decode", ""),
        (
            entry() + entry(id="v-2"),
            "v-2 fails 'usage_adds_up' by 'chunk_across_blocks' twice in 1.2",
            "keep one",
        ),
        (
            entry(mechanism="chunks_across_blocks"),
            "v-1 names the mechanism 'chunks_across_blocks'",
            "'chunk_across_blocks'",
        ),
    ],
)
def test_a_record_that_could_never_match_is_refused(tmp_path, text, message, hint):
    with pytest.raises(UsageError) as refused:
        load(tmp_path, HEAD + text)
    assert message in str(refused.value)
    assert str(tmp_path / "vllm") in str(refused.value)
    assert hint in refused.value.hint


def test_a_room_may_have_no_predicates(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "bugs.toml").write_text(HEAD)
    room = rooms.room("other", folder=tmp_path)
    assert (room.predicates(), room.adoptions(), room.bugs) == ({}, {}, ())


def test_records_may_lie_in_files_by_topic(tmp_path):
    load(tmp_path, HEAD)
    topic = entry("hits_are_maximal", id="v-2")
    fresh = tmp_path / "other"
    load(fresh, topic, "nothing", name="bugs/topic.toml")
    found = load(fresh, HEAD + entry())
    assert [each.property for each in found] == ["usage_adds_up", "hits_are_maximal"]


def test_a_list_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "vllm" / "bugs.toml").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"cannot read .*bugs\.toml.: Is a directory"):
        expected_failures.load("vllm", "1", folder=tmp_path, names=property_names())
