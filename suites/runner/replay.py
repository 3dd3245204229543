"""Run recorded failures again: FIXED, FAILED or ERROR."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.session import Session
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.records.events import Replayed, Step, TargetFailed
from kvproof.harness.reproduce import oplog
from kvproof.suites.conformance import suite as cache
from kvproof.suites.framework import model_test as part
from kvproof.suites.framework import model_test_log as part_log
from kvproof.suites.framework.model_test import History
from kvproof.suites.framework.model_test_suite import SUBJECT, offered_part
from kvproof.suites.runner.registry import find

IMPOSSIBLE = "its last operation is not possible on this target"
"""Why a log shows nothing there: that operation is the one that failed."""


class _Rerun(NamedTuple):
    """A log, and how to run it: returns why that shows nothing, if so."""

    target: str
    property: str
    run: Callable[[], str]


def replay(
    handle: Handle, path: Path, *, died: Callable[[TargetFailed], object] = lambda _: None
) -> Replayed:
    """Run an op log again on a target; the log of a part, where its like was recorded.

    `died` hears of the death of the target, with its log. Raises UsageError for what is no log.
    """
    rerun = _of_part(handle, path) if part_log.is_part_log(path) else _of_target(handle, path)
    outcome: Literal["FIXED", "FAILED", "ERROR"]
    try:
        nothing = rerun.run()
        outcome, message = ("ERROR", nothing) if nothing else ("FIXED", f"{rerun.property} holds")
    except Violation as violation:
        outcome, message = "FAILED", str(violation)
    except TargetDied as death:
        died(target_failed(rerun.target, death))
        outcome, message = "FAILED", f"the target died ({death.kind}): {death}"
    except Exception as error:  # noqa: BLE001 - a fault of the harness, not of the target
        outcome, message = "ERROR", f"{type(error).__name__}: {error}"
    return Replayed(
        target=rerun.target,
        path=str(path),
        outcome=outcome,
        message=message,
        expected=rerun.property,
    )


def _of_target(handle: Handle, path: Path) -> _Rerun:
    log = oplog.load(path)

    def run() -> str:
        session = Session(handle.create(log.config), log.config)
        try:
            done = oplog.play(session, oplog.making_room(session, oplog.decode(log.operations)))
        finally:
            session.target.close()
        if not done:
            return IMPOSSIBLE
        return "" if session.checks[log.property] else unseen(log.property)

    return _Rerun(handle.name, log.property, run)


def _of_part(handle: Handle, path: Path) -> _Rerun:
    log = part_log.load(path)
    subject = offered_part(find(log.part), handle) if log.target else find(log.part)

    def run() -> str:
        checks = part.run(subject, log.config, log.operations).recorder.checks
        return "" if checks[log.property] else unseen(log.property)

    return _Rerun(handle.name if log.target else SUBJECT, log.property, run)


def unseen(prop: str) -> str:
    """Say that a log shows nothing about its property."""
    return f"{prop} was never evaluated on this target"


def property_of(event: Replayed) -> str:
    """Return the property that a replay broke, which begins its message."""
    return event.message.partition(":")[0]


def target_failed(target: str, died: TargetDied) -> TargetFailed:
    """Return the verdict about a target that died, with the history that killed it if known."""
    return TargetFailed(
        target=target, kind=died.kind, message=str(died), log=died.log, history=_history(died)
    )


def _history(died: TargetDied) -> list[Step]:
    if isinstance(died.session, Session):
        return cache.steps(died.session, str(died))
    return part_log.steps(died.session, str(died)) if isinstance(died.session, History) else []
