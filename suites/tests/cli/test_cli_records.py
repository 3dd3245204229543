"""Records stay whole: one writer, a closed terminal, a full disk."""

from __future__ import annotations

import os
import pty
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvproof.harness import decoding
from kvproof.harness.cli import runs
from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import HarnessFault
from kvproof.harness.records.run_directory import RunWriter, read_run, store
from kvproof.suites.runner.runner import SuiteRun
from kvproof.suites.tests.cli.cli_kit import (
    KVPROOF,
    TARGETS,
    closed_run,
    here,
    refused,
    started,
)
from kvproof.suites.tests.cli.cli_targets import STARTED
from kvproof.suites.tests.reports.report_kit import recorded_run

SLOW = f"{TARGETS}:slow"
LIMIT = 64 << 10
LONGEST = 300
"""Seconds to close a record and write the reports, with 16 processes for every core."""
MANIFEST = recorded_run().manifest


@pytest.mark.slow(reason="starts many processes")
def test_the_second_process_with_one_output_is_refused(tmp_path: Path) -> None:
    command = ("fuzz", "--target", SLOW, "--seed", "1")
    with started(*command, cwd=tmp_path) as running:
        running.until((tmp_path / STARTED).exists)
        done = here(*command, "--output", "record", cwd=tmp_path)
        refused(done, "another process is writing the run directory 'record'", "--output")
        assert running.send(signal.SIGINT).code == 130
    closed_run(running.record, 130)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, MANIFEST)
    with pytest.raises(UsageError, match="another process is writing"):
        RunWriter(tmp_path, MANIFEST)
    read_run(tmp_path)
    with pytest.raises(UsageError, match="another process is writing"):
        RunWriter(tmp_path, MANIFEST)
    writer.close()
    RunWriter(tmp_path, MANIFEST).close()


@pytest.mark.parametrize("name", ["run.json", "events.jsonl"])
def test_a_record_without_end_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    RunWriter(tmp_path, MANIFEST).close()
    monkeypatch.setattr(decoding, "LARGEST_FILE", 1 << 20)
    assert not read_run(tmp_path).events
    with (tmp_path / name).open("ab") as file:
        file.truncate((1 << 20) + 1)
    with pytest.raises(UsageError, match=f"{name}' is larger than 1 MiB"):
        read_run(tmp_path)


@pytest.mark.slow(reason="starts many processes")
def test_a_closed_terminal_closes_the_records(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command = [KVPROOF, "fuzz", "--target", SLOW, "--output", "record"]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    signal.signal(signal.SIGHUP, before)
    os.close(theirs)
    try:
        while not (tmp_path / STARTED).exists():
            os.read(ours, 4096)  # or the terminal is full
        os.close(ours)
        process.send_signal(signal.SIGHUP)
        assert process.wait(LONGEST) == 130
    finally:
        process.kill()
        process.wait()
    run = closed_run(tmp_path / "record", 130)
    assert not any(isinstance(event, HarnessFault) for event in run.events)


@pytest.mark.parametrize("where", [(SuiteRun, "explore"), (runs, "render")])
@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
def test_a_run_without_memory_is_closed_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[object, str], error: Exception
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(*where, exhausted)
    command = ("run", "--target", "reference", "--budget", "debug", "--output", "record")
    done = here(*command, cwd=tmp_path)
    assert done.code == 2
    assert done.err.startswith("kvproof: there is not enough memory\n")
    assert len(done.err.splitlines()) == 2
    run = read_run(tmp_path / "record")
    assert run.ended is run.events[-1]
    assert run.ended.exit_code == 2
    assert not any(isinstance(event, HarnessFault) for event in run.events)


@contextmanager
def full_disk() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("of before")
    with full_disk(), pytest.raises(UsageError, match=r"cannot write .*report.html.*too large"):
        store(tmp_path / "report.html", bytes(2 * LIMIT))
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "of before"


def test_help_names_the_exit_code_of_a_report(tmp_path: Path) -> None:
    text = " ".join(here("report", "--help", cwd=tmp_path).out.split())
    assert "Ends with 0 once the reports are written, also for a run that failed" in text
