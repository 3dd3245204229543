"""Ctrl-C, SIGTERM and SIGKILL in the middle: nothing recorded is lost, nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kvproof.harness.isolation import environments
from kvproof.harness.records.events import BenchSample, Exercised, Failure, TargetFailed
from kvproof.harness.records.run_directory import read_run
from kvproof.suites.framework.suite import Suite
from kvproof.suites.framework.verdicts import Tally
from kvproof.suites.runner import corpus, levels
from kvproof.suites.runner.runner import SuiteRun
from kvproof.suites.tests.cli.cli_kit import (
    ENGINE,
    TARGETS,
    VLLM,
    Started,
    closed_run,
    fake_engine,
    here,
    kvproof,
    nothing_is_left_of,
    started,
    verdicts,
    workers_of,
)
from kvproof.suites.tests.cli.cli_targets import STARTED

CORE = levels.properties("core")

SLOW = f"{TARGETS}:slow"
LONG_TO_SHRINK = f"{TARGETS}:refuses_for_long"
WORKLOAD = "shared-prefix:requests=400"
SETTINGS = '[run]\nbudget = "debug"\n'
COMMANDS: dict[str, tuple[str, Callable[[Started], object]]] = {
    "run": (f"run --target {SLOW}", lambda it: "histories" in it.out.read_text()),
    "fuzz": (f"fuzz --target {SLOW} --workers 2", lambda it: (it.cwd / STARTED).exists()),
    "bench": (f"bench --workload {WORKLOAD}", lambda it: it.has("bench_sample")),
    "gate": ("gate", lambda it: it.has("bench_sample")),
}
"""Verb -> command, and the moment at which it is in the middle."""


@pytest.mark.slow(reason="starts many processes")
@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("verb", COMMANDS)
def test_an_interrupted_run_is_closed_and_reported(
    tmp_path: Path, verb: str, name: signal.Signals
) -> None:
    (tmp_path / "kvproof.toml").write_text(SETTINGS)
    command, in_the_middle = COMMANDS[verb]
    with started(*command.split(), cwd=tmp_path) as running:
        running.until(lambda: in_the_middle(running))
        done = running.send(name, group=name != signal.SIGTERM)
        assert done.code == 130
        assert done.err == ""
        assert "INTERRUPTED" in done.out
        assert nothing_is_left_of(running)
    run = closed_run(running.record, 130)
    assert run.ended is not None
    assert run.ended.verdict == "interrupted"
    kept = BenchSample if verb in ("bench", "gate") else Exercised
    assert any(isinstance(event, kept) for event in run.events)


@pytest.mark.slow(reason="starts many processes")
def test_what_was_found_is_kept_even_while_it_shrinks(tmp_path: Path) -> None:
    with started("run", "--target", LONG_TO_SHRINK, "--budget", "debug", cwd=tmp_path) as running:
        running.until((tmp_path / STARTED).exists)
        assert running.send(signal.SIGINT).code == 130
    run = closed_run(running.record, 130)
    failure, *_ = (event for event in run.events if isinstance(event, Failure))
    assert (running.record / failure.op_log).exists()
    assert run.ended is not None
    assert f"first: {LONG_TO_SHRINK}: {failure.property}" in run.ended.sentence
    assert not verdicts(run, LONG_TO_SHRINK), "the rest was not judged"


def test_ctrl_c_while_kvproof_is_being_imported_is_quiet(tmp_path: Path) -> None:
    source = (
        "import importlib.abc, sys\n"
        "class CtrlC(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'kvproof.harness.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, CtrlC())\n"
        "from kvproof.harness.cli import main\n"
        "main(['doctor'])\n"
    )
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="starts many processes")
def test_a_killed_run_is_reported_and_resumed(tmp_path: Path) -> None:
    command = ("run", "--targets", f"reference {SLOW}", "--budget", "debug")
    with started(*command, cwd=tmp_path) as running:
        running.until((tmp_path / STARTED).exists)
        assert running.send(signal.SIGKILL).code == -signal.SIGKILL
    with (running.record / "events.jsonl").open("ab") as events:
        events.write(b'{"event":"property","at":1.0,"tar')

    report = kvproof("report", "record", cwd=tmp_path)
    assert report.code == 0
    assert report.err == ""
    assert "the run was killed before it closed" in report.out
    assert "killed" in (running.record / "report.html").read_text()
    run = read_run(running.record)
    assert run.ended is None
    assert run.torn == 1
    assert verdicts(run, "reference").total() == len(CORE)

    again = kvproof(*command, "--output", "record", cwd=tmp_path)
    assert again.code in (0, 3)
    assert "reference: judged before the interruption" in again.out
    run = read_run(running.record)
    assert run.ended is run.events[-1]
    assert verdicts(run, "reference").total() == len(CORE)
    assert verdicts(run, SLOW).total() == len(CORE)


@pytest.mark.parametrize("interrupted", [{1}, {10, 20}])
def test_a_run_that_is_resumed_leaves_out_no_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: set[int]
) -> None:
    explored: list[str] = []

    def explore(_: SuiteRun, suite: Suite, __: object, tally: Tally, **___: object) -> None:
        explored.append(suite.name)
        tally.interrupted = len(explored) in interrupted

    monkeypatch.setattr(SuiteRun, "explore", explore)
    monkeypatch.setattr(corpus, "CORPUS", tmp_path)
    mine = "kvproof.harness.adapters.reference.target:make_target"
    command = ("run", "--targets", f"{mine} {SLOW}", "--level", "full", "--output", "record")
    suites = list(levels.catalogue("full"))
    for _ in interrupted:
        assert here(*command, cwd=tmp_path).code == 130
    explored.clear()
    interrupted.clear()
    assert here(*command, cwd=tmp_path).code == 3
    assert explored == 2 * suites


@pytest.mark.slow(reason="starts many processes")
def test_killed_fuzz_leaves_no_worker_behind(tmp_path: Path) -> None:
    command = ("fuzz", "--target", SLOW, "--workers", "2")
    with started(*command, cwd=tmp_path) as running:
        running.until((tmp_path / STARTED).exists)
        running.send(signal.SIGKILL)
        assert nothing_is_left_of(running)
    assert kvproof("report", "record", cwd=tmp_path).code == 0


@pytest.mark.slow(reason="starts many processes")
def test_a_killed_run_leaves_no_engine_behind(tmp_path: Path) -> None:
    fake_engine(tmp_path, SLOW)
    with started("run", "--target", ENGINE, cwd=tmp_path, KVPROOF_HOME=str(tmp_path)) as running:
        running.until((tmp_path / STARTED).exists)
        workers = workers_of(running)
        assert len(workers) == 1
        running.send(signal.SIGKILL)
        assert nothing_is_left_of(running, *workers)


@pytest.mark.slow(reason="starts many processes")
def test_a_worker_killed_from_outside_is_a_verdict_about_its_target(tmp_path: Path) -> None:
    fake_engine(tmp_path, SLOW)
    _kill_the_worker(tmp_path, KVPROOF_HOME=str(tmp_path))


@pytest.mark.nightly(reason="the same on the reference runs before each merge")
@pytest.mark.slow(reason="starts many processes")
def test_the_same_with_the_real_engine(tmp_path: Path) -> None:
    if environments.state(VLLM) != "installed":
        pytest.skip(f"kvproof targets install {ENGINE}")
    _kill_the_worker(tmp_path)


def _kill_the_worker(cwd: Path, **environment: str) -> None:
    command = ("run", "--targets", f"{ENGINE} reference", "--budget", "debug")
    with started(*command, cwd=cwd, **environment) as running:
        running.until(lambda: "histories" in running.out.read_text())
        for worker in workers_of(running):
            os.kill(worker, signal.SIGKILL)
        done = running.wait()
    assert done.code == 1
    assert done.err == ""
    run = closed_run(running.record, 1)
    died, *_ = (event for event in run.events if isinstance(event, TargetFailed))
    assert (died.target, died.kind) == (ENGINE, "crash")
    assert "the worker was killed by SIGKILL during" in died.message
    assert "fail" not in verdicts(run, "reference")
    assert verdicts(run, "reference").total() == len(CORE)


def test_an_interruption_by_the_target_itself_is_not_a_pass(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make_target(config):\n    raise KeyboardInterrupt\n")
    command = ("run", "--target", "mine:make_target", "--output")
    assert here(*command, "record", "--in-process", cwd=tmp_path).code == 130
    assert not (tmp_path / "record").exists(), "it opens the target first: nothing ran"
    assert here(*command, "worker", cwd=tmp_path).code == 1
    closed_run(tmp_path / "worker", 1)
