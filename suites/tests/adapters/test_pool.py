"""Worker processes: tasks are done once, losses are named, and nothing is left behind."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kvproof.harness.isolation import pool
from kvproof.harness.isolation.pool import Worker, WorkerLost, run_on_pool
from kvproof.harness.isolation.process import WorkerProcess
from kvproof.suites.tests.patience import LONG

ECHO = """
import json, os, sys, time
for line in sys.stdin:
    asked = json.loads(line)
    if asked == "exit":
        os._exit(3)
    if asked == "hang":
        time.sleep(300)
    for answer in asked if isinstance(asked, list) else [asked]:
        print("no json" if answer == "nonsense" else json.dumps(answer), flush=True)
"""


def decode(line: bytes) -> Any:
    return pool.msgspec.json.decode(line)


def worker(tmp_path: Path) -> Worker[Any]:
    return Worker([sys.executable, "-c", ECHO], tmp_path / "log", decode=decode)


def test_a_worker_answers_and_streams(tmp_path: Path) -> None:
    one = worker(tmp_path)
    assert one.ask({"a": 1}, LONG) == {"a": 1}
    one.send([1, 2, 3], LONG)
    assert [one.receive(LONG) for _ in range(3)] == [1, 2, 3]
    assert not one.start(), "it runs already"
    one.end()
    assert one.start()
    one.end()


@pytest.mark.parametrize(
    ("asked", "kind", "reason", "code"),
    [
        ("exit", "crash", "the worker exited with code 3", 3),
        ("hang", "timeout", "no answer within 0.3 s", None),
        ("nonsense", "crash", "the worker talked nonsense", None),
    ],
)
def test_a_lost_worker_says_how_and_is_replaced(
    tmp_path: Path, asked: str, kind: str, reason: str, code: int | None
) -> None:
    one = worker(tmp_path)
    one.ask("ready", LONG)
    with pytest.raises(WorkerLost, match=reason) as lost:
        one.ask(asked, 0.3 if asked == "hang" else LONG)
    assert (lost.value.kind, lost.value.code) == (kind, code)
    assert one.ask("again", LONG) == "again"
    one.end()


def test_a_worker_that_is_killed_while_it_starts_does_not_live_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at the flag and the process being known, a kill used to miss it."""
    starting, go_on, made = threading.Event(), threading.Event(), []

    def slow(*arguments: Any, **keywords: Any) -> WorkerProcess:
        starting.set()
        go_on.wait(LONG)
        made.append(WorkerProcess(*arguments, **keywords))
        return made[0]

    monkeypatch.setattr(pool, "WorkerProcess", slow)
    one, lost = worker(tmp_path), []

    def ask() -> None:
        try:
            one.ask("hang", 2 * LONG)
        except WorkerLost as error:
            lost.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    assert starting.wait(LONG)
    killing = threading.Thread(target=one.kill)
    killing.start()
    time.sleep(0.1)
    go_on.set()
    killing.join(LONG)
    asking.join(LONG)
    assert not asking.is_alive()
    assert [each.kind for each in lost] == ["crash"]
    assert made[0].exit_code() == -9
    with pytest.raises(WorkerLost, match="being stopped"):
        one.start()


def test_what_is_interrupted_ends_at_once(tmp_path: Path) -> None:
    workers = [worker(tmp_path) for _ in range(2)]
    results = run_on_pool(
        workers, ["ready", "hang", "hang"], lambda each, asked: [each.ask(asked, 60)]
    )
    assert next(results) == "ready"
    results.close()
    for each in workers:
        with pytest.raises(WorkerLost, match="being stopped"):
            each.start()


@dataclass
class Pretended:
    """A process that only counts what becomes of it."""

    ended: int = 0
    killed: int = 0

    def end(self) -> None:
        self.ended += 1

    def kill(self) -> None:
        self.killed += 1


def pretended(size: int) -> list[Any]:
    return [Pretended() for _ in range(size)]


def test_every_task_is_done_once_by_somebody() -> None:
    three = pretended(3)
    assert sorted(run_on_pool(three, range(100), lambda _, task: [task])) == list(range(100))
    assert [(each.ended, each.killed) for each in three] == [(1, 0)] * 3


def test_an_error_of_one_is_raised_and_kills_all() -> None:
    two = pretended(2)

    def work(_: Pretended, task: int) -> list[int]:
        if task == 5:
            raise WorkerLost("start", "no such device", "log")
        return [task]

    with pytest.raises(WorkerLost, match="no such device"):
        list(run_on_pool(two, range(10), work))
    assert [each.killed for each in two] == [1, 1]


def test_who_stops_listening_kills_all() -> None:
    two = pretended(2)
    results_ = run_on_pool(two, range(1000), lambda _, task: [task])
    next(results_)
    results_.close()
    assert [(each.ended, each.killed) for each in two] == [(1, 1)] * 2


def test_who_finds_nothing_left_may_stay() -> None:
    two, kept = pretended(2), []
    assert len(list(run_on_pool(two, range(10), lambda _, task: [task], done=kept.append))) == 10
    assert sorted(map(id, kept)) == sorted(map(id, two))
    assert [(each.ended, each.killed) for each in two] == [(0, 0)] * 2
