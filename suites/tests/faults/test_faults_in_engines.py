"""A fault planted in an engine's process is no symptom of the next fault, nor of the engine."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.suites.faults import child
from kvproof.suites.faults.catalogue import PlantedFault, find
from kvproof.suites.faults.messages import Job
from kvproof.suites.faults.planters import Live

FAULT = find("lmcache_salt_is_no_key")

JOB = Job(FAULT, "pr", None, "")


class Engine(Live):
    def __init__(self, *, used: bool) -> None:
        self.handle: Any = None
        self.used, self.renewed = used, 0

    def planted(self, fault: PlantedFault) -> Any:
        return nullcontext()

    def renew(self) -> None:
        self.renewed += 1
        self.used = False


SOUND, LEFT_BY_AN_EARLIER_FAULT, WRONG_ITSELF = (False,), (True, False), (True, True)
"""Whether the history fails without the fault: at first, and in a new process."""


@pytest.mark.parametrize(
    ("without", "processes", "outcome"),
    [
        (SOUND, 0, "killed"),
        (LEFT_BY_AN_EARLIER_FAULT, 2, "killed"),
        (WRONG_ITSELF, 2, "left_out"),
    ],
)
def test_a_failure_without_the_fault_is_judged_again_in_a_new_process(
    monkeypatch: pytest.MonkeyPatch, without: tuple[bool, ...], processes: int, outcome: str
) -> None:
    engine, left = Engine(used=True), list(without)
    event = SimpleNamespace(outcome="killed", kill="a history", cases=3)
    monkeypatch.setattr(child, "_judged", lambda *_, **__: event)
    monkeypatch.setattr(child, "_fails_without", lambda *_: left.pop(0))
    found: Any = child._of_engine(engine, FAULT, JOB, lambda *_: None)
    assert (found.outcome, engine.renewed, left) == (outcome, processes, [])


@pytest.mark.parametrize(("used", "judgements"), [(True, 2), (False, 1)])
def test_a_fault_that_survives_in_a_used_process_is_judged_again_in_a_new_one(
    monkeypatch: pytest.MonkeyPatch, used: Any, judgements: int
) -> None:
    kills = [None, "found when nothing was kept"]
    judged: list[Any] = []

    def judge(*_: object, **__: object) -> Any:
        judged.append(SimpleNamespace(kill=kills[len(judged)]))
        return judged[-1]

    monkeypatch.setattr(child, "_judged", judge)
    monkeypatch.setattr(child, "_fails_without", lambda *_: False)
    found: Any = child._of_engine(Engine(used=used), FAULT, JOB, lambda *_: None)
    assert (len(judged), found) == (judgements, judged[-1])


@pytest.mark.parametrize(
    ("outcome", "message", "known", "fails"),
    [
        ("FAILED", "usage_adds_up: it does not", "", True),
        ("FAILED", "usage_adds_up: it does not", "a known failure", False),
        ("FAILED", "malformed_identity_is_refused: impossible without the fault", "", False),
        ("FIXED", "usage_adds_up holds", "", False),
    ],
)
def test_only_the_same_failure_counts_against_the_engine(
    monkeypatch: pytest.MonkeyPatch, outcome: str, message: str, known: str, fails: Any
) -> None:
    again = SimpleNamespace(outcome=outcome, message=message, known=known)
    monkeypatch.setattr("kvproof.suites.runner.replay.replay", lambda *_: again)
    kill = SimpleNamespace(property="usage_adds_up", op_log="log.json")
    assert child._fails_without(Engine(used=False).handle, SimpleNamespace(kill=kill), JOB) is fails
