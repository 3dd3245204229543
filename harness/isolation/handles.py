"""Targets in this process or in a worker of the engine's own environment, with one interface.

Any failure of a target - crash, hang, invalid answer, no start - reaches the caller as `TargetDied`
with the log attached, and the next `create` begins with a fresh target. A handle serves one thread.
"""

from __future__ import annotations

import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Literal, NoReturn, Protocol, Self, TypeVar, cast, get_origin

import msgspec

from kvproof.harness.contract.target import CONTRACT_VERSION, Profile, Target, TargetConfig
from kvproof.harness.errors import FailureKind, TargetDied
from kvproof.harness.isolation import worker_main as worker
from kvproof.harness.isolation.process import WorkerProcess

T = TypeVar("T")

Isolation = Literal["in_process", "worker"]


class Handle(Protocol):
    """Makes targets of one engine; also a context manager that closes itself."""

    @property
    def name(self) -> str:
        """The spec that it was opened with."""

    @property
    def factory(self) -> str:
        """`pkg.module:function` that makes the targets, importable where the engine lives."""

    @property
    def profile(self) -> Profile:
        """Constant for the life of the handle. Raises TargetDied(`start`)."""

    @property
    def isolation(self) -> Isolation:
        """Whether the target can take this process down with it."""

    @property
    def python(self) -> str:
        """Version of the Python that the engine runs on."""

    def create(self, config: TargetConfig) -> Target:
        """Replace the current target. Raises TargetDied(`start`)."""

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Run `pkg.module:function`, dict to dict, where the engine lives; JSON values only.

        `timeout` is in seconds and cannot be enforced in this process. Raises TargetDied.
        """

    def close(self) -> None:
        """End the target and its worker. Idempotent."""

    def __enter__(self) -> Handle: ...

    def __exit__(self, *exception: object) -> None: ...


VERBS = tuple(verb for verb in vars(Target) if not verb.startswith("_") and verb != "profile")


class _Proxy:
    """A target whose verbs are all carried out by `ask(verb, *arguments, **keywords)`."""

    def __init__(self, profile: Profile, ask: Callable[..., object]) -> None:
        self.profile = profile
        for verb in VERBS:
            setattr(self, verb, partial(ask, verb))


class InProcessHandle:
    """A target inside this process: fastest, but a crash of native code ends kvproof with it."""

    isolation: Isolation = "in_process"

    def __init__(
        self,
        name: str,
        factory: Callable[[TargetConfig], Target],
        *,
        search_path: str = "",
    ) -> None:
        """Make targets by `factory`; `search_path` leaves `sys.path` when the handle is closed."""
        self.name = name
        self._search_path = search_path
        # a user's factory may be a closure, a partial or an instance: only its spec names it
        self.factory = name if ":" in name else f"{factory.__module__}:{factory.__qualname__}"
        self.python = platform.python_version()
        self._make = factory
        self._target: Target | None = None

    @cached_property
    def profile(self) -> Profile:
        """The profile of the factory's targets. Raises TargetDied(`start`)."""
        with _verdict("start"):
            profile = worker.profile_of(self._make)
        return cast("Profile", _as_written("profile", profile, {Profile.__name__: Profile}))

    def create(self, config: TargetConfig) -> Target:
        """Close the current target and make a new one. Raises TargetDied(`start`)."""
        profile = self.profile
        self._close_target()
        with _verdict("start"):
            self._target = target = self._make(config)
        return cast("Target", _Proxy(profile, partial(self._ask, target)))

    def _ask(self, target: Target, verb: str, *arguments: object, **keywords: object) -> object:
        if verb == "close":
            if target is self._target:
                self._close_target()
            return None
        with _verdict("crash"):
            answer = getattr(target, verb)(*arguments, **keywords)
        return _as_written(verb, answer, _ANSWERS[verb])

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:  # noqa: ARG002 - nothing can interrupt this process
        """Run the job here, without the timeout. Raises TargetDied(`crash`)."""
        with _verdict("crash"):
            return cast("dict[str, Any]", worker.load(job)(arguments))

    def close(self) -> None:
        """Close the current target, and give the search path of its module back."""
        path, self._search_path = self._search_path, ""
        if path in sys.path:
            sys.path.remove(path)
        self._close_target()

    def _close_target(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            with _verdict("crash"):
                target.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@contextmanager
def _verdict(kind: FailureKind) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # nor may a target end kvproof with its own code
        text = "".join(traceback.format_exception_only(error)).strip()
        raise TargetDied(kind, text, traceback.format_exc()) from error


def _as_written(verb: str, answer: object, expected: Mapping[str, type]) -> object:
    """Return an answer after a JSON round trip, so that fields, too, have their types.

    Raises TargetDied(`garbage`) if it is none of `expected` or has no JSON form.
    """
    told = f"{verb} answered {type(answer).__name__} {answer!r:.200}"
    kind = next((kind for kind in expected.values() if _is(answer, kind)), None)
    if kind is None:
        raise TargetDied("garbage", f"{told}, expected {' or '.join(expected)}")
    try:
        return _decoder(kind).decode(_encode(answer))
    except Exception as error:  # a field may hold anything, with an `__index__` of its own
        raise TargetDied("garbage", f"{told}: {error}") from error


def _is(answer: object, kind: type) -> bool:
    return isinstance(answer, get_origin(kind) or kind)


_encode = msgspec.json.Encoder(enc_hook=worker.plain).encode
_decoder = cache(msgspec.json.Decoder)


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


_ANSWERS: dict[str, dict[str, type]] = {
    "hello": {"dict": _Hello},
    "create": {"NoneType": type(None)},
    "job": {"dict": dict},
    **{verb: {kind.__name__: kind for kind in worker.answers(verb)} for verb in VERBS},
    "experts": {"tuple": cast("type", tuple[int | None, ...])},
}
"""Call -> name of the answer's type -> type."""

_decode_answer = msgspec.json.Decoder(_Answer).decode


class WorkerHandle:
    """Targets inside a long-lived process of the engine's own environment.

    `python` is the interpreter there, `factory` a `pkg.module:function` that it can import;
    timeouts are in seconds. The worker starts at the first use and again after a death.
    """

    isolation: Isolation = "worker"

    def __init__(
        self,
        name: str,
        python: Path,
        factory: str,
        log: Path,
        *,
        call_timeout: float = 30,
        start_timeout: float = 180,
    ) -> None:
        self.name = name
        self.factory = factory
        self._command = [str(python), "-I", worker.__file__, "--factory", factory]
        self._log = log
        self._call_timeout = call_timeout
        self._start_timeout = start_timeout
        self._process: WorkerProcess | None = None
        self._hello: _Hello | None = None
        self._profile: Profile | None = None
        self._calls = 0
        self._current: object = None

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
        return cast("Target", _Proxy(self.profile, partial(self._ask, token)))

    def _ask(self, token: object, verb: str, *arguments: object, **keywords: object) -> object:
        gone = token is not self._current or self._process is None
        if verb == "close":
            self._current = None if token is self._current else self._current
            return None if gone else self._call("close", (), {}, self._call_timeout)
        if gone:
            raise RuntimeError(f"{verb} on a target of {self.name} that was closed or replaced")
        return self._call(verb, arguments, keywords, self._call_timeout)

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Run the job in the worker. Raises TargetDied, `hang` after `timeout` seconds."""
        self._started()
        return cast("dict[str, Any]", self._call("job", (job, arguments), {}, timeout))

    def close(self) -> None:
        """End the worker and every process that it started."""
        process, self._process, self._current = self._process, None, None
        if process is not None:
            process.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _started(self) -> None:
        if self._process is not None:
            return
        try:
            self._process = WorkerProcess(self._command, self._log)
        except OSError as error:
            raise TargetDied("start", f"cannot start {self._command[0]}: {error}") from error
        try:
            self._greet()
        except TargetDied:
            self.close()
            raise

    def _greet(self) -> None:
        self._hello = cast("_Hello", self._call("hello", (), {}, self._start_timeout))
        if self._hello.contract != CONTRACT_VERSION:
            contract = self._hello.contract
            self._die("start", f"contract {contract} in the worker, {CONTRACT_VERSION} here")
        self._profile = self._decoded("profile", self._hello.profile, Profile)

    def _call(
        self, call: str, arguments: tuple[object, ...], keywords: dict[str, object], timeout: float
    ) -> object:
        assert self._process is not None
        self._calls += 1
        message = {"id": self._calls, "call": call, "arguments": arguments, "keywords": keywords}
        try:
            line = self._process.exchange(msgspec.json.encode(message), timeout)
        except TimeoutError:
            late = f"no answer to {call} within {timeout:g} s"
            self._die("start" if call == "hello" else "hang", late)
        except EOFError:
            end = f"{self._process.how_it_ended()} during {call}"
            self._die("start" if call == "hello" else "crash", end)
        except BaseException:
            self.close()  # the answer may still arrive: the stream is no longer in step
            raise
        return self._read(call, line)

    def _read(self, call: str, line: bytes) -> object:
        try:
            answer = _decode_answer(line)
        except msgspec.MsgspecError:
            self._die("garbage", f"not an answer to {call}: {line[:200]!r}")
        if answer.id != self._calls:
            self._die("garbage", f"answer {answer.id} to call {self._calls} ({call})")
        if answer.error is not None:
            assert self._process is not None
            raise TargetDied(answer.error.kind, answer.error.message, self._process.log_tail())
        expected = _ANSWERS[call]
        if answer.type not in expected:
            names = " or ".join(expected)
            value = bytes(answer.value)[:200].decode(errors="replace")
            self._die("garbage", f"{call} answered {answer.type} {value}, expected {names}")
        return self._decoded(call, answer.value, expected[answer.type])

    def _decoded(self, call: str, raw: msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(raw, type=kind)
        except msgspec.MsgspecError as error:
            text = bytes(raw)[:200].decode(errors="replace")
            self._die("garbage", f"{call} answered {text}: {error}")

    def _die(self, kind: FailureKind, message: str) -> NoReturn:
        process = self._process
        assert process is not None
        self.close()
        raise TargetDied(kind, message, process.log_tail(), fatal=True)
