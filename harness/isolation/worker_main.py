"""Runs a target in the engine's own Python and answers the host over two pipes.

Started as a plain file, `python -I <root>/harness/isolation/worker_main.py --factory
pkg.module:function`, so that kvproof need not be installed there. `-I` keeps this folder off
`sys.path`, where its modules would shadow others.

One JSON object per line each way. Host: `{"id", "call", "arguments", "keywords"}`. Worker: `{"id",
"type", "value"}`, or `{"id", "error": {"kind", "message"}}` with the traceback in the log. End of
file on stdin ends the worker and everything it started.
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
import select
import signal
import sys
import threading
import time
import traceback
import types
import typing
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

if not __package__:
    _namespace = types.ModuleType("kvproof")
    _namespace.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["kvproof"] = _namespace

from kvproof.harness.contract.target import CONTRACT_VERSION, Profile, Target, TargetConfig

_PROBE_SIZES = (16, 64, 256, 1)
"""Block sizes tried for the target whose profile is read; the first accepted one is used."""


def load(name: str) -> Callable[..., Any]:
    """Import `pkg.module:function`. Raises ImportError or AttributeError."""
    module, _, attribute = name.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    return found


def profile_of(factory: Callable[[TargetConfig], Target]) -> Profile:
    """Ask a small throw-away target; raises what the factory raised if no size is accepted."""
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


@cache
def _fields(record: type) -> dict[str, Any]:
    return typing.get_type_hints(record)


def decode(kind: Any, data: Any) -> Any:
    """Rebuild a record of the contract from plain JSON values."""
    if dataclasses.is_dataclass(kind):
        hints = _fields(typing.cast("type", kind))
        values = {name: decode(hints[name], value) for name, value in data.items()}
        return typing.cast("type", kind)(**values)
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        return tuple(data) if item in (int, str) else tuple(decode(item, each) for each in data)
    return data


def plain(value: object) -> object:
    """JSON form of types that `json` does not know: records, and an engine's own integers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return operator.index(typing.cast("typing.SupportsIndex", value))


class Worker:
    """Holds the current target and carries out one message at a time."""

    def __init__(self, factory: str) -> None:
        self._factory_name = factory
        self._target: Any = None

    def answer(self, line: bytes) -> bytes:
        """One answer line for one message line."""
        message = json.loads(line)
        head = {"id": message["id"]}
        call = message["call"]
        try:
            value = self._carry_out(call, message["arguments"], message["keywords"])
        except Exception as error:  # noqa: BLE001 - an exception of the target is its verdict
            traceback.print_exc()
            kind = "start" if call in ("hello", "create") else "crash"
            text = "".join(traceback.format_exception_only(type(error), error)).strip()
            return _line({**head, "error": {"kind": kind, "message": text}})
        try:
            return _line({**head, "type": type(value).__name__, "value": value})
        except (TypeError, ValueError) as error:
            text = f"the answer to {call} cannot be written as JSON: {error}"
            return _line({**head, "error": {"kind": "garbage", "message": text}})

    def _carry_out(self, call: str, arguments: list[Any], keywords: dict[str, Any]) -> object:
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
        given = dict(zip(kinds, arguments), **keywords)  # noqa: B905 - defaults may be left out
        return getattr(self._target, call)(**{n: decode(kinds[n], v) for n, v in given.items()})

    def _close(self) -> None:
        target, self._target = self._target, None
        if target is not None:
            target.close()

    def _hello(self) -> dict[str, object]:
        return {
            "profile": profile_of(load(self._factory_name)),
            "contract": CONTRACT_VERSION,
            "python": platform.python_version(),
        }


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
    worker = Worker(parser.parse_args().factory)
    source, sink = take_pipes()
    faulthandler.enable()
    threading.Thread(target=end_with_host, args=[source.fileno()], daemon=True).start()
    for line in source:
        sink.write(worker.answer(line))
        sink.flush()


if __name__ == "__main__":
    main()
