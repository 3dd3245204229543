"""What one bug leaves in an engine's process is no symptom of the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvproof.suites.faults import child
from kvproof.suites.faults.catalogue import find
from kvproof.suites.faults.messages import Job

FAULT = find("lmcache_salt_is_no_key")


@pytest.mark.parametrize(
    ("without", "processes", "outcome"),
    [((False,), 0, "killed"), ((True, False), 1, "killed"), ((True, True), 2, "survived")],
)
def test_a_failure_without_the_bug_is_judged_again_in_a_new_process(
    monkeypatch: pytest.MonkeyPatch, without: tuple[bool, ...], processes: int, outcome: str
) -> None:
    closed, left = [], list(without)
    worker = SimpleNamespace(close=lambda: closed.append(1))
    event = SimpleNamespace(outcome="killed", cases=3)
    monkeypatch.setattr(child, "_worker", lambda _: worker)
    monkeypatch.setattr(child, "_planted", lambda *_: event)
    monkeypatch.setattr(child, "_fails_without", lambda *_: left.pop(0))
    found: Any = child._engine(FAULT, Job(FAULT.name, "pr", None, ""), lambda *_: None)
    assert (found.outcome, len(closed), left) == (outcome, processes, [])
