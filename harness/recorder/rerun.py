"""Runs a recording again on a target, and compares the two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import Refused, Scheduled, Target
from kvproof.harness.errors import UsageError
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.recorder.codec import unpack
from kvproof.harness.recorder.recording import Line, Place, Recording
from kvproof.harness.recorder.verdict import long_session
from kvproof.harness.reproduce.session_play import play
from kvproof.harness.session import Session

_HISTORY = 256

_WIDEST = 1 << 31


class Difference(NamedTuple):
    """One request that hit another length, in tokens."""

    name: str
    milliseconds: int
    prompt: int
    recorded: int
    target: int


@dataclass
class Rerun:
    """Results of a target for the requests of a recording."""

    requests: int = 0
    """Admitted by both."""
    refused: int = 0
    """Refused for lack of space on the target; their later operations were left out."""
    tokens: int = 0
    recorded: int = 0
    """Tokens that hit when it was recorded."""
    target: int = 0
    """Tokens that hit on the target."""
    slots_compared: int = 0
    stopped: str = ""
    """Why the recorder gave up; empty: it did not."""
    differences: list[Difference] = field(default_factory=list)
    violation: Violation | None = None


def rerun(recording: Recording, target: Target) -> Rerun:
    """Run a recording on a target, judged like any history. Raises UsageError, TargetDied."""
    session = long_session(target, recording.header.config)
    found = Rerun()
    try:
        for place, line in recording.lines():
            found.stopped = line.reason or found.stopped
            _check_tokens(line, place)
            for operation in _operations(session, line):
                _apply(session, operation, line, found)
    except Violation as violation:
        found.violation = violation
    found.slots_compared = session.state.shadow.compared
    return found


def _check_tokens(line: Line, place: Place) -> None:
    """Refuse tokens that a target need not accept. Raises UsageError."""
    wide = next((token for token in unpack(line.tokens) if not -_WIDEST <= token < _WIDEST), None)
    if wide is not None:
        raise UsageError(
            f"{place} has the token {wide}, and targets take ids of 32 bits",
            "without --target it is judged as it was recorded",
        )


def _operations(session: Session, line: Line) -> Iterator[ops.Operation]:
    """Ask the target for the recorded operations, computed up to the same token."""
    name = f"r{line.n}"
    if line.op in ("admit", "carry"):
        whole = line.stop >= len(unpack(line.tokens))
        yield ops.Admit(line.request, None if whole else max(1, line.stop - line.hit))
    elif line.op == "extend" and name in session.live:
        yield from _extension(session, line, name)
    elif line.op in ("finish", "cancel", "preempt") and name in session.live:
        yield ops.OPERATIONS[line.op](name)
    elif line.op == "reset" and line.done and not session.live:
        yield ops.Reset()


def _extension(session: Session, line: Line, name: str) -> Iterator[ops.Operation]:
    """A target that hit more may be ahead, one that hit less has to catch up."""
    live, tokens = session.live[name], unpack(line.tokens)
    known = len(live.request.tokens) + len(tokens)
    if live.computed < known:
        whole = line.stop >= known
        yield ops.Extend(name, tokens, None if whole else max(1, line.stop - live.computed))


def _apply(session: Session, operation: ops.Operation, line: Line, found: Rerun) -> None:
    before = len(session.history)
    play(session, (operation,))
    if len(session.history) == before:
        return
    _, answer = session.history[-1]
    while session.steps:
        play(session, (ops.Complete(),))
    if isinstance(operation, ops.Admit) and isinstance(answer, Scheduled) and line.op == "admit":
        _compare(operation, answer, line, found)
    if isinstance(answer, Refused) and isinstance(operation, (ops.Admit, ops.Extend)):
        found.refused += 1
        if isinstance(operation, ops.Extend):
            play(session, (ops.Preempt(operation.id),))
    if len(session.history) >= _HISTORY and not found.violation:
        session.forget_history()


def _compare(admit: ops.Admit, answer: Scheduled, line: Line, found: Rerun) -> None:
    prompt = len(admit.request.tokens)
    found.requests += 1
    found.tokens += prompt
    found.recorded += line.hit
    found.target += answer.hit
    if answer.hit != line.hit:
        found.differences.append(Difference(line.name, line.t, prompt, line.hit, answer.hit))
