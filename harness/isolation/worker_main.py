"""Runs a target in the engine's own Python and answers the host over two pipes.

Started as a plain file, `python -I <root>/harness/isolation/worker_main.py --factory
pkg.module:function`, so that kvproof need not be installed there. `-I` keeps this folder off
`sys.path`, where its modules would shadow others. With `--path`, it is a user's own target in the
host's environment.

One JSON object per line each way. Host: `{"id", "call", "arguments", "keywords", "then"}`. Worker:
`{"id", "type", "value"}`, or `{"id", "error": {"kind", "message"}}` with the traceback in the log.
`then` announces the next calls, which are carried out and answered at once: `complete` for the step
of the answer, and `inspect`. End of file on stdin ends the worker and everything it started.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import importlib
import json
import operator
import os
import platform
import resource
import select
import signal
import sys
import threading
import time
import traceback
import types
import typing
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

if not __package__:
    _namespace = types.ModuleType("kvproof")
    _namespace.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["kvproof"] = _namespace

from kvproof.harness.contract.profile import Profile, wrong_choices
from kvproof.harness.contract.target import CONTRACT_VERSION, Target, TargetConfig

_PROBE_SIZES = (16, 64, 256, 1)
"""Block sizes tried for the target whose profile is read; the first accepted one is used."""


def load(name: str) -> Callable[..., Any]:
    """Import `pkg.module:function`. Raises ImportError or AttributeError."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = operator.attrgetter(attribute)(importlib.import_module(module))
    return found


HOW_TO_NAME = (
    "write it as package.module:function; the module must be on the Python path or in the "
    "working directory, and what it imports must be installed"
)


def problem_of(name: str) -> tuple[str, str]:
    """Import a factory; return the problem and the next step, both empty if there is none."""
    try:
        factory: object = load(name)
    except ImportError as error:
        return f"cannot be imported: {error}", HOW_TO_NAME
    except AttributeError as error:
        hint = "the part after the colon must be a function make_target(TargetConfig) -> Target"
        return f"cannot be imported: {error}", hint
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a module may raise anything
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = error if isinstance(error, SyntaxError) else frame
        where = f"raised at {place.filename}:{place.lineno}; importing the module must work"
        return f"cannot be imported: {type(error).__name__}: {error}", where
    if not callable(factory):  # whatever it is annotated as
        hint = "it must be callable as make_target(TargetConfig) -> Target"
        return f"is a {type(factory).__name__}, not a function", hint
    return "", ""


def profile_of(factory: Callable[[TargetConfig], Target]) -> Profile:
    """Ask a small throw-away target; raises the factory's own error if no size is accepted."""
    refusals = []
    for size in _PROBE_SIZES:
        try:
            target = factory(TargetConfig(num_blocks=16, block_size=size))
        except Exception as error:  # noqa: BLE001 - a size may be refused in any way
            refusals.append(error)
            continue
        profile = target.profile
        target.close()
        return profile
    raise refusals[0]


def wrong_lines(profile: object) -> list[str]:
    """Describe each field of a profile with a value that is not legal: field, value, legal ones."""
    return list(map(str, wrong_choices(profile))) if isinstance(profile, Profile) else []


@cache
def parameters(verb: str) -> dict[str, Any]:
    """Names and types of a verb's arguments, in order, from the contract."""
    hints = dict(typing.get_type_hints(getattr(Target, verb)))
    hints.pop("return")
    return hints


@cache
def answers(verb: str) -> tuple[type, ...]:
    """Types that a verb may answer with, from the contract."""
    returned = typing.get_type_hints(getattr(Target, verb))["return"]
    origin = typing.get_origin(returned)
    if isinstance(origin, type) and issubclass(origin, tuple):
        return (origin,)
    return typing.get_args(returned) or (returned,)


def decode(kind: Any, data: Any) -> Any:
    """Rebuild a record of the contract from plain JSON values."""
    return _decoder(kind)(data)


@cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(typing.cast("type", kind))
        parts = {name: _decoder(hint) for name, hint in hints.items()}
        make = typing.cast("Any", kind)
        return lambda data: make(**{name: parts[name](value) for name, value in data.items()})
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        if item in (int, str):
            return tuple
        part = _decoder(item)
        return lambda data: tuple([part(each) for each in data])
    return lambda data: data


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(typing.cast("Any", kind)))


def plain(value: object) -> object:
    """JSON form of types that `json` does not know: records, and an engine's own integers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: getattr(value, name) for name in _field_names(type(value))}
    return operator.index(typing.cast("typing.SupportsIndex", value))


_STARTS = ("import", "differences", "hello", "create")
"""Calls whose failure is one of the start."""


class Worker:
    """Holds the current target and carries out one message at a time."""

    def __init__(self, factory: str, memory: int = 0) -> None:
        self._factory_name = factory
        self._memory = memory
        self._target: Any = None

    def answers(self, line: bytes) -> Iterator[bytes]:
        """One answer line for one message line, and one for each call that it announces."""
        message = json.loads(line)
        number, call = message["id"], message["call"]
        good, value, answer = self._answer(number, call, message["arguments"], message["keywords"])
        yield answer
        for call in message.get("then", ()):
            step = getattr(value, "step", None)
            if not good:
                return
            if call == "complete" and step is None:  # it was refused
                continue
            number += 1
            good, _, answer = self._answer(number, call, [step] if call == "complete" else [], {})
            yield answer

    def _answer(
        self, number: int, call: str, arguments: list[Any], keywords: dict[str, Any]
    ) -> tuple[bool, object, bytes]:
        """Whether the call went well, its value, and the line."""
        try:
            value = self._carry_out(call, arguments, keywords)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - of the target: its verdict
            traceback.print_exc()
            kind = "start" if call in _STARTS else "crash"
            text = "".join(traceback.format_exception_only(type(error), error)).strip()
            return False, None, _line({"id": number, "error": {"kind": kind, "message": text}})
        try:
            return True, value, _line({"id": number, "type": type(value).__name__, "value": value})
        except (TypeError, ValueError) as error:
            text = f"the answer to {call} cannot be written as JSON: {error}"
            wrong = {"kind": "garbage", "message": text}
            return False, None, _line({"id": number, "error": wrong})

    def _carry_out(self, call: str, arguments: list[Any], keywords: dict[str, Any]) -> object:
        if call == "import":
            return dict(zip(("problem", "hint"), problem_of(self._factory_name)))  # noqa: B905 - Python 3.10
        if call == "differences":
            module = importlib.import_module(self._factory_name.partition(":")[0])
            return list(getattr(module, "differences", tuple)())
        if call == "hello":
            return self._hello()
        if call == "create":
            self._close()
            self._target = load(self._factory_name)(decode(TargetConfig, arguments[0]))
            return None
        if call == "close":
            self._close()
            return None
        if call == "job":
            return load(arguments[0])(arguments[1])
        kinds = parameters(call)
        given = [decode(kind, value) for kind, value in zip(kinds.values(), arguments)]  # noqa: B905 - defaults may be left out
        named = {name: decode(kinds[name], value) for name, value in keywords.items()}
        return getattr(self._target, call)(*given, **named)

    def _close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def _hello(self) -> dict[str, object]:
        factory = load(self._factory_name)
        limit_memory(self._memory)
        profile = profile_of(factory)
        wrong = wrong_lines(profile)
        return {
            "profile": None if wrong else profile,
            "wrong": wrong,
            "contract": CONTRACT_VERSION,
            "python": platform.python_version(),
        }


def limit_memory(more: int) -> None:
    """Let this process map `more` bytes in addition; 0: any amount."""
    if more:
        statm = Path("/proc/self/statm")
        pages = int(statm.read_text().split()[0]) if statm.exists() else 0
        mapped = pages * resource.getpagesize()
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        limit = mapped + more
        resource.setrlimit(
            resource.RLIMIT_AS,
            (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard),
        )


def clock(_: dict[str, Any]) -> dict[str, Any]:
    """A job that reads this process's clock."""
    return {"seconds": time.process_time()}


def _line(message: dict[str, object]) -> bytes:
    return json.dumps(message, default=plain, separators=(",", ":")).encode() + b"\n"


def take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the two pipes for the protocol; the engine's own output goes to the log."""
    source, sink = os.dup(0), os.dup(1)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    if sys.stdout is not None:
        typing.cast("Any", sys.stdout).reconfigure(line_buffering=True)
    return os.fdopen(source, "rb"), os.fdopen(sink, "wb")


def end_with_host(source: int) -> None:
    """End this process group when the host's end of the pipe closes, even in the middle of a call.

    Hang-up is reported without asking for any event, so no input is consumed.
    """
    poller = select.poll()
    poller.register(source, 0)
    poller.poll()
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def main() -> None:
    """Serve until the host closes the pipe."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--factory", required=True)
    parser.add_argument("--path", help="the whole sys.path; else that of the interpreter")
    parser.add_argument("--memory", type=int, default=0, help="bytes beyond those of the imports")
    options = parser.parse_args()
    if options.path is not None:
        sys.path[:] = options.path.split(os.pathsep)
    from kvproof.harness.isolation.descendants import guarded  # the host does not need it

    alone = not guarded(0)
    worker = Worker(options.factory, options.memory)
    source, sink = take_pipes()
    faulthandler.enable()
    if alone:
        threading.Thread(target=end_with_host, args=[source.fileno()], daemon=True).start()
    try:
        for line in source:
            for answer in worker.answers(line):
                sink.write(answer)
                sink.flush()
    except BrokenPipeError:  # the host has given up on an answer
        os._exit(1)


if __name__ == "__main__":
    main()
