"""`kvproof watch` as a user types it: exit codes, signals, incidents, metrics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from kvproof.harness.isolation import environments
from kvproof.harness.recorder.import_hook import WATCH
from kvproof.harness.recorder.recording import recordings
from kvproof.harness.recorder.verdict import judge
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.watch.incidents import NAME
from kvproof.suites.tests.cli.cli_kit import KVPROOF, here, kvproof, refused
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.patience import LONG, until
from kvproof.suites.tests.recorder import watch_jobs


def job(*words: str) -> tuple[str, ...]:
    return ("--", sys.executable, watch_jobs.__file__, *words)


def started(*words: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [KVPROOF, "watch", *words], cwd=cwd, env={**os.environ, **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def incident(run: Path) -> Path:
    (found,) = (run / "incidents").iterdir()
    return found


def test_a_right_engine_passes(tmp_path: Path) -> None:
    done = kvproof("watch", "--output", "run", *job("toy"), cwd=tmp_path)
    assert done.code == 0, done.err
    assert "toy==1, 64 blocks of 4 tokens, judged with at most" in done.err
    assert "not judged: counters, refusals" in done.err
    assert "2 requests, 100.0% of 20 tokens judged, 8 of them hit" in done.err
    assert "violations: none" in done.err
    assert not (tmp_path / "run" / "incidents").exists()


def test_a_violation_fails_with_an_incident_that_replay_and_explain_read(tmp_path: Path) -> None:
    done = kvproof("watch", "--output", "run", *job("salted"), cwd=tmp_path)
    assert done.code == 1, done.err
    assert "VIOLATION namespaces_are_separate: request r2 reads position 0" in done.err
    folder = incident(tmp_path / "run")
    assert f"incident: {folder.relative_to(tmp_path)}" in done.err
    assert here("replay", str(folder), cwd=tmp_path).code == 1
    assert "first: hit 0 of 10 tokens" in here("explain", str(folder), cwd=tmp_path).out
    assert here("report", "run", cwd=tmp_path).code in (0, 1)
    (checked,) = (e for e in read_run(tmp_path / "run").events if hasattr(e, "slots_compared"))
    assert "in all 1 namespaces_are_separate; incident run/incidents/" in checked.message


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("fails",), 7, "violations: none"),
        (("refused",), 3, "a cache is not judged: its layers forget"),
    ],
)
def test_the_exit_code_is_the_verdict_or_the_engines(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    done = kvproof("watch", *job(*words), cwd=tmp_path)
    assert done.code == code, done.err
    assert said in done.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give a command or --attach"),
        (("--keep", "0", *job("toy")), "--keep 0 is not between"),
        (("--", "no-such-engine"), "cannot run 'no-such-engine'"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    refused(here("watch", *words, cwd=tmp_path), message)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_is_watched_or_recorded_and_not_both(tmp_path: Path) -> None:
    refused(here("watch", *job("toy"), cwd=tmp_path, KVPROOF_RECORD="x"), "KVPROOF_RECORD is set")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_a_signal_reaches_the_engine_once_and_ends_both(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    watcher = started("--output", "run", *job("serves"), cwd=tmp_path)
    until((tmp_path / "serving").exists)
    watcher.send_signal(number)
    _, said = watcher.communicate(timeout=LONG)
    assert watcher.returncode == code, said
    assert (tmp_path / "received").read_text() == str(int(number))
    assert read_run(tmp_path / "run").events[-1].verdict == "pass"
    assert not list(Path("/dev/shm").glob(f"kvproof-watch-*/*-{watcher.pid}-*"))


@pytest.mark.nightly(reason="waits a minute for a watcher that is gone")
@pytest.mark.slow(reason="starts processes and waits for them")
def test_an_engine_outlives_its_watcher(tmp_path: Path) -> None:
    watcher = started("--output", "run", *job("serves"), cwd=tmp_path)
    until(lambda: (tmp_path / "serving").exists() and (tmp_path / "serving").read_text())
    engine = int((tmp_path / "serving").read_text())
    watcher.kill()
    watcher.communicate(timeout=LONG)
    time.sleep(0.2)
    os.kill(engine, 0)  # it is there
    os.kill(engine, signal.SIGTERM)
    until((tmp_path / "received").exists)
    for ring in Path("/dev/shm").glob(f"kvproof-watch-*/toy-*-{engine}-*"):
        shutil.rmtree(ring.parent)  # what a killed watcher leaves


def test_an_engine_with_the_variable_is_joined_and_its_figures_are_served(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    rings = tmp_path / "rings"
    words = ("--attach", str(rings), "--metrics-port", str(port), "--output", "run")
    watcher = started(*words, cwd=tmp_path)
    until(rings.is_dir)
    subprocess.run([*job("salted")[1:]], env={**os.environ, WATCH: str(rings)}, check=True)
    until((tmp_path / "run" / "incidents").is_dir)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    assert 'property="namespaces_are_separate"} 1.0' in text
    assert "kvproof_watch_judged{" in text
    watcher.send_signal(signal.SIGTERM)
    _, said = watcher.communicate(timeout=LONG)
    assert watcher.returncode == 1, said
    assert list(rings.iterdir()) == []


# --- vLLM's own scheduler ---


FAULTS = {
    "early_free": "written_blocks_have_one_owner",
    "wrong_block": "reads_return_own_content",
    "none": "",
}
"""Fault -> the property that it breaks."""


@pytest.mark.parametrize(
    "fault", one_in(0, FAULTS, reason="runs vLLM's scheduler, which takes seconds to import")
)
def test_vllm_is_judged_while_it_serves(tmp_path: Path, fault: str) -> None:
    prop = FAULTS[fault]
    engine = environments.parse("vllm==0.33.0")
    if environments.state(engine) == "missing":
        pytest.skip("vllm==0.33.0 is not installed: kvproof targets install vllm==0.33.0")
    command = [str(engine.python), watch_jobs.__file__, "vllm", fault, "90"]
    done = kvproof("watch", "--output", "run", "--", *command, cwd=tmp_path,
                   VLLM_LOGGING_LEVEL="ERROR")  # fmt: skip
    assert "served " in done.out
    if not prop:
        assert done.code == 0, done.err
        return
    assert done.code == 1, done.err
    assert f"VIOLATION {prop}" in done.err
    folder = min((tmp_path / "run" / "incidents").iterdir())
    said = json.loads((folder / NAME).read_text())
    assert said["property"] == prop
    assert said["watch"]["requests"] < 90  # while the engine serves
    broken = judge(*recordings(folder)).broken
    assert broken is not None
    assert broken.violation.property == prop
