"""Targets and jobs that misbehave on request, imported inside workers by the tests."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import (
    Evicted,
    Group,
    Inspection,
    Refused,
    Released,
    Request,
    Scheduled,
    Target,
    TargetConfig,
    Usage,
)


class Toy:
    """Answers from its configuration; request ids name what `finish` does wrong."""

    profile = Profile(engine="toy", version="1.0", block_sizes=(64,))

    def __init__(self, config: TargetConfig) -> None:
        self._config = config
        self._last = Request("none", ())

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        self._last = request
        stop = len(request.tokens) if compute is None else compute
        return Scheduled(1, 0, 0, stop, ((1, 2),), ((1, 2),), ((0, 1, 2),))

    def inspect(self) -> Inspection:
        total = self._config.num_blocks - 1
        return Inspection(Usage(total, total, 0, 0), repr(self._last), {3: 1})

    def lookup(self, request: Request) -> int:
        del request
        return os.getpid()

    def finish(self, request_id: str) -> Released:
        return cast("Released", DEEDS[request_id]())

    def reset(self) -> Released | Refused:
        return Refused("busy", 1, 2, "held")

    def evict(self, count: int) -> Evicted:
        return Evicted((tuple(range(count)),))

    def close(self) -> None:
        print("toy closed")  # noqa: T201 - goes to the worker's log


def make_toy(config: TargetConfig) -> Target:
    if config.block_size != 64:
        raise ValueError(f"block size {config.block_size} is not 64")
    return cast("Target", Toy(config))


def make_nothing(config: TargetConfig) -> Target:
    raise OSError(f"no device for {config.num_blocks} blocks")


def make_future(config: TargetConfig) -> Target:
    """Runs in a worker that speaks another contract."""
    vars(sys.modules["__main__"])["CONTRACT_VERSION"] = 99
    return make_toy(config)


class _Slow(Toy):
    def inspect(self) -> Inspection:
        time.sleep(3)
        return super().inspect()


def _slow(seconds: float, reason: str) -> Any:
    class Slow(_Slow):
        profile = replace(Toy.profile, slowest_answer=seconds, slowest_answer_reason=reason)

    return Slow


make_impatient = _slow(0.0, "")
make_patient = _slow(20.0, "it compiles a kernel")
make_unreasoned = _slow(20.0, "")
make_endless = _slow(1e9, "it thinks")


def _declaring(**wrong: Any) -> Any:
    class Declaring(Toy):
        profile = replace(Toy.profile, **wrong)

    return Declaring


make_maybe = _declaring(duplicates="maybe")
make_sizeless = _declaring(block_sizes=())
make_negative = _declaring(block_sizes=(64, -4))
make_unknown_suite = _declaring(component_suites={"hitz": "some.module:hits"})


def make_sleeper(config: TargetConfig) -> Target:
    time.sleep(300)
    return make_toy(config)


def _answer_pipe() -> int:
    """The descriptor of the protocol: the highest pipe that is open for writing."""
    import fcntl
    import stat

    return max(
        number
        for number in range(3, 64)
        if os.path.exists(f"/proc/self/fd/{number}")  # noqa: PTH110 - a descriptor, not a file
        and stat.S_ISFIFO(os.fstat(number).st_mode)
        and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    )


def _print() -> Released:
    print("hello from print")  # noqa: T201 - this is the test
    os.write(1, b"hello from descriptor 1\n")
    return Released(((5,),))


def _hang_with_child() -> None:
    subprocess.Popen(["sleep", "300"])
    time.sleep(300)


def _repeat_first_answer() -> None:
    os.write(_answer_pipe(), b'{"id":1,"type":"int","value":1}\n')
    time.sleep(300)


def _raise() -> None:
    raise TypeError("block 7 is not iterable")


DEEDS: dict[str, Any] = {
    "fine": Released,
    "exit": lambda: os._exit(3),
    "sys.exit": lambda: sys.exit(4),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "real-time signal": lambda: os.kill(os.getpid(), 35),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hang": lambda: time.sleep(300),
    "hang with child": _hang_with_child,
    "raise": _raise,
    "print": _print,
    "none": lambda: None,
    "wrong record": lambda: Evicted(),
    "wrong field": lambda: Released(cast("Any", "seven")),
    "no json": lambda: Released(cast("Any", {1, 2})),
    "noise": lambda: os.write(_answer_pipe(), b"\x00\xff not json\n"),
    "echo of an old answer": _repeat_first_answer,
}


def echo(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"length": len(str(arguments)), **arguments}


def no_dict(arguments: dict[str, Any]) -> list[int]:
    del arguments
    return [1]


def leave_a_file(_: dict[str, Any]) -> dict[str, Any]:
    """Make a temporary folder that nobody removes."""
    return {"folder": tempfile.mkdtemp(prefix="left-")}


def sleep(arguments: dict[str, Any]) -> dict[str, Any]:
    time.sleep(arguments["seconds"])
    return {}


def engine_cycle(arguments: dict[str, Any]) -> dict[str, Any]:
    """Serve prompts one after the other; answers of each, and the number of cached blocks."""
    target = importlib.import_module(f"kvproof.harness.adapters.{arguments['engine']}.target")
    cycle = target.make_cycle(_with_groups(**arguments["config"]), arguments["variant"])
    prompts = [cycle.prepare(memoryview(array("i", tokens))) for tokens in arguments["prompts"]]
    answers = [cycle.run(index, prompt) for index, prompt in enumerate(prompts)]
    return {"answers": answers, "cached": cycle.cached_blocks()}


def _with_groups(groups: Sequence[Sequence[Any]] = (), **rest: Any) -> TargetConfig:
    return TargetConfig(**rest, groups=tuple(Group(*each) for each in groups))
