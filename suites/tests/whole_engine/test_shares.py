"""A suite's histories in two processes: the results are those of one."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import msgspec
import pytest
from hypothesis import settings

from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.records.events import AnyEvent, Exercised, PropertyVerdict
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.explore import Counts, Elsewhere
from kvproof.suites.framework.seeds import PARTS
from kvproof.suites.runner import runner, shares
from kvproof.suites.runner.runner import SuiteRun
from kvproof.suites.runner.shares import Sharing, whole
from kvproof.suites.whole_engine.strategies import SUITE

TOY = "kvproof.suites.tests.whole_engine.toy_target"
FEW = settings(BUDGETS["pr"], max_examples=PARTS, stateful_step_count=10)


class _Files:
    def write_file(self, name: str, data: bytes) -> Path:
        assert data
        return Path(name)


def judged(target: str, monkeypatch: pytest.MonkeyPatch, *, cores: int) -> list[AnyEvent]:
    monkeypatch.setattr(shares, "_cores", lambda: cores)
    events: list[AnyEvent] = []
    with open_handle(target) as handle:
        run = SuiteRun(handle, _Files(), write=events.append, sharing=Sharing(target))
        run.run(FEW, only=SUITE.name)
    return events


def test_two_processes_count_what_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    take = shares._Division.elsewhere

    def noting(division: shares._Division, part: int) -> Counts | None:
        asked.append(take(division, part))
        return asked[-1]  # type: ignore[return-value]  # it came from `take`

    monkeypatch.setattr(shares._Division, "elsewhere", noting)
    one, two = (
        [
            timeless(event)
            for event in judged(f"{TOY}:make_sound_target", monkeypatch, cores=cores)
            if isinstance(event, Exercised | PropertyVerdict)
        ]
        for cores in (1, 2)
    )
    assert one == two
    assert any(isinstance(each, Counts) for each in asked)
    assert any(each is None for each in asked)
    assert len(asked) == PARTS


def test_suites_explored_by_another_process_count_what_they_count_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Counts] = []

    def noting(counts: Counts) -> Elsewhere:
        asked.append(counts)
        return whole(counts)

    monkeypatch.setattr(shares, "WORTH", 1)
    monkeypatch.setattr(runner, "whole", noting)
    found = []
    for cores in (1, 2):
        monkeypatch.setattr(shares, "_cores", lambda cores=cores: cores)
        events: list[AnyEvent] = []
        with open_handle("reference") as handle:
            sharing = Sharing("reference")
            run = SuiteRun(handle, _Files(), write=events.append, level="full", sharing=sharing)
            run.suites = tuple(each for each in run.suites if each.name in {"keys", "metrics"})
            run.run(FEW)
        found.append([timeless(each) for each in events])
    assert found[0] == found[1]
    assert asked  # the second one, at least, was explored elsewhere
    assert all(each.seconds > 0 for each in asked)


def timeless(event: AnyEvent) -> AnyEvent:
    if isinstance(event, Exercised):
        return msgspec.structs.replace(event, seconds=0, engine_seconds=0)
    return event


def order(**more: object) -> shares.Order:
    given: dict[str, object] = {
        "sharing": Sharing(f"{TOY}:make_target"),
        "level": "core",
        "suite": "engine",
        "part": PARTS - 1,
        "budget": shares.Budget(16 * PARTS, 30, derandomize=True),
        "seed": None,
        "known": (),
        **more,
    }
    return shares.Order(**given)  # type: ignore[arg-type]  # each has the type of its field


def test_what_newly_fails_in_another_process_is_left_to_this_one() -> None:
    assert shares.explore_part(order()) is None
    known = shares.explore_part(order(known=("namespaces_are_separate",)))
    assert known is not None
    assert known.unshrunk.keys() == {"namespaces_are_separate"}


def test_parts_are_taken_from_both_ends() -> None:
    division = shares._Division(4)
    assert division.elsewhere(0) is None
    others = division.from_the_end()
    part, found = next(others)
    assert part == 3
    assert division.elsewhere(1) is None
    assert next(others)[0] == 2
    assert list(others) == []
    answers: list[object] = []
    waiting = Thread(target=lambda: answers.append(division.elsewhere(3)))
    waiting.start()
    found.set_result(Counts(test_cases=7))
    waiting.join()
    assert answers == [Counts(test_cases=7)]


def test_a_process_that_cannot_work_leaves_its_part_to_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shares, "COMMAND", ("/bin/false",))
    with shares.shared_out(1, 3, lambda _: order()) as elsewhere:
        assert [elsewhere(part) for part in range(3)] == [None, None, None]
