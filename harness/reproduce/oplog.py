"""Op logs: histories as JSON, the durable form of a failure.

An op log is data: it is decoded into records, never executed. It names no engine internals, so a
log found on one target can be replayed on another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from keyword import iskeyword
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import CONTRACT_VERSION, TargetConfig
from kvproof.harness.errors import UsageError
from kvproof.harness.oracle.checks.admission import malformed
from kvproof.harness.oracle.session import Session
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.records.run_directory import UNREADABLE
from kvproof.harness.reproduce.script import RESERVED

FORMAT = 1

T = TypeVar("T")


class OpLog(msgspec.Struct, frozen=True, kw_only=True):
    """A history and the property that it broke when it was recorded."""

    format: int = FORMAT
    contract: int = CONTRACT_VERSION
    target: str
    property: str
    oracle: str = ""
    sentence: str = ""
    fingerprint: str = ""
    config: TargetConfig
    operations: list[dict[str, Any]]


def record(target: str, violation: Violation) -> OpLog:
    """Return the op log of a violation."""
    session = violation.session
    assert session is not None, "a violation always comes out of a session"
    return OpLog(
        target=target,
        property=violation.property,
        oracle=violation.oracle,
        sentence=violation.sentence,
        fingerprint=fingerprint(target, violation.property, session),
        config=session.config,
        operations=[ops.to_json(operation) for operation, _ in session.history],
    )


def fingerprint(target: str, prop: str, session: Session) -> str:
    """Group failures: the same property broken by the same verb on the same engine."""
    verb = ops.name(session.history[-1][0]) if session.history else ""
    engine = target.split("==")[0]
    return hashlib.sha256(f"{engine}/{prop}/{verb}".encode()).hexdigest()[:10]


def load(path: Path) -> OpLog:
    """Read an op log. Raises UsageError that names the file and what is wrong."""
    return read(path, _parse)


def _parse(text: bytes) -> OpLog:
    log = msgspec.json.decode(text, type=OpLog)
    decode(log.operations)
    return log


def read(path: Path, parse: Callable[[bytes], T]) -> T:
    """Read a log of any kind. Raises UsageError that names the file and what is wrong."""
    try:
        text = path.read_bytes()
        _check_version(path, msgspec.json.decode(text, type=_Version))
        return parse(text)
    except OSError as error:
        raise UsageError(
            f"cannot read op log {str(path)!r}: {error.strerror}",
            "name an op log, or the directory of a run with failures",
        ) from error
    except UNREADABLE as error:
        raise UsageError(
            f"{str(path)!r} is no op log: {error}", "record one with kvproof run or fuzz"
        ) from error


class _Version(msgspec.Struct, frozen=True):
    """What an op log of any version has."""

    format: int = FORMAT
    contract: int = CONTRACT_VERSION


def _check_version(path: Path, found: _Version) -> None:
    """Say so first if a log is newer: it may look like nothing known here."""
    if found.format > FORMAT or found.contract > CONTRACT_VERSION:
        raise UsageError(f"{str(path)!r} was written by a newer kvproof", "upgrade kvproof")


def dump(log: msgspec.Struct) -> bytes:
    """Return the JSON of an op log, one operation a line."""
    return msgspec.json.format(msgspec.json.encode(log), indent=1) + b"\n"


def decode(operations: Sequence[dict[str, Any]]) -> list[ops.Operation]:
    """Turn JSON objects into operations. Raises msgspec.ValidationError."""
    decoded = []
    for index, item in enumerate(operations):
        verb = item.get("op")
        kind = ops.OPERATIONS.get(verb) if isinstance(verb, str) else None
        if kind is None:
            raise msgspec.ValidationError(f"operation {index} has unknown verb {verb!r}")
        fields = {name: value for name, value in item.items() if name != "op"}
        decoded.append(_named(msgspec.convert(fields, kind), index))
    return decoded


def _named(operation: ops.Operation, index: int) -> ops.Operation:
    """Refuse ids that could not be variables: scripts are written from them."""
    names: list[str] = [*getattr(operation, "ids", ())]
    names += [getattr(getattr(operation, "request", operation), "id", "r")]
    for name in names:
        if not (name.isidentifier() and name.isascii()) or iskeyword(name):
            raise msgspec.ValidationError(f"operation {index} has id {name!r}, not an identifier")
        if name in RESERVED:
            raise msgspec.ValidationError(f"operation {index} has id {name!r}, which scripts use")
    return operation


def play(session: Session, operations: Iterable[ops.Operation]) -> bool:
    """Apply operations, leaving out those that another target's answers made impossible.

    Tells whether the last one was carried out; where steps end at once, their end with them.
    """
    done, at_once = True, not session.profile.in_flight_steps
    for operation in operations:
        if at_once and isinstance(operation, ops.Complete) and not session.steps:
            continue
        done = _possible(session, operation) and not _crowded(session, operation)
        if done:
            session.apply(operation)
    return done


def making_room(session: Session, operations: Iterable[ops.Operation]) -> Iterator[ops.Operation]:
    """Yield operations, and the end of the oldest step before one that may not overtake it.

    The log of a target that takes more steps in flight, or ends each at once, has no such ends.
    """
    for operation in operations:
        if _possible(session, operation) and _crowded(session, operation):
            yield ops.Complete()
        yield operation


def _crowded(session: Session, operation: ops.Operation) -> bool:
    """Tell whether an operation would schedule one step more than the target takes."""
    if not isinstance(operation, (ops.Admit, ops.Extend)):
        return False
    schedules = isinstance(operation, ops.Extend) or not malformed(operation.request)
    return schedules and len(session.steps) >= max(1, session.profile.in_flight_steps)


def _possible(session: Session, operation: ops.Operation) -> bool:
    """Operations on requests that this target refused cannot be asked of it."""
    profile, live = session.profile, session.live
    request = getattr(operation, "request", None)
    if request is not None and malformed(request):
        return profile.validates and isinstance(operation, ops.Admit) and request.id not in live
    if isinstance(operation, ops.Complete):
        return bool(session.steps)
    if isinstance(operation, ops.Extend):
        going = operation.id in live and not live[operation.id].drafts
        return going and (profile.drafts or not operation.drafts)
    if isinstance(operation, ops.Experts):
        return profile.experts and operation.id in live and not live[operation.id].drafts
    if isinstance(operation, ops.ReadBatch):
        return profile.batch and bool(operation.ids) and all(name in live for name in operation.ids)
    if isinstance(operation, ops.Admit):
        return operation.request.id not in live
    needs = {ops.Pin: profile.pins, ops.Unpin: profile.pins, ops.Lookup: profile.lookup}
    return bool(needs.get(type(operation), True)) and (
        profile.evict or not isinstance(operation, ops.Evict)
    )
