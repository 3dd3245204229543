"""Runs one command without the powers of root: a fork of a loaded kvproof, or a new process."""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Self

from kvproof.suites.tests.attack.line import Installation
from kvproof.suites.tests.attack.starter import LIMITS, drop_capabilities

PATIENCE = 4.0
"""Seconds of CPU time after which a command that goes on gets SIGTERM; by the clock if it waits."""
GRACE = 12.0
"""Seconds of CPU time that it then has, before it counts as hung."""
LONGEST = 300.0
"""Seconds by the clock, for one that sleeps: a loaded machine makes a command late, not hung."""
LEAVING = 120.0
"""Seconds in which the processes of a command that has ended must end too."""
MOST_OUTPUT = 4 << 20
LOADED = 1 << 30
"""Address space of a kvproof that has just been loaded; a fork's limit is beside its own."""
MARK = "KVPROOF_ATTACK"
"""Environment variable of every attacked process and its children."""


class Signal(NamedTuple):
    """A signal at an instant."""

    number: signal.Signals
    after: float
    """Seconds."""


class Command(NamedTuple):
    """A command to run, and the conditions that it meets."""

    words: tuple[str, ...]
    folder: Path
    """Root of its world: `cwd`, `home` and `tmp` are in it."""
    environment: dict[str, str]
    limits: Mapping[str, int] = MappingProxyType({})
    """Of `starter.LIMITS`."""
    sent: Signal | None = None
    real: bool = False
    stdout: str = ""
    """A file instead of the pipe, for example /dev/full."""
    patience: float = PATIENCE
    closes: bool = True
    """Its record can be closed: the disk is not full."""


class Outcome(NamedTuple):
    """The end of a command."""

    code: int
    """Negative for a signal, as in `subprocess`."""
    out: str
    err: str
    seconds: float
    stopped: bool
    """SIGTERM was sent because it went on."""
    hung: bool
    """SIGKILL had to be sent because SIGTERM did not help."""
    sent: bool
    """The attack's own signal met the running process."""
    lines_before: int
    """Whole lines in the record just before that signal."""
    left: tuple[str, ...]
    """Processes that were still there afterwards."""


class Running(ABC):
    """A started command."""

    def __init__(self, pid: int, pipes: tuple[int, int]) -> None:
        self.pid = pid
        self._pipes = pipes
        self._text = {pipes[0]: bytearray(), pipes[1]: bytearray()}
        self._selector = selectors.DefaultSelector()
        for each in pipes:
            os.set_blocking(each, False)
            self._selector.register(each, selectors.EVENT_READ)

    @abstractmethod
    def code(self) -> int | None:
        """Its exit code, once it has one."""

    def read(self, seconds: float) -> None:
        """Read its output for some time."""
        for key, _ in self._selector.select(seconds):
            with suppress(BlockingIOError):
                data = os.read(key.fd, 1 << 16)
                if data:
                    self._text[key.fd] += data[: MOST_OUTPUT - len(self._text[key.fd])]
                else:
                    self._selector.unregister(key.fd)
        if not self._selector.get_map():
            time.sleep(seconds)

    @property
    def out(self) -> str:
        """Standard output so far."""
        return bytes(self._text[self._pipes[0]]).decode(errors="replace")

    def texts(self) -> tuple[str, str]:
        """Standard output and standard error, after the end."""
        for _ in range(20):
            self.read(0)
        self._selector.close()
        for each in self._pipes:
            os.close(each)
        return tuple(bytes(self._text[each]).decode(errors="replace") for each in self._pipes)

    def signal(self, number: int) -> None:
        """Send a signal to the command alone."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Forked(Running):
    """A fork of the loaded kvproof."""

    def __init__(self, pid: int, pipes: tuple[int, int], channel: Channel) -> None:
        super().__init__(pid, pipes)
        self._channel = channel
        self._code: int | None = None

    def code(self) -> int | None:
        if self._code is None and (answer := self._channel.poll()):
            self._code = int(answer["code"])
        return self._code


class Real(Running):
    """A process of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout
        assert process.stderr
        pipes = os.dup(process.stdout.fileno()), os.dup(process.stderr.fileno())
        process.stdout.close()
        process.stderr.close()
        self._process = process
        super().__init__(process.pid, pipes)

    def code(self) -> int | None:
        return self._process.poll()


class Channel:
    """Lines of JSON from the starter."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._buffer = end, b""

    def send(self, order: dict[str, object], streams: list[int]) -> None:
        """Send an order with descriptors."""
        data = json.dumps(order).encode() + b"\n"
        sent = socket.send_fds(self._socket, [data], streams)
        self._socket.sendall(data[sent:])

    def poll(self, seconds: float = 0.0) -> dict[str, int] | None:
        """Return the next answer, if there is one in time."""
        if b"\n" not in self._buffer:
            self._socket.settimeout(seconds or 0.0001)
            with suppress(TimeoutError, BlockingIOError):
                self._buffer += self._socket.recv(4096)
        line, newline, rest = self._buffer.partition(b"\n")
        if not newline:
            return None
        self._buffer = rest
        return json.loads(line)

    def close(self) -> None:
        """End the starter."""
        self._socket.close()


class Starter:
    """The loaded kvproof from which commands are forked."""

    def __init__(self, installation: Installation) -> None:
        ours, theirs = socket.socketpair()
        source = Path(__file__).with_name("starter.py").read_text()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [installation.python, "-c", source, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,
            cwd="/",
        )
        theirs.close()
        self._channel = Channel(ours)
        self._last: Running | None = None
        assert self._channel.poll(LONGEST), "kvproof could not be loaded"

    def start(self, command: Command) -> Running:
        """Fork a command; there is one at a time."""
        self._free()
        out, err = os.pipe(), os.pipe()
        target = os.open(command.stdout, os.O_WRONLY) if command.stdout else out[1]
        nothing = os.open(os.devnull, os.O_RDONLY)
        order = {
            "words": list(command.words),
            "cwd": str(command.folder / "cwd"),
            "environment": command.environment,
            "limits": dict(command.limits),
        }
        self._channel.send(order, [nothing, target, err[1]])
        for each in {nothing, out[1], err[1], target}:
            os.close(each)
        answer = self._channel.poll(LONGEST)
        assert answer, "no answer from the starter"
        self._last = Forked(answer["pid"], (out[0], err[0]), self._channel)
        return self._last

    def _free(self) -> None:
        """Kill a command that a failed attack has left."""
        while self._last is not None and self._last.code() is None:
            self._last.signal(signal.SIGKILL)
            time.sleep(0.01)

    def close(self) -> None:
        """End it."""
        self._free()
        self._channel.close()
        self._process.wait(30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start_real(installation: Installation, command: Command) -> Running:
    """Start the installed command."""

    def bound() -> None:
        drop_capabilities()
        for name, most in command.limits.items():
            most += LOADED if name == "memory" else 0
            resource.setrlimit(LIMITS[name], (most, most))

    out = os.open(command.stdout, os.O_WRONLY) if command.stdout else subprocess.PIPE
    process = subprocess.Popen(
        [installation.command, *command.words],
        cwd=command.folder / "cwd",
        env=command.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if out == subprocess.PIPE else out,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=bound,
    )
    if out != subprocess.PIPE:
        os.close(out)
        end, other = os.pipe()
        os.close(other)
        process.stdout = os.fdopen(end, "rb")  # at its end; a selector takes no /dev/null
    return Real(process)


def run(running: Running, command: Command, record: Path) -> Outcome:
    """Wait for the end of a command; send the attack's signal, and SIGTERM when it goes on."""
    began = time.monotonic()
    sent = stopped = hung = False
    before, used = 0, 0.0
    code = None
    while code is None:
        running.read(0.01)
        seconds = time.monotonic() - began
        if command.sent and not sent and seconds >= command.sent.after:
            before, sent = whole_lines(record), running.code() is None
            running.signal(command.sent.number)
        if not stopped and _long_enough(running.pid, seconds, command.patience):
            stopped, used = True, cpu_seconds(running.pid)
            running.signal(signal.SIGTERM)
        late = seconds >= command.patience + LONGEST
        if late or (stopped and cpu_seconds(running.pid) - used >= GRACE):
            hung = True
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.signal(signal.SIGKILL)
        code = running.code()
    out, err = running.texts()
    left = remaining(running.pid, command.environment[MARK])
    return Outcome(code, out, err, time.monotonic() - began, stopped, hung, sent, before, left)


def _long_enough(pid: int, seconds: float, patience: float) -> bool:
    """Whether a command had its time: a loaded machine gives it less than the clock shows."""
    if seconds < patience:
        return False
    return cpu_seconds(pid) >= patience or not _wants_cpu(pid) or seconds >= LONGEST


def _wants_cpu(pid: int) -> bool:
    """Whether a process is ready to run, and does not wait for something else."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "RD"


def whole_lines(path: Path) -> int:
    """Lines of a file that end."""
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def remaining(session: int, mark: str) -> tuple[str, ...]:
    """Wait for the processes that a command has started; end and return those that stay."""
    deadline = time.monotonic() + LEAVING
    while found := dict(_children(session, mark)):
        if time.monotonic() > deadline:
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return tuple(f"{pid}: {line}" for pid, line in found.items())
        time.sleep(0.05)
    return ()


def _children(session: int, mark: str) -> Iterator[tuple[int, str]]:
    own = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                state, _, _, its_session, *_ = (
                    (folder / "stat").read_text().rpartition(")")[2].split()
                )
                marked = own in (folder / "environ").read_bytes().split(b"\0")
                if state != "Z" and (marked or int(its_session) == session):
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    yield int(folder.name), line
