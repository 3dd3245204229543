"""Levels choose what is judged, by whichever verb."""

from __future__ import annotations

import msgspec

from kvproof.harness.records.events import Exercised, PropertyVerdict, Replayed, Skipped
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.reproduce.oplog import OpLog, calls, dump
from kvproof.suites.framework.component_suite import run
from kvproof.suites.runner import levels, registry
from kvproof.suites.runner.corpus import CORPUS
from kvproof.suites.runner.runner import SuiteRun
from kvproof.suites.tests.cli.cli_kit import here

ELSEWHERE = "kvproof.harness.adapters.reference.target:make_target"
"""Any target that is not called `reference`, whatever it is made of."""
SETTINGS = '[run]\nbudget = "debug"\n[gate]\nbench = false\nsweep = false\nlevel = "full"\n'
HITS = OpLog(
    suite="hits",
    target="reference",
    property="the_hit_is_the_longest_valid_length",
    config={"groups": [["full", 2, 0, False]]},
    operations=[{"op": "hit", "limit": 2, "resident": [[0]], "spans": []}],
)


def test_the_full_level_adds_suites_and_takes_nothing_away():
    core, full = levels.catalogue("core"), levels.catalogue("full")
    assert set(core) == {"cache"}
    assert list(full) == ["cache", *(suite.name for suite in registry.SUITES)]
    assert len(full) > 5
    assert {prop.name for prop in core["cache"]} < {prop.name for prop in full["cache"]}
    for suite in registry.SUITES:
        assert suite.properties, suite.name


def test_the_gate_judges_the_reference_at_its_level_and_others_at_core(tmp_path, monkeypatch):
    """Which suites: what they find is other tests' business, and takes minutes."""
    monkeypatch.setattr(SuiteRun, "explore", lambda *_, **__: None)
    (tmp_path / "kvproof.toml").write_text(SETTINGS)
    here("gate", "--targets", f"reference {ELSEWHERE}", "--output", "record", cwd=tmp_path)
    events = read_run(tmp_path / "record").events
    suites = {(e.target, e.suite) for e in events if isinstance(e, Exercised)}
    missing = {suite.name for suite in registry.SUITES if suite.missing()}
    judged = levels.catalogue("full").keys() - missing
    assert suites == {("reference", name) for name in judged} | {(ELSEWHERE, "cache")}
    verdicts = [e for e in events if isinstance(e, PropertyVerdict) and e.target == ELSEWHERE]
    assert [e.property for e in verdicts] == [prop.name for prop in levels.properties("core")]


def test_logs_of_component_suites_are_replayed_on_the_reference(tmp_path):
    (tmp_path / "log.json").write_bytes(dump(HITS))
    done = here("replay", "log.json", "--output", "record", cwd=tmp_path)
    assert done.code == 0, done.err
    (event,) = (e for e in read_run(tmp_path / "record").events if isinstance(e, Replayed))
    assert (event.outcome, event.target) == ("FIXED", "reference")
    assert event.expected == HITS.property


def test_logs_of_component_suites_are_skipped_on_other_targets(tmp_path):
    (tmp_path / "log.json").write_bytes(dump(HITS))
    of_targets = str(CORPUS / "pinned_path_survives_a_reset.json")
    asked = ("--target", ELSEWHERE, "--output", "record")
    done = here("replay", "log.json", of_targets, *asked, cwd=tmp_path)
    assert done.code == 0, done.err
    (event,) = (e for e in read_run(tmp_path / "record").events if isinstance(e, Skipped))
    assert event.reason == "it judges a component of the reference engine"


def test_a_replay_of_logs_that_are_all_skipped_is_no_pass(tmp_path):
    (tmp_path / "log.json").write_bytes(dump(msgspec.structs.replace(HITS, target="store==1")))
    done = here("replay", "log.json", "--target", "reference", cwd=tmp_path)
    assert done.code == 2
    assert "log.json on reference: it ran on the 'hits' implementation of store==1" in done.err


def test_a_log_of_an_unknown_suite_is_refused(tmp_path):
    log = dump(HITS).replace(b'"hits"', b'"hitz"')
    (tmp_path / "log.json").write_bytes(log)
    done = here("replay", "log.json", cwd=tmp_path)
    assert done.code == 2
    assert "there is no suite 'hitz'" in done.err
    assert "did you mean 'hits'?" in done.err


def test_the_log_of_the_example_is_one_that_its_suite_can_run():
    suite = registry.component("hits")
    assert run(suite, HITS.config, calls(HITS)).coverage.checks[HITS.property] == 1
