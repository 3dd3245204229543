"""`kvproof sweep`: what it refuses, what it leaves behind, and how it goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kvproof.harness.cli.actions import gate
from kvproof.harness.cli.actions.sweep import Swept, compare
from kvproof.harness.records.events import AnyEvent, Skipped, exit_code
from kvproof.harness.records.run_directory import Run, read_run
from kvproof.harness.records.sweep_events import Cell, SweepConcluded
from kvproof.harness.records.sweep_results import latest
from kvproof.suites.tests.cli.cli_kit import (
    closed_run,
    here,
    kvproof,
    nothing_is_left_of,
    refused,
    started,
)
from kvproof.suites.tests.patience import LONG

INSTALLED = all(find_spec(name) for name in ("torch", "triton"))
with_torch = pytest.mark.skipif(not INSTALLED, reason="the extra gpu is not installed")
without_torch = pytest.mark.skipif(INSTALLED, reason="the extra gpu is installed")

TOYS = "kvproof.suites.tests.sweep.sweep_toys"
SWEEP = ("sweep", "--kernels", f"{TOYS}:KERNEL", "--device", "cpu", "--workers", "1")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (["--seeds", "x"], "--seeds 'x' is not a number", "0,1"),
        (["--devices", "first"], "--devices 'first' is not a number", "0,1"),
        (["--workers", "-1"], "--workers: -1 is not a number from 0", "sweep --help"),
        (["--max-regression", "-1"], "-1.0 is not a number from 0", "sweep --help"),
        (["--timeout", "soon"], "'soon' is not a duration", "90s"),
        (["--filter", "page"], "--filter 'page' is not AXIS=VALUE", "page=16,32"),
        (["--baseline", "nowhere"], "'nowhere' is not a run directory", "runs/latest"),
    ],
)
def test_what_cannot_be_read_is_refused_before_anything_starts(
    tmp_path: Path, options: list[str], message: str, hint: str
) -> None:
    refused(here("sweep", *options, cwd=tmp_path), message, hint)
    assert not (tmp_path / "runs").exists()


@without_torch
@pytest.mark.parametrize("options", [(), ("--list",)])
def test_without_torch_it_says_how_to_get_it(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = here("sweep", *options, cwd=tmp_path)
    refused(done, "No module named 'torch'", 'pip install "kvproof[gpu]"')


def test_a_gate_without_the_extra_skips_the_kernels_and_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "KERNELS_NEED", ("torch", "no_such_package"))
    (tmp_path / "kvproof.toml").write_text('[run]\nbudget = "debug"\n[gate]\nbench = false\n')
    done = here("gate", "--output", "record", cwd=tmp_path)
    assert done.code in (0, 3)
    skipped = [e for e in read_run(tmp_path / "record").events if isinstance(e, Skipped)]
    (sweep,) = (event for event in skipped if event.part == "sweep of the kernels")
    assert "no_such_package not installed" in sweep.reason
    assert sweep.command == 'pip install "kvproof[gpu]"'


@with_torch
def test_a_gate_with_the_extra_judges_the_listed_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(gate, "run_in", lambda _, options: asked.append(options))
    (tmp_path / "kvproof.toml").write_text('[run]\nbudget = "debug"\n[gate]\nbench = false\n')
    here("gate", "--output", "record", cwd=tmp_path)
    (options,) = asked
    assert (options.cells, options.timing, options.kernels) == (("cpu",), False, ())


@pytest.mark.slow(reason="starts processes and waits for them")
@with_torch
def test_0_and_1_a_sweep_passes_or_fails_and_leaves_its_record(tmp_path: Path) -> None:
    done = here(*SWEEP, "--providers", f"{TOYS}:good", "--output", "record", cwd=tmp_path)
    assert done.code == 0
    run = closed_run(tmp_path / "record", 0)
    assert run.ended.sentence == "6 ok"
    assert {e.outcome for e in run.events if isinstance(e, Cell)} == {"ok"}
    broken = here(*SWEEP, "--providers", f"{TOYS}:planted_raises", "--output", "two", cwd=tmp_path)
    assert broken.code == 1
    assert "no kernel image is available" in closed_run(tmp_path / "two", 1).ended.sentence


@with_torch
def test_3_when_nothing_could_be_judged(tmp_path: Path) -> None:
    done = here(*SWEEP, "--providers", f"{TOYS}:never", "--output", "record", cwd=tmp_path)
    assert done.code == 3
    assert "never supports no cell of toy" in closed_run(tmp_path / "record", 3).ended.sentence


@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
@with_torch
def test_json_is_alone_on_standard_output(tmp_path: Path) -> None:
    done = kvproof(*SWEEP, "--providers", f"{TOYS}:good", "--json", cwd=tmp_path)
    reported = json.loads(done.out)
    assert (done.code, reported["verdict"], len(reported["cells"])) == (0, "pass", 6)
    assert reported["cells"][0]["case"] == {"rows": 1, "page": 2}
    assert (tmp_path / reported["directory"] / "events.jsonl").exists()


@with_torch
def test_the_list_names_cells_and_why_a_provider_cannot_be_used(tmp_path: Path) -> None:
    names = f"{TOYS}:good,{TOYS}:not_installed"
    done = here("sweep", "--list", "--kernels", f"{TOYS}:KERNEL", "--providers", names,
                cwd=tmp_path, COLUMNS="200")  # fmt: skip
    assert done.code == 0
    assert "cpu 6, gpu 6, published 1" in done.out
    assert "the engine is not installed; pip install engine" in done.out
    assert not (tmp_path / "runs").exists()


@pytest.mark.nightly(reason="half a minute of kernels")
@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
@with_torch
def test_the_same_command_goes_on_where_it_was_interrupted(tmp_path: Path) -> None:
    names = f"{TOYS}:good,{TOYS}:planted_hangs"
    command = (*SWEEP, "--providers", names, "--timeout", "5s")
    with started(*command, cwd=tmp_path) as running:
        running.until(lambda: running.record.exists() and running.has("cell"))
        assert running.send(signal.SIGINT, group=True).code == 130
        assert nothing_is_left_of(running)
    first = closed_run(running.record, 130)
    before = [event for event in first.events if isinstance(event, Cell)]
    done = kvproof(*command, "--output", "record", cwd=tmp_path)
    assert done.code == 1
    cells = [e for e in read_run(running.record).events if isinstance(e, Cell)]
    assert 0 < len(before) < len(cells) == 12
    concluded = [e for e in read_run(running.record).events if isinstance(e, SweepConcluded)]
    assert concluded[-1].outcomes == {"good": {"ok": 6}, "hangs": {"ok": 4, "timeout": 2}}


def timed(directory: Path, seconds: float, *, card: str = "cpu") -> Run:
    """Write times into a record, as a sweep on a GPU would."""
    path = directory / "events.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for event in lines:
        if event["event"] == "cell":
            event["samples"] = [seconds] * 5
        if event["event"] == "sweep_started":
            event["devices"][0]["name"] = card
    path.write_text("".join(json.dumps(event) + "\n" for event in lines))
    return read_run(directory)


class Notebook:
    """Takes events as a run does."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []

    def write(self, event: AnyEvent) -> None:
        self.events.append(event)


@with_torch
def test_4_a_cell_that_got_slower_than_the_baseline(tmp_path: Path) -> None:
    command = (*SWEEP, "--providers", f"{TOYS}:good")
    here(*command, "--output", "record", cwd=tmp_path)
    refused(here(*command, "--baseline", "record", cwd=tmp_path), "has no timed cell", "on a GPU")
    before = timed(tmp_path / "record", 1e-3)
    now = timed(tmp_path / "record", 2e-3)
    found, elsewhere = Notebook(), Notebook()
    compare(found, Swept(now.events, latest(now.events)), before, 0.1)
    assert [(event.ratio, exit_code(event)) for event in found.events] == [(2.0, 4)] * 6
    other = timed(tmp_path / "record", 1e-3, card="another card")
    compare(elsewhere, Swept(now.events, latest(now.events)), other, 0.1)
    (skipped,) = elsewhere.events
    assert "it ran on another card, this on cpu" in skipped.reason


def test_a_worker_ends_with_its_host_while_torch_is_still_imported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(900)")
    worker = subprocess.Popen(
        [sys.executable, "-m", "kvproof.harness.sweep.worker_start", "--device", "cpu"],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(LONG) != 0
