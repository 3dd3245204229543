"""Levels choose what is judged, by whichever verb."""

from __future__ import annotations

import msgspec

from kvproof.harness.records.events import Exercised, PropertyVerdict, Replayed, Skipped
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.reproduce.oplog import dump
from kvproof.suites.framework.model_test import run
from kvproof.suites.framework.model_test_log import PartLog
from kvproof.suites.runner import levels, registry
from kvproof.suites.runner.runner import CORPUS, SuiteRun
from kvproof.suites.tests.cli.cli_kit import here

ELSEWHERE = "kvproof.harness.adapters.reference.target:make_target"
"""Any target that is not called `reference`, whatever it is made of."""
SETTINGS = '[run]\nbudget = "debug"\n[gate]\nbench = false\nlevel = "full"\n'
HITS = PartLog(
    part="hits",
    property="the_hit_is_the_longest_valid_length",
    config={"groups": [["full", 2, 0, False]]},
    operations=[("hit", {"limit": 2, "resident": [[0]], "spans": []})],
)


def test_the_full_level_adds_the_parts_and_takes_nothing_away():
    core, full = levels.catalogue("core"), levels.catalogue("full")
    assert set(core) == {"cache"}
    assert list(full) == ["cache", *(part.name for part in registry.PARTS)]
    assert len(full) > 5
    assert {prop.name for prop in core["cache"]} < {prop.name for prop in full["cache"]}
    for part in registry.PARTS:
        assert part.properties, part.name


def test_the_gate_judges_the_reference_at_its_level_and_others_at_core(tmp_path, monkeypatch):
    """Which suites: what they find is other tests' business, and takes minutes."""
    monkeypatch.setattr(SuiteRun, "explore", lambda *_, **__: None)
    (tmp_path / "kvproof.toml").write_text(SETTINGS)
    here("gate", "--targets", f"reference {ELSEWHERE}", "--output", "record", cwd=tmp_path)
    events = read_run(tmp_path / "record").events
    suites = {(e.target, e.suite) for e in events if isinstance(e, Exercised)}
    missing = {part.name for part in registry.PARTS if part.missing()}
    judged = levels.catalogue("full").keys() - missing
    assert suites == {("reference", name) for name in judged} | {(ELSEWHERE, "cache")}
    verdicts = [e for e in events if isinstance(e, PropertyVerdict) and e.target == ELSEWHERE]
    assert [e.property for e in verdicts] == [prop.name for prop in levels.properties("core")]


def test_logs_of_parts_are_replayed_on_the_reference(tmp_path):
    (tmp_path / "log.json").write_bytes(dump(HITS))
    done = here("replay", "log.json", "--output", "record", cwd=tmp_path)
    assert done.code == 0, done.err
    (event,) = (e for e in read_run(tmp_path / "record").events if isinstance(e, Replayed))
    assert (event.outcome, event.target) == ("FIXED", "reference")
    assert event.expected == HITS.property


def test_logs_of_parts_are_skipped_on_other_targets(tmp_path):
    (tmp_path / "log.json").write_bytes(dump(HITS))
    of_targets = str(CORPUS / "pinned_path_survives_a_reset.json")
    asked = ("--target", ELSEWHERE, "--output", "record")
    done = here("replay", "log.json", of_targets, *asked, cwd=tmp_path)
    assert done.code == 0, done.err
    (event,) = (e for e in read_run(tmp_path / "record").events if isinstance(e, Skipped))
    assert event.reason == "a part of the reference engine"


def test_a_replay_of_logs_that_are_all_skipped_is_no_pass(tmp_path):
    (tmp_path / "log.json").write_bytes(dump(msgspec.structs.replace(HITS, target="store==1")))
    done = here("replay", "log.json", "--target", "reference", cwd=tmp_path)
    assert done.code == 2
    assert "log.json on reference: recorded on the part 'hits' that store==1 offers" in done.err


def test_a_log_of_an_unknown_part_is_refused(tmp_path):
    log = dump(HITS).replace(b'"hits"', b'"hitz"')
    (tmp_path / "log.json").write_bytes(log)
    done = here("replay", "log.json", cwd=tmp_path)
    assert done.code == 2
    assert "there is no part 'hitz'" in done.err
    assert "did you mean 'hits'?" in done.err


def test_the_log_of_the_example_is_one_that_its_part_can_run():
    part = registry.find("hits")
    assert run(part, HITS.config, HITS.operations).recorder.checks[HITS.property] == 1
