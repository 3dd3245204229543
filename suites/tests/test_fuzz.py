"""Fuzzing goes on where it was, and looks at each failure once."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from kvproof.harness.adapters.reference import make_target
from kvproof.harness.cli import fuzz_worker
from kvproof.harness.cli.fuzz_worker import Explorer, Plan
from kvproof.harness.handles import InProcessHandle
from kvproof.harness.records import read_run
from kvproof.suites import registry
from kvproof.suites.cache.budgets import BUDGETS
from kvproof.suites.tests.cli_kit import TARGETS, kvproof, started
from kvproof.suites.tests.cli_targets import STARTED
from kvproof.suites.tests.part_kit import stack

SLOW = f"{TARGETS}:slow"


@pytest.fixture
def explorer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Explorer:
    few = settings(BUDGETS["debug"], max_examples=12)
    monkeypatch.setitem(fuzz_worker.BUDGETS, "pr", few)
    plan = Plan(
        specs=("reference",),
        max_seconds=600,
        level="full",
        keep_going=True,
        database=str(tmp_path / "examples"),
        artifact="",
        directory=tmp_path,
        seed=1,
        workers=1,
    )
    return Explorer(plan, 0)


def chunk(explorer: Explorer, suite: str):
    handle = InProcessHandle("reference", make_target)
    (found,) = (found for found in explorer.chunks(handle) if found.suite == suite)
    return found.tally


def test_a_failure_is_shrunk_once_and_then_only_counted(explorer, monkeypatch):
    monkeypatch.setattr(registry, "PARTS", (stack(broken=True),))
    first, second = chunk(explorer, "stack"), chunk(explorer, "stack")
    assert set(first.failures) == {"what_is_pushed_comes_back"}
    assert second.failures == {}
    assert second.tolerated["what_is_pushed_comes_back"]
    first.merge(second)
    assert set(first.failures) == {"what_is_pushed_comes_back"}


def test_every_suite_of_the_level_is_explored(explorer, monkeypatch):
    monkeypatch.setattr(registry, "PARTS", (stack(),))
    handle = InProcessHandle("reference", make_target)
    found = list(explorer.chunks(handle))
    assert [each.suite for each in found] == ["cache", "stack"]
    assert all(each.tally.test_cases for each in found)


def test_workers_begin_at_different_suites(explorer, monkeypatch):
    monkeypatch.setattr(registry, "PARTS", (stack(),))
    plan = replace(explorer.plan, workers=2)
    handle = InProcessHandle("reference", make_target)
    begun = [next(Explorer(plan, index).chunks(handle)).suite for index in range(2)]
    assert begun == ["cache", "stack"]


def test_parts_are_not_explored_for_other_targets(explorer, monkeypatch):
    monkeypatch.setattr(registry, "PARTS", (stack(),))
    found = list(explorer.chunks(InProcessHandle("subject", make_target)))
    assert [each.suite for each in found] == ["cache"]


def test_a_killed_fuzz_goes_on_with_its_seed(tmp_path):
    command = ("fuzz", "--target", SLOW, "--max-time", "8s")
    with started(*command, cwd=tmp_path) as running:
        running.until((tmp_path / STARTED).exists)
        running.send(signal.SIGKILL)
    seed = read_run(running.record).manifest.seed
    again = kvproof(*command, "--output", "record", cwd=tmp_path)
    assert again.code in (0, 3), again.err
    run = read_run(running.record)
    assert run.ended is not None
    assert run.manifest.seed == seed
    other = kvproof(*command, "--seed", str(seed + 1), "--output", "record", cwd=tmp_path)
    assert other.code == 2
    assert "holds another run" in other.err
