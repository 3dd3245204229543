"""Run recorded failures again: PASS, FIXED, FAILED or ERROR."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from kvproof.harness.contract import format as wording
from kvproof.harness.contract import operations as ops
from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.connected import divided
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.records.events import Replayed, Step, TargetFailed
from kvproof.harness.reproduce import oplog
from kvproof.harness.reproduce.session_play import IMPOSSIBLE
from kvproof.harness.session import Session
from kvproof.suites.framework import expected_failures, subject_failures
from kvproof.suites.framework.component_suite import ComponentSuite, History, carry_out
from kvproof.suites.framework.evidence import steps
from kvproof.suites.framework.expected_failures import Expected
from kvproof.suites.framework.known import Known
from kvproof.suites.runner.levels import property_names
from kvproof.suites.runner.registry import on


def replay(
    handle: Handle, path: Path, *, died: Callable[[TargetFailed], object] = lambda _: None
) -> Replayed:
    """Replay an op log on a target; known failures of other properties are passed over.

    `died` receives the death of the target, with its log. Raises UsageError for a file that is no
    op log, and for a suite that cannot judge the target.
    """
    log = oplog.load(path)
    suite = on(log.suite, handle)
    known = known_failures(handle)
    plain = _replayed(handle, path, log, suite, died)
    if not known or plain.outcome != "FAILED":
        return plain
    knowing = _replayed(handle, path, log, suite._replace(known=known), died)
    if knowing.outcome == "FAILED" and not knowing.known:
        return knowing  # something else fails after a known failure
    same = property_of(plain) == log.property
    event = plain if same or knowing.outcome == "FAILED" else knowing
    return replace(event, known=knowing.known)


def known_failures(handle: Handle) -> tuple[Known, ...]:
    """Return the known failures of a target. Raises UsageError, TargetDied."""
    return expected_failures.known(handle.profile.engine, expected_of(handle))


def expected_of(handle: Handle) -> list[Expected]:
    """Return the known failures of a target's release, and those that live with the subject.

    Raises UsageError, TargetDied.
    """
    profile, names = handle.profile, property_names()
    found = expected_failures.load(
        profile.engine,
        profile.version,
        names=names,
        unsupported=profile.unsupported,
        build=handle.name.partition("==")[2],
    )
    if divided(handle.name)[1]:  # those of other connectors have no history here
        found = [replace(each, history=None) for each in found]
    if path := handle.known_failures:
        found += subject_failures.load(Path(path), handle.name, names=names)
    return found


def shows(handle: Handle, entry: Expected, entries: Iterable[Expected]) -> bool:
    """Whether the entry's own history still shows its mechanism, by any of its properties.

    One without a history is shown by random ones alone.
    """
    path, profile = entry.history, handle.profile
    if path is None:
        return False
    log = oplog.load(path)
    try:
        suite = on(log.suite, handle)
    except UsageError:  # a suite that this target has not
        return False
    if entry.verbs:
        event = _replayed(handle, path, log, suite, lambda _: None)
        return event.outcome == "FAILED" and property_of(event) == entry.property
    same = [each for each in entries if each.mechanism == entry.mechanism]
    suite = suite._replace(known=expected_failures.known(profile.engine, same))
    history = History(suite, log.config)
    with suppress(Violation, TargetDied, UsageError):  # the last: it has what this target has not
        carry_out(history, oplog.calls(log))
    return entry.mechanism in history.known


def _replayed(
    handle: Handle,
    path: Path,
    log: oplog.OpLog,
    suite: ComponentSuite,
    died: Callable[[TargetFailed], object],
) -> Replayed:
    outcome: Literal["PASS", "FIXED", "FAILED", "ERROR"]
    history, known = History(suite, log.config), ""
    try:
        nothing = _rerun(history, log)
        fine: Literal["PASS", "FIXED"] = "FIXED" if _had_failed(handle, log) else "PASS"
        known = min(history.known, default="")
        outcome, message = ("ERROR", nothing) if nothing else (fine, f"{log.property} holds")
    except Violation as violation:
        outcome, message = "FAILED", str(violation)
        known = min(history.known) if history.recognise(violation) else ""
    except TargetDied as death:
        died(target_failed(handle.name, death))
        outcome, message = "FAILED", f"the target died ({death.kind}): {death}"
    except UsageError:  # of the op log: its configuration is not valid
        raise
    except Exception as error:  # noqa: BLE001 - a fault of the harness, not of the target
        outcome, message = "ERROR", f"{type(error).__name__}: {error}"
    return Replayed(
        target=handle.name,
        path=str(path),
        outcome=outcome,
        message=message,
        expected=log.property,
        known=known,
    )


def _had_failed(handle: Handle, log: oplog.OpLog) -> bool:
    """Whether a log was recorded on this engine, of any version."""
    return log.target.split("==")[0] == handle.name.split("==")[0]


def _rerun(history: History, log: oplog.OpLog) -> str:
    """Run a log; return why it proves nothing, if so. Raises Violation, TargetDied."""
    carry_out(history, oplog.calls(log))
    if history.ignored:
        return IMPOSSIBLE
    return "" if history.coverage.checks[log.property] else unseen(log.property)


def unseen(prop: str) -> str:
    """Return why a log proves nothing about its property."""
    return f"{prop} was never evaluated on this target"


def property_of(event: Replayed) -> str:
    """Return the property that a replay broke; it begins the message."""
    return event.message.partition(":")[0]


def target_failed(target: str, died: TargetDied) -> TargetFailed:
    """Return the verdict about a target that died, with the fatal history if known."""
    return TargetFailed(
        target=target, kind=died.kind, message=str(died), log=died.log, history=_history(died)
    )


def _history(died: TargetDied) -> list[Step]:
    if isinstance(died.session, History):
        return steps(died.session, str(died))
    return _judged_steps(died.session, str(died)) if isinstance(died.session, Session) else []


def _judged_steps(session: Session, note: str) -> list[Step]:
    last = len(session.history) - 1
    return [
        Step(
            op=ops.name(operation),
            arguments=wording.arguments(operation),
            answer=wording.answer(answer),
            note=note if index == last else "",
        )
        for index, (operation, answer) in enumerate(session.history)
    ]
