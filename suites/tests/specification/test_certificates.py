"""Certificates stand on whole runs, pass nothing that is not shown, and can be verified."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvproof.harness.cli.actions import certify
from kvproof.harness.cli.app import main
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.isolation.registry import OwnTargets
from kvproof.harness.records.events import (
    Ended,
    PropertyVerdict,
    TargetConcluded,
    TargetStarted,
    Verdict,
)
from kvproof.harness.records.run_directory import Manifest, Run
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.specification.certificate import Certificate, exit_code, issue
from kvproof.suites.specification.classes import CLASSES
from kvproof.suites.specification.verification import own_problems, record_problems

BLOCKS = CLASSES["blocks"]
TARGET = "mine:make_target"
CORE, EXTENDED = "reads_return_own_content", "least_recent_goes_first"
CORE_RULES = next(prop.rules for _, prop in BLOCKS.properties() if prop.name == CORE)


def run_of(
    folder: Path, changes: Mapping[str, Verdict] = {}, config: Mapping[str, str] = {}
) -> Run:
    """A run of the class `blocks` that passes, but for some properties."""
    events: list[Any] = [
        TargetStarted(target=TARGET, engine="mine", version="1", profile={"unsupported": {}},
                      isolation="worker"),
        *(
            PropertyVerdict(target=TARGET, suite=suite, property=prop.name, section="B",
                            rules=list(prop.rules), sentence=prop.sentence, checks=3,
                            verdict=changes.get(prop.name, "pass"))
            for suite, prop in BLOCKS.properties()
        ),
        TargetConcluded(target=TARGET),
        Ended(verdict="pass", exit_code=0, sentence="", seconds=1),
    ]  # fmt: skip
    given = {"targets": [TARGET], "budget": "pr", "level": "core", **config}
    manifest = Manifest(
        schema=1, id="a", verb="run", command=["kvproof"], started="2026-01-01T00:00:00Z",
        config=given, versions={}, hardware={},
    )  # fmt: skip
    (folder / "events.jsonl").write_text("\n".join(map(repr, events)))
    (folder / "run.json").write_text("{}")
    return Run(directory=folder, manifest=manifest, events=events)


def code(*arguments: str) -> int:
    try:
        main(arguments)
    except SystemExit as ended:
        return int(str(ended.code))
    return 0


def issued(folder: Path, changes: Mapping[str, Verdict] = {}) -> Certificate:
    return issue(run_of(folder, changes), TARGET, BLOCKS, {})


@pytest.mark.parametrize(
    ("changes", "outcome", "code"),
    [
        ({}, "conformant", Exit.PASS),
        ({CORE: "fail"}, "not conformant", Exit.FAILURE),
        ({CORE: "expected_failure"}, "not conformant", Exit.FAILURE),
        ({CORE: "inconclusive"}, "inconclusive", Exit.INCONCLUSIVE),
        ({CORE: "inconclusive", "namespaces_are_separate": "fail"}, "not conformant", Exit.FAILURE),
        ({EXTENDED: "fail"}, "partially conformant", Exit.FAILURE),
        ({EXTENDED: "expected_failure"}, "partially conformant", Exit.PASS),
        ({EXTENDED: "inconclusive"}, "partially conformant", Exit.INCONCLUSIVE),
        ({"table_never_shifts": "unsupported"}, "conformant", Exit.PASS),
    ],
)
def test_the_outcome_is_that_of_the_worst_rule(
    tmp_path: Path, changes: Mapping[str, Verdict], outcome: str, code: Exit
) -> None:
    found = issued(tmp_path, changes)
    assert (found.outcome, exit_code(found)) == (outcome, code)
    assert list(own_problems(found)) == []


def of_connector(folder: Path, **changes: Any) -> Certificate:
    """That of a connector, with which a core property fails by the engine itself."""
    run = run_of(folder, {CORE: "expected_failure"})
    known = {"of_engine": True, "situations": {"a": 1}, **changes}
    target = "vllm-engine==0.33.0+mine:Connector"
    events = [
        msgspec.structs.replace(
            each, target=target, **(known if getattr(each, "property", "") == CORE else {})
        )
        for each in run.events[:-1]
    ]
    run = msgspec.structs.replace(run, events=[*events, run.events[-1]])
    return issue(run, target, BLOCKS, {})


def test_a_known_failure_of_the_engine_does_not_fail_its_connector(tmp_path: Path) -> None:
    found = of_connector(tmp_path)
    by_engine = [each.rule for each in found.rules if each.outcome == "engine_failure"]
    assert (found.outcome, exit_code(found)) == ("conformant", Exit.PASS)
    assert by_engine == [rule for rule in BLOCKS.core if rule in CORE_RULES]
    assert by_engine
    assert any(CORE in each for each in found.known_failures)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"situations": {"a": 0}}, "inconclusive"),
        ({"checks": 0}, "inconclusive"),
        ({"of_engine": False}, "not conformant"),
        ({"verdict": "fail", "of_engine": False}, "not conformant"),
    ],
)
def test_a_connectors_own_failures_and_missing_situations_count(
    tmp_path: Path, changes: dict[str, Any], outcome: str
) -> None:
    assert of_connector(tmp_path, **changes).outcome == outcome


def test_a_failure_of_the_engine_counts_in_its_own_certificate(tmp_path: Path) -> None:
    run = run_of(tmp_path, {CORE: "expected_failure"})
    events = [
        msgspec.structs.replace(each, of_engine=True) if isinstance(each, PropertyVerdict) else each
        for each in run.events
    ]
    found = issue(msgspec.structs.replace(run, events=events), TARGET, BLOCKS, {})
    assert found.outcome == "not conformant"


def test_what_is_not_claimed_is_named_and_all_of_it_is_no_claim(tmp_path: Path) -> None:
    names = [prop.name for _, prop in BLOCKS.properties()]
    spans = issued(tmp_path, {"malformed_identity_is_refused": "unsupported"})
    assert spans.outcome == "conformant"
    assert [each.rule for each in spans.rules if each.outcome == "not_claimed"] == ["H8"]
    assert issued(tmp_path, dict.fromkeys(names, "unsupported")).outcome == "not conformant"


@pytest.mark.parametrize(
    "change",
    [
        lambda run: msgspec.structs.replace(run, events=run.events[:-1]),
        lambda run: msgspec.structs.replace(run, events=[*run.events[:-2], run.events[-1]]),
        lambda run: msgspec.structs.replace(run, events=run.events[1:]),
    ],
    ids=["killed", "not concluded", "not started"],
)
def test_a_partial_run_gets_none(tmp_path: Path, change: Callable[[Run], Run]) -> None:
    with pytest.raises(UsageError, match="has not judged"):
        issue(change(run_of(tmp_path)), TARGET, BLOCKS, {})


def test_a_small_budget_or_level_gets_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no run of budget pr or nightly"):
        issue(run_of(tmp_path, config={"budget": "debug"}), TARGET, BLOCKS, {})
    for level in ("", "huge"):
        with pytest.raises(UsageError, match=f"of level {level}, not core"):
            issue(run_of(tmp_path, config={"level": level}), TARGET, BLOCKS, {})
    with pytest.raises(UsageError, match="of level core, not full"):
        issue(run_of(tmp_path), TARGET, CLASSES["hybrid"], {})


def test_records_are_compared_without_any_engine(tmp_path: Path) -> None:
    run, found = run_of(tmp_path), issued(tmp_path)
    assert list(record_problems(found, run)) == []
    (tmp_path / "events.jsonl").write_text("another run")
    assert list(record_problems(found, run)) == ["events.jsonl is another file"]
    other = run_of(tmp_path, {CORE: "fail"})
    assert f"cache: {CORE} is pass there and fail here" in list(record_problems(found, other))


def _without_a_rule(data: dict[str, Any]) -> None:
    del data["rules"][0]


def _better(data: dict[str, Any]) -> None:
    data["rules"][0]["outcome"] = "fail"


def _old(data: dict[str, Any]) -> None:
    data["specification"] = "0.9"


def _unknown(data: dict[str, Any]) -> None:
    data["conformance_class"] = "all"


def _more(data: dict[str, Any]) -> None:
    data["note"] = "x"


@pytest.mark.parametrize(
    ("change", "ends", "words"),
    [
        (lambda _: None, Exit.PASS, "holds by the specification"),
        (_without_a_rule, Exit.FAILURE, "the core rule B1 is missing"),
        (_better, Exit.FAILURE, "its rules amount to 'not conformant'"),
        (_old, Exit.FAILURE, "it is of specification 0.9"),
        (_unknown, Exit.FAILURE, "there is no class 'all'"),
        (_more, Exit.USAGE, "unknown field"),
    ],
)
def test_a_file_that_was_changed_is_found(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any]], None],
    ends: int,
    words: str,
) -> None:
    data = json.loads(msgspec.json.encode(issued(tmp_path)))
    change(data)
    file = tmp_path / "certificate.json"
    file.write_text(json.dumps(data))
    assert code("certificate", "verify", str(file)) == ends
    captured = capsys.readouterr()
    assert words in " ".join((captured.out + captured.err).split())


@pytest.mark.parametrize(
    ("config", "options"),
    [({}, ()), ({"connector_options": ["size=3"]}, ("size=3",)), ({"connector_options": 3}, ())],
)
def test_a_repetition_has_the_options_of_the_connector(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, Any],
    options: tuple[str, ...],
) -> None:
    made = msgspec.structs.replace(issued(tmp_path), config=config)
    file = tmp_path / "certificate.json"
    file.write_bytes(msgspec.json.encode(made))
    judged: list[OwnTargets] = []
    monkeypatch.setattr(certify, "_judge", lambda *given: judged.append(given[-1]))
    monkeypatch.setattr(certify, "read_run", lambda _: None)
    monkeypatch.setattr(certify, "differences", lambda *_: ())
    assert code("certificate", "verify", str(file), "--repeat") == Exit.PASS
    assert judged == [OwnTargets(connector_options=options)]


@pytest.mark.slow(reason="a run, though a small one")
def test_a_target_is_certified_and_verified(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(BUDGETS, "pr", BUDGETS["debug"])
    file, run = str(tmp_path / "certificate.json"), str(tmp_path / "run")
    given = ("--class", "blocks", "--certificate", file, "--output", run)
    ended = code("certify", "examples.my_engine:make_target", *given)
    made = json.loads(Path(file).read_text())
    assert (made["outcome"], ended) in (("inconclusive", 3), ("conformant", 0))
    assert f"{made['outcome'].upper()}  examples.my_engine:make_target" in capsys.readouterr().out
    assert len(made["build"]["module"]) == 64
    assert code("certificate", "verify", file, "--run", run) == Exit.PASS
