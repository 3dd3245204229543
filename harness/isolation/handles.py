"""Makers of targets: one interface, and targets in this process; `worker_handle` has the others.

Any failure of a target - crash, hang, invalid answer, no start - reaches the caller as `TargetDied`
with the log attached, and the next `create` begins with a fresh target. A handle serves one thread.
"""

from __future__ import annotations

import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property, partial
from typing import Any, Literal, Protocol, Self, TypeVar, cast, get_origin

import msgspec

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Target, TargetConfig
from kvproof.harness.errors import FailureKind, TargetDied, UsageError
from kvproof.harness.foreign_text import cut_json
from kvproof.harness.isolation import worker_main as worker

T = TypeVar("T")

Isolation = Literal["in_process", "worker"]


class Handle(Protocol):
    """Makes targets of one engine; also a context manager that closes itself."""

    known_failures: str
    """File with the known failures of the subject; empty: none."""

    @property
    def name(self) -> str:
        """The spec that it was opened with."""

    @property
    def factory(self) -> str:
        """`pkg.module:function` that makes the targets, importable where the engine lives."""

    @property
    def profile(self) -> Profile:
        """Constant for the life of the handle.

        Raises TargetDied(`start`), UsageError if a field is not legal.
        """

    @property
    def isolation(self) -> Isolation:
        """Whether the target can take this process down with it."""

    @property
    def python(self) -> str:
        """Version of the Python that the engine runs on."""

    @property
    def engine_seconds(self) -> float:
        """Time until the answers to all verbs so far, the way to a worker and back included."""

    def create(self, config: TargetConfig) -> Target:
        """Replace the current target. Raises TargetDied(`start`)."""

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        """Run `pkg.module:function`, dict to dict, where the engine lives; JSON values only.

        `timeout` is in seconds and cannot be enforced in this process. Raises TargetDied.
        """

    def prepared(self, job: str, arguments: dict[str, Any]) -> AbstractContextManager[None]:
        """Run the job now, and in each process of the engine that follows until the end.

        Raises TargetDied.
        """

    def hurried(self) -> AbstractContextManager[None]:
        """Expect answers about as soon as they came so far, where a limit can be enforced."""

    def close(self) -> None:
        """End the target and its worker. Idempotent."""

    def __enter__(self) -> Handle: ...

    def __exit__(self, *exception: object) -> None: ...


VERBS = tuple(verb for verb in vars(Target) if not verb.startswith("_") and verb != "profile")
ANSWERS: dict[str, dict[str, type]] = {
    **{verb: {kind.__name__: kind for kind in worker.answers(verb)} for verb in VERBS},
    "experts": {"tuple": cast("type", tuple[int | None, ...])},
}
"""Verb -> name of the answer's type -> type."""


class TargetProxy:
    """A target whose verbs are all carried out by `ask(verb, *arguments, **keywords)`.

    `announce` takes the names of the calls that will follow the next one; see `worker_main`.
    """

    def __init__(
        self,
        profile: Profile,
        ask: Callable[..., object],
        announce: Callable[[tuple[str, ...]], None],
    ) -> None:
        self.profile = profile
        self.announce = announce
        for verb in VERBS:
            setattr(self, verb, partial(ask, verb))


class InProcessHandle:
    """A target inside this process: fastest, but a crash of native code ends kvproof with it."""

    isolation: Isolation = "in_process"
    known_failures = ""

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
        self.engine_seconds = 0.0

    @cached_property
    def profile(self) -> Profile:
        """The profile of the factory's targets. Raises TargetDied(`start`), UsageError."""
        with _verdict("start"):
            profile = worker.profile_of(self._make)
            wrong = worker.wrong_lines(profile)
        refuse_profile(self.name, self.factory, wrong)
        return cast("Profile", _as_written("profile", profile, {Profile.__name__: Profile}))

    def create(self, config: TargetConfig) -> Target:
        """Close the current target and make a new one. Raises TargetDied(`start`)."""
        profile = self.profile
        self._close_target()
        with _verdict("start"):
            self._target = target = self._make(config)
        return cast("Target", TargetProxy(profile, partial(self._ask, target), lambda _: None))

    def _ask(self, target: Target, verb: str, *arguments: object, **keywords: object) -> object:
        if verb == "close":
            if target is self._target:
                self._close_target()
            return None
        began = time.perf_counter()
        with _verdict("crash"):
            answer = getattr(target, verb)(*arguments, **keywords)
        self.engine_seconds += time.perf_counter() - began
        return _as_written(verb, answer, ANSWERS[verb])

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:  # noqa: ARG002 - nothing can interrupt this process
        """Run the job here, without the timeout. Raises TargetDied(`crash`)."""
        with _verdict("crash"):
            return cast("dict[str, Any]", worker.load(job)(arguments))

    @contextmanager
    def prepared(self, job: str, arguments: dict[str, Any]) -> Iterator[None]:
        """Run the job here, once. Raises TargetDied(`crash`)."""
        self.run_job(job, arguments, timeout=0)
        yield

    def hurried(self) -> AbstractContextManager[None]:
        """Change nothing: there are no limits here."""
        return nullcontext()

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


def refuse_profile(name: str, factory: str, wrong: Sequence[str]) -> None:
    """Raise UsageError with every field of a profile whose value is not legal."""
    if wrong:
        raise UsageError(
            f"the profile of target {name!r} is not valid: {'; '.join(wrong)}",
            f"correct it where {factory} makes its Profile",
        )


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
    kind = next((kind for kind in expected.values() if _is(answer, kind)), None)
    if kind is None:
        raise _garbage(verb, answer, f", expected {' or '.join(expected)}")
    try:
        return decoder(kind).decode(cut_json(_encode(answer)))
    except Exception as error:  # a field may hold anything, with an `__index__` of its own
        raise _garbage(verb, answer, f": {error}") from error


def _garbage(verb: str, answer: object, problem: str) -> TargetDied:
    return TargetDied(
        "garbage", f"{verb} answered {type(answer).__name__} {answer!r:.200}{problem}"
    )


def _is(answer: object, kind: type) -> bool:
    return isinstance(answer, get_origin(kind) or kind)


_encode = msgspec.json.Encoder(enc_hook=worker.plain).encode
decoder = cache(msgspec.json.Decoder)
"""Decoder of a type, made once."""
