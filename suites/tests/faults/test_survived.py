"""A fault's run that is cut off goes on with the next suite; tracing of an engine likewise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kvproof.harness.adapters.reference.target import make_target
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.whole_engine.executed_lines import FILES
from kvproof.suites.faults import child, reach
from kvproof.suites.faults.catalogue import find
from kvproof.suites.faults.drawn import executed
from kvproof.suites.faults.judge import Attempt, Judge
from kvproof.suites.faults.messages import Job
from kvproof.suites.faults.survived import FILE, Survived
from kvproof.suites.faults.verdict import CRASH
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.suite import Suite
from kvproof.suites.tests.faults.test_faults_in_engines import Engine

FAULT = find("refusal_leaks")


class Cut(Judge):
    """Explores nothing: notes each suite, has ten cases in it, and stops before one of them."""

    def __init__(self, survived: Survived | None, stops: str = "") -> None:
        handle = InProcessHandle("reference", make_target)
        super().__init__(handle, Nowhere(), budget=BUDGETS["pr"], survived=survived)
        self.explored: list[str] = []
        self._stops = stops

    def _explore(self, attempt: Attempt) -> None:
        if attempt.suite.name == self._stops:
            raise KeyboardInterrupt
        self.explored.append(attempt.suite.name)
        self._cases += 10


class Nowhere:
    def write_file(self, name: str, data: bytes) -> Path:
        raise AssertionError(f"{name} is stored, though nothing fails")


def cut_off(path: Path, suite: str) -> list[str]:
    judge = Cut(Survived(path), suite)
    with pytest.raises(KeyboardInterrupt):
        judge.judge(FAULT)
    return judge.explored


def test_a_survivor_goes_on_with_the_next_suite(tmp_path: Path) -> None:
    whole = Cut(None)
    cases = whole.judge(FAULT).cases
    path = tmp_path / "faults" / FILE
    third, seventh = whole.explored[2], whole.explored[6]
    first, second = cut_off(path, third), cut_off(path, seventh)
    last = Cut(Survived(path))
    event = last.judge(FAULT)
    assert first + second + last.explored == whole.explored
    assert [len(first), len(second)] == [2, 4]
    assert (event.outcome, event.cases) == ("survived", cases)


def test_the_suites_of_its_module_judge_a_drawn_fault_first() -> None:
    drawn = replace(FAULT, module="reference.tiers.disk_tier", property="", promise="any")
    judge = Cut(None)
    judge.judge(drawn)
    assert judge.explored[0] == "tiers"


class Ending(Cut):
    """Every suite ends in an error of its own."""

    def explore(self, *_: object, **__: object) -> Any:
        raise AttributeError("no attribute 'readings'")

    _explore = Judge._explore


def test_a_drawn_fault_that_ends_a_suite_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Ending(None)
    monkeypatch.setattr(Suite, "explore", judge.explore)
    event = judge.judge(replace(FAULT, property="", promise="any"))
    assert event.kill is not None
    assert (event.kill.suite, event.kill.oracle) == ("cache", CRASH)
    assert event.kill.sentence == "the suite ends with AttributeError: no attribute 'readings'"
    with pytest.raises(AttributeError):  # it has a property to break
        Ending(None).judge(FAULT)


@pytest.mark.parametrize("used", [True, False])
def test_suites_are_kept_only_of_a_process_without_earlier_faults(
    monkeypatch: pytest.MonkeyPatch, used: Any
) -> None:
    kept: list[bool] = []

    def judge(*_: object, **options: bool) -> Any:
        kept.append(options["kept"])
        return SimpleNamespace(kill=None)

    monkeypatch.setattr(child, "_judged", judge)
    job = Job(find("lmcache_salt_is_no_key"), "pr", None, "")
    child._of_engine(Engine(used=used), job.fault, job, lambda *_: None)
    assert kept == ([False, True] if used else [True])
    kept.clear()
    child._of_engine(Engine(used=used), replace(job.fault, promise="any"), job, lambda *_: None)
    assert kept == [True]


class Traced:
    """A process of an engine whose tracing tells the lines of the suites that it has explored."""

    files = "first release"

    def __init__(self) -> None:
        self.ran: list[int] = []
        self.explored: list[int] = []

    def __enter__(self) -> Traced:
        return self

    def __exit__(self, *_: object) -> None: ...

    @contextmanager
    def prepared(self, *_: object) -> Iterator[None]:
        yield

    def run_job(self, job: str, *_: object, **__: object) -> Any:
        if job == FILES:
            return {"digest": self.files}
        lines, self.ran = {"/engine/pool.py": self.ran}, []
        return {"lines": lines}


def suite(name: str, line: int, process: Traced) -> Any:
    def explore(_: object, __: object) -> Any:
        process.ran.append(line)
        process.explored.append(line)
        right = {"broken": None, "died": None, "violation": None}
        return SimpleNamespace(interrupted=line == 0, test_cases=50, **right)

    found = SimpleNamespace(name=name, judged=True, explore=explore)
    found.knowing = lambda _: found
    return found


def test_an_engine_is_traced_once_and_goes_on_with_the_suite_it_was_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines = {"cache": 3, "hits": 0, "engine": 7}
    processes: list[Traced] = []

    def opened(_: str) -> Traced:
        processes.append(Traced())
        return processes[-1]

    def suites(*_: object) -> list[Any]:
        return [suite(name, line, processes[-1]) for name, line in lines.items()]

    monkeypatch.setenv("KVPROOF_HOME", str(tmp_path))
    monkeypatch.setattr(executed, "search_of", lambda found: found.explore)
    monkeypatch.setattr(executed, "open_handle", opened)
    monkeypatch.setattr(executed, "known_failures", lambda _: ())
    monkeypatch.setattr(executed.levels, "suites", suites)
    with pytest.raises(KeyboardInterrupt):
        executed.recorded("vllm==0.33.0", lambda *_: None)
    lines["hits"] = 5
    path = executed.recorded("vllm==0.33.0", lambda *_: None)
    (module,) = executed.modules(record := reach.load(path, "pr"))
    assert (module.module, str(module.path)) == ("pool", "/engine/pool.py")
    assert module.lines == {3, 5, 7}
    assert [each.lines["pool"] for each in record.suites.values()] == [[3], [5], [7]]
    assert executed.recorded("vllm==0.33.0", lambda *_: None) == path
    assert [process.explored for process in processes if process.explored] == [[3, 0], [5, 7]]
    monkeypatch.setattr(Traced, "files", "next release")
    assert executed.recorded("vllm==0.33.0", lambda *_: None) != path
