"""Runs the installed command as a user does, and looks at what it leaves behind."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec

from kvproof.harness.cli import main
from kvproof.harness.isolation import environments
from kvproof.harness.records.events import PropertyVerdict
from kvproof.harness.records.run_directory import Run, read_run
from kvproof.suites.tests.cli.cli_targets import VERSION
from kvproof.suites.tests.patience import LONG, until

KVPROOF = str(Path(sys.executable).with_name("kvproof"))
TARGETS = "kvproof.suites.tests.cli.cli_targets"
FAULT = "kvproof.suites.tests.framework.faults:last_block_off_by_one"
VLLM = [each for each in environments.known() if each.engine == "vllm"][-1]
ENGINE = str(VLLM)
"""An engine that runs in a worker, whatever is installed."""
_LONGEST = LONG
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
_OWN_VARIABLES = ("GITHUB_STEP_SUMMARY", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "CI")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and whatever these start would ignore Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Done(NamedTuple):
    code: int
    out: str
    err: str
    """Without the lines about silences, which depend on the machine."""


def messages(text: str) -> str:
    """Leave out the lines about silences."""
    silences = r"^[^ ]+: (?:at work|waiting) for .*\n"
    return re.sub(silences, "", text, flags=re.MULTILINE)


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _OWN_VARIABLES}
    return {**kept, **extra}


def kvproof(*arguments: str, cwd: Path, **environment: str) -> Done:
    done = subprocess.run(
        [KVPROOF, *arguments],
        cwd=cwd,
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=_LONGEST,
        check=False,
    )
    return Done(done.returncode, done.stdout, messages(done.stderr))


def here(*arguments: str, cwd: Path, **environment: str) -> Done:
    """The same in this process, which saves the start where only the answer matters."""
    out, err = io.StringIO(), io.StringIO()
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    with (
        chdir(cwd),
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch.dict(os.environ, _environment(environment), clear=True),
        mock.patch.object(sys, "path", list(sys.path)),
        mock.patch.object(sys, "argv", ["kvproof", *arguments]),
        mock.patch.object(sys, "unraisablehook", sys.unraisablehook),
    ):
        try:
            main(arguments)
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
    return Done(code, out.getvalue(), messages(err.getvalue()))


def refused(done: Done, message: str, hint: str = "") -> None:
    """One line says what is wrong, the next one what to do; nothing was run."""
    assert done.code == 2, done
    assert "Traceback" not in done.err
    first, *rest = done.err.splitlines()
    assert first.startswith("kvproof: "), done.err
    assert message in first
    assert len(rest) == 1, done.err
    assert hint in rest[0]
    assert "Report:" not in done.out


def _obeys_sighup() -> None:
    """Undo `nohup`, under which the tests may run: a command would ignore SIGHUP with them."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Started:
    """A command that is still running, in a session of its own as in a terminal."""

    def __init__(self, arguments: tuple[str, ...], cwd: Path, environment: dict[str, str]) -> None:
        self.cwd = cwd
        self.out = cwd / "out.txt"
        self.err = cwd / "err.txt"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [KVPROOF, *arguments, "--output", "record"],
                cwd=cwd,
                env=_environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_obeys_sighup,
            )

    @property
    def record(self) -> Path:
        return self.cwd / "record"

    def has(self, kind: str) -> bool:
        """Whether an event of that kind is recorded."""
        events = self.record / "events.jsonl"
        return events.exists() and f'"event":"{kind}"' in events.read_text()

    def until(self, condition: Callable[[], object]) -> None:
        def seen() -> object:
            assert self.process.poll() is None, f"it ended too early: {self.err.read_text()}"
            return condition()

        until(seen)

    def send(self, signal_: signal.Signals, *, group: bool = False) -> Done:
        """Send a signal (`group`: to all processes, as Ctrl-C in a terminal does) and wait."""
        if group:
            os.killpg(self.process.pid, signal_)
        else:
            self.process.send_signal(signal_)
        return self.wait()

    def wait(self) -> Done:
        code = self.process.wait(_LONGEST)
        return Done(code, self.out.read_text(), messages(self.err.read_text()))


@contextmanager
def started(*arguments: str, cwd: Path, **environment: str) -> Iterator[Started]:
    running = Started(arguments, cwd, environment)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
            running.process.wait()


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    command: str


def _processes() -> Iterator[_Process]:
    """All that are not zombies, which nobody may be there to reap in a container."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent, _, session, *_ = (
                    (folder / "stat").read_text().rpartition(")")[2].split()
                )
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # it ended meanwhile
            if state != "Z":
                yield _Process(int(folder.name), int(parent), int(session), command)


def workers_of(running: Started) -> list[int]:
    """Engine workers that the command has started."""
    return [
        each.pid
        for each in _processes()
        if each.parent == running.process.pid and "worker_main.py" in each.command
    ]


def nothing_is_left_of(running: Started, *workers: int) -> bool:
    """Whether all its processes end."""

    def is_left(each: _Process) -> bool:
        return each.session == running.process.pid or each.pid in workers

    until(lambda: not any(map(is_left, _processes())), "processes are left")
    return True


def fake_engine(home: Path, factory: str) -> None:
    """An environment of `ENGINE` whose worker serves a target of this project instead."""
    directory = home / "targets" / f"{VLLM.engine}-{VLLM.version}"
    python = directory / "bin" / "python"
    python.parent.mkdir(parents=True)
    worker = f'exec {sys.executable} "$1" "$2" --factory {factory}'
    python.write_text(f"#!/bin/sh\nexport {VERSION}={VLLM.version}\n{worker}\n")
    python.chmod(0o755)
    marker = {"lock": environments._lock_hash(VLLM), "python": ""}
    (directory / "kvproof.json").write_bytes(msgspec.json.encode(marker))


def closed_run(directory: Path, code: int) -> Run:
    """A run that ended in order: every line readable, the code recorded, all reports written."""
    run = read_run(directory)
    assert run.torn == 0
    assert run.ended is not None
    assert run.ended is run.events[-1]
    assert run.ended.exit_code == code
    assert {"report.html", "report.md", "junit.xml"} <= {p.name for p in directory.iterdir()}
    return run


def verdicts(run: Run, target: str) -> Counter[str]:
    return Counter(
        event.verdict
        for event in run.events
        if isinstance(event, PropertyVerdict) and event.target == target
    )
