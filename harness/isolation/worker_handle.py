"""Targets in a long-lived worker process, one JSON line a call; `worker_main` is the other side."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar, cast

import msgspec

from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.releases import same
from kvproof.harness.contract.target import CONTRACT_VERSION, Target, TargetConfig
from kvproof.harness.errors import FailureKind, TargetDied, UsageError
from kvproof.harness.foreign_text import cut_json
from kvproof.harness.isolation import worker_main as worker
from kvproof.harness.isolation.handles import (
    ANSWERS,
    VERBS,
    Isolation,
    TargetProxy,
    decoder,
    refuse_profile,
)
from kvproof.harness.isolation.process import WorkerProcess

T = TypeVar("T")


class _Error(msgspec.Struct, frozen=True):
    kind: FailureKind
    message: str


class _Answer(msgspec.Struct, frozen=True):
    id: int
    type: str = ""
    value: msgspec.Raw = msgspec.Raw(b"null")
    error: _Error | None = None


class _Hello(msgspec.Struct, frozen=True):
    contract: int
    python: str
    profile: msgspec.Raw
    wrong: list[str] = []
    """Lines on fields of the profile that are not legal; there is no profile then."""


_ANSWERS: dict[str, dict[str, type]] = {
    "import": {"dict": dict},
    "differences": {"list": cast("type", list[Difference])},
    "hello": {"dict": _Hello},
    "create": {"NoneType": type(None)},
    "job": {"dict": dict},
    **ANSWERS,
}
"""Call -> name of the answer's type -> type."""

_decode_answer = msgspec.json.Decoder(_Answer).decode


_HURRY, _SOONEST = 20.0, 1.0
"""While hurried, an answer may take so many times the slowest one so far, or so many seconds."""

_STARTS = ("import", "differences", "hello")
"""Calls that belong to the start of a worker."""

_IN_WORDS = {"hello": "__init__ or close", "create": "__init__"}
"""Call -> the part of a target that it waits for, where they are not the same."""

_PATIENCE = 2.0
"""Seconds until a call that is waited for is reported."""

_ENDING = 5.0
"""Seconds in which a worker ends all that it has started, once its pipe is closed."""

_NO_MEMORY = ("MemoryError", "bad_alloc", "Cannot allocate memory")
"""Words of an error, or of a log, when the memory has not sufficed."""


class WorkerHandle:
    """Targets inside a long-lived process, usually of the engine's own environment.

    `python` is the interpreter there, `factory` a `pkg.module:function` that it can import;
    timeouts are in seconds. The worker starts at the first use and again after a death, but not
    after a first start that failed. `version` is that of the name; another one that runs is a
    UsageError; empty: the name has none. With `search_path`, its `sys.path`, it belongs to the
    environment of this process. `memory` is in bytes beyond the imports; 0: no limit.
    """

    isolation: Isolation = "worker"
    known_failures = ""
    waiting: Callable[[str], object] = staticmethod(lambda _: None)
    """Receives a line about each call that takes more than two seconds."""

    def __init__(
        self,
        name: str,
        python: Path,
        factory: str,
        log: Path,
        *,
        version: str = "",
        search_path: Sequence[str] | None = None,
        memory: int = 0,
        call_timeout: float = 30,
        start_timeout: float = 180,
    ) -> None:
        self.name = name
        self.factory = factory
        self._version = version
        self._command = [str(python), "-I", worker.__file__, "--factory", factory]
        if search_path is not None:
            self._command[1] = "-P"  # the folder of the worker's file has modules of its own
            self._command += ["--path", os.pathsep.join(search_path), "--memory", str(memory)]
        self._log = log
        self._memory = memory
        self._own = search_path is not None
        self._call_timeout = call_timeout
        self._start_timeout = start_timeout
        self._slowest = 0.0
        self.engine_seconds = 0.0
        self._hurried = False
        self._process: WorkerProcess | None = None
        self._hello: _Hello | None = None
        self._profile: Profile | None = None
        self._never_started: TargetDied | None = None
        self._prepared: list[tuple[str, dict[str, Any]]] = []
        self._calls = 0
        self._then: tuple[str, ...] = ()
        """The calls that follow the next one."""
        self._ahead: tuple[str, ...] = ()
        """The calls that the worker carries out without being asked again."""
        self._step: object = None
        """The step that it completes among them."""
        self._current: object = None

    def problem(self) -> tuple[str, str]:
        """Import the factory; return the problem and the next step, both empty if there is none.

        Raises TargetDied(`start`).
        """
        self._open()
        found = cast("dict[str, str]", self._call("import", (), {}, self._start_timeout))
        return found["problem"], found["hint"]

    def differences(self) -> list[Difference]:
        """Compare the installed engine with its adapter, before it is started.

        Raises TargetDied(`start`).
        """
        self._open()
        return cast("list[Difference]", self._call("differences", (), {}, self._start_timeout))

    @property
    def profile(self) -> Profile:
        """The profile that the worker sent at its start. Raises TargetDied(`start`)."""
        self._started()
        assert self._profile is not None
        return self._profile

    @property
    def python(self) -> str:
        """Version of the worker's Python. Raises TargetDied(`start`)."""
        self._started()
        assert self._hello is not None
        return self._hello.python

    def create(self, config: TargetConfig) -> Target:
        """Replace the worker's target; starts a worker if none is alive. Raises TargetDied."""
        self._started()
        self._call("create", (config,), {}, self._call_timeout)
        self._current = token = object()
        return cast("Target", TargetProxy(self.profile, partial(self._ask, token), self._announce))

    def _announce(self, calls: tuple[str, ...]) -> None:
        self._then = calls

    def _ask(self, token: object, verb: str, *arguments: object, **keywords: object) -> object:
        gone = token is not self._current or self._process is None
        if verb == "close":
            self._current = None if token is self._current else self._current
            return None if gone else self._call("close", (), {}, self._limit)
        if gone:
            raise RuntimeError(f"{verb} on a target of {self.name} that was closed or replaced")
        began = time.perf_counter()
        try:
            return self._call(verb, arguments, keywords, self._limit)
        finally:
            self.engine_seconds += time.perf_counter() - began

    @property
    def _limit(self) -> float:
        """Seconds for the next call."""
        soon = max(_SOONEST, _HURRY * self._slowest) if self._hurried else math.inf
        return min(self._call_timeout, soon)

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Give up on a call after 20 times the slowest answer so far, but not within a second."""
        self._hurried = True
        try:
            yield
        finally:
            self._hurried = False

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Run the job in the worker. Raises TargetDied, `hang` after `timeout` seconds."""
        self._started()
        return cast("dict[str, Any]", self._call("job", (job, arguments), {}, timeout))

    @contextmanager
    def prepared(self, job: str, arguments: dict[str, Any]) -> Iterator[None]:
        """Run the job in the worker, now and in each that follows it until the end.

        Raises TargetDied.
        """
        self.prepare(job, arguments)
        try:
            yield
        finally:
            self._prepared.remove((job, arguments))

    def prepare(self, job: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run the job in the worker, now and in each that follows it. Raises TargetDied."""
        found = self.run_job(job, arguments, timeout=self._start_timeout)
        self._prepared.append((job, arguments))
        return found

    def close(self) -> None:
        """End the worker and every process that it started."""
        process, self._process, self._current = self._process, None, None
        self._then = self._ahead = ()
        if process is not None:
            process.end(patience=_ENDING)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _started(self) -> None:
        self._open()
        if self._hello is None:
            self._greet()
            for prepared in self._prepared:
                self._call("job", prepared, {}, self._start_timeout)

    def _open(self) -> None:
        if self._never_started is not None:
            raise self._never_started
        if self._process is not None:
            return
        self._hello = None
        try:
            self._process = WorkerProcess(self._command, self._log)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise  # a limit of this machine, and no fault of the target
            raise TargetDied("start", f"cannot start {self._command[0]}: {error}") from error

    def _greet(self) -> None:
        try:
            self._hello = cast("_Hello", self._call("hello", (), {}, self._start_timeout))
            if self._hello.contract != CONTRACT_VERSION:
                contract = self._hello.contract
                self._die("start", f"contract {contract} in the worker, {CONTRACT_VERSION} here")
            refuse_profile(self.name, self.factory, self._hello.wrong)
            self._profile = profile = self._decoded("profile", self._hello.profile, Profile)
            self._refuse_other_release(profile.version)
        except (TargetDied, UsageError):
            self._hello = None
            self.close()
            raise
        self._call_timeout = max(self._call_timeout, profile.slowest_answer)

    def _refuse_other_release(self, found: str) -> None:
        if self._version and not same(found, self._version):
            raise UsageError(
                f"target {self.name!r} runs {found}: its environment has another release",
                f"name the release that runs, =={found}, or build the other one again: "
                f"kvproof targets remove {self.name}; kvproof targets install {self.name}",
            )

    def _call(
        self, call: str, arguments: tuple[object, ...], keywords: dict[str, object], timeout: float
    ) -> object:
        process = self._process
        assert process is not None
        then, self._then = self._then, ()
        if self._ahead and call in ("close", "create"):
            return self._overtake(call, arguments, timeout)
        self._calls += 1
        begun = time.monotonic()
        try:
            if self._ahead:
                self._expect(call, arguments, keywords)
            else:
                self._ahead = then
                process.send(self._message(call, arguments, keywords, then), timeout)
            line = self._receive(process, call, timeout)
        except TimeoutError:
            late = f"no answer to {_IN_WORDS.get(call, call)} within {timeout:.3g} s"
            late += " (--worker-start)" * (call in _STARTS and self._own)
            self._die("start" if call in _STARTS else "hang", late)
        except EOFError:
            end = f"{process.how_it_ended()} during {call}"
            self._die("start" if call in _STARTS else "crash", end)
        except BaseException:
            self.close()  # the answer may still arrive: the stream is no longer in step
            raise
        if call in VERBS:
            self._slowest = max(self._slowest, time.monotonic() - begun)
        return self._read(call, line)

    def _receive(self, process: WorkerProcess, call: str, timeout: float) -> bytes:
        if call == "job" or timeout <= _PATIENCE:
            return process.receive(timeout)
        try:
            return process.receive(_PATIENCE)
        except TimeoutError:
            part = _IN_WORDS.get(call, call)
            self.waiting(f"{self.name}: waiting for {part}, {timeout:.3g} s at most")
            return process.receive(timeout - _PATIENCE)

    def _message(
        self,
        call: str,
        arguments: tuple[object, ...],
        keywords: dict[str, object],
        then: tuple[str, ...],
    ) -> bytes:
        message = {"id": self._calls, "call": call, "arguments": arguments, "keywords": keywords}
        return msgspec.json.encode({**message, "then": then} if then else message)

    def _expect(
        self, call: str, arguments: tuple[object, ...], keywords: dict[str, object]
    ) -> None:
        announced = (self._step,) if self._ahead[0] == "complete" else ()
        if (call, arguments, keywords) != (self._ahead[0], announced, {}):
            raise RuntimeError(f"{call} on a target of {self.name}, {self._ahead[0]} was announced")
        self._ahead = self._ahead[1:]

    def _overtake(self, call: str, arguments: tuple[object, ...], timeout: float) -> object:
        """Leave the announced calls: a property was broken before them. They may do any harm."""
        try:
            while self._ahead:
                following = self._ahead[0]
                self._call(following, (self._step,) * (following == "complete"), {}, timeout)
        except TargetDied as died:
            if died.fatal and call == "close":
                return None
        self._started()
        return self._call(call, arguments, {}, timeout)

    def _read(self, call: str, line: bytes) -> object:
        try:
            answer = _decode_answer(line)
        except msgspec.MsgspecError:
            self._die("garbage", f"not an answer to {call}: {line[:200]!r}")
        if answer.id != self._calls:
            self._die("garbage", f"answer {answer.id} to call {self._calls} ({call})")
        if answer.error is not None:
            assert self._process is not None
            self._ahead = ()
            if answer.error.message.startswith(_NO_MEMORY[0]):
                self._die(answer.error.kind, answer.error.message)  # its memory would stay in use
            raise TargetDied(answer.error.kind, answer.error.message, self._process.log_tail())
        expected = _ANSWERS[call]
        if answer.type not in expected:
            names = " or ".join(expected)
            value = bytes(answer.value)[:200].decode(errors="replace")
            self._die("garbage", f"{call} answered {answer.type} {value}, expected {names}")
        found: object = self._decoded(call, answer.value, expected[answer.type])
        if self._ahead and self._ahead[0] == "complete":
            self._step = getattr(found, "step", None)
            self._ahead = self._ahead[self._step is None :]
        return found

    def _decoded(self, call: str, raw: msgspec.Raw, kind: type[T]) -> T:
        data = bytes(raw)
        try:
            read = data if call == "job" else cut_json(data)  # that of a job may hold content
            return cast("T", decoder(cast("Hashable", kind)).decode(read))
        except msgspec.MsgspecError as error:
            text = data[:200].decode(errors="replace")
            self._die("garbage", f"{call} answered {text}: {error}")

    def _die(self, kind: FailureKind, message: str) -> NoReturn:
        process = self._process
        assert process is not None
        self.close()
        log = process.log_tail()
        if self._memory and any(words in message + log for words in _NO_MEMORY):
            message += f", with {self._memory / 2**30:.3g} GiB of memory (--worker-memory)"
        died = TargetDied(kind, message, log, fatal=True)
        if kind == "start" and self._profile is None:
            self._never_started = died
        raise died
