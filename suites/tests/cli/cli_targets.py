"""Targets that misbehave in the ways the command line has to survive."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from kvproof.harness.adapters.reference.target import ReferenceTarget, make_target
from kvproof.harness.contract.target import Refused, Target, TargetConfig

VERSION = "KVPROOF_TEST_VERSION"
"""Variable with the release that a target here stands in for."""
STARTED = "started"
"""File in the working directory that says that a target is in the middle of its histories."""
_IN_THE_MIDDLE = 100
"""Requests admitted by then: the first history, which alone leaves counts, is complete."""


def _with_admit(change: Callable[[ReferenceTarget], Callable[..., Any]]) -> Any:
    def make(config: TargetConfig) -> Target:
        target = make_target(config)
        vars(target)["admit"] = change(target)
        if os.environ.get(VERSION):  # it stands in for a release of an engine
            vars(target)["profile"] = replace(target.profile, version=os.environ[VERSION])
        return target

    return make


def _raise(*_: object, **__: object) -> None:
    raise KeyError("block 7")


def _refuse(*_: object, **__: object) -> Refused:
    return Refused("no_space", needed=1)


def _then(deed: Callable[[], object], target: ReferenceTarget) -> Callable[..., Any]:
    admit = target.admit

    def admit_and(*arguments: Any, **keywords: Any) -> Any:
        deed()
        return admit(*arguments, **keywords)

    return admit_and


def _slow() -> None:
    if next(_calls) == _IN_THE_MIDDLE:
        Path(STARTED).touch()
    time.sleep(0.005)


def _refuse_for_long(*_: object, **__: object) -> Refused:
    time.sleep(0.02)
    if next(_calls) > 20:  # the corpus and the first histories are over
        Path(STARTED).touch()
    return _refuse()


_calls = count()


def _die() -> None:
    print("block 7 says goodbye", file=sys.stderr, flush=True)  # noqa: T201 - goes to a log
    os.kill(os.getpid(), signal.SIGKILL)


raises = _with_admit(lambda _: _raise)
refuses_for_long = _with_admit(lambda _: _refuse_for_long)
refuses = _with_admit(lambda _: _refuse)
leaves = _with_admit(partial(_then, lambda: sys.exit(0)))
dies = _with_admit(partial(_then, _die))
slow = _with_admit(partial(_then, _slow))
instance = partial(make_target)
"""A factory without a name of its own."""
number = 7


def answers_nothing(config: TargetConfig) -> None:
    """Forgot its return."""
