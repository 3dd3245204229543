"""Replay of a log's operations on a session, whose target may answer differently.

Operations that this target's answers make impossible are left out, and steps are completed where
the target takes fewer of them in flight than the recorded one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from kvproof.harness.contract import operations as ops
from kvproof.harness.errors import UsageError
from kvproof.harness.oracle.checks.content import malformed
from kvproof.harness.session import Session

IMPOSSIBLE = "its last operation is not possible on this target"
"""The reason for no verdict if the failed operation itself is impossible there."""


def decode(operations: Sequence[dict[str, Any]]) -> list[ops.Operation]:
    """Turn JSON objects into operations. Raises msgspec.ValidationError."""
    return [_decoded(item, index) for index, item in enumerate(operations)]


def _decoded(item: Mapping[str, Any], index: int) -> ops.Operation:
    verb = item.get("op")
    if not isinstance(verb, str) or verb not in ops.OPERATIONS:
        raise msgspec.ValidationError(f"operation {index} has unknown verb {verb!r}")
    return operation(verb, {name: value for name, value in item.items() if name != "op"})


def operation(verb: str, arguments: Mapping[str, Any]) -> ops.Operation:
    """Return one operation of the contract. Raises msgspec.ValidationError, KeyError."""
    decoded: ops.Operation = msgspec.convert(arguments, ops.OPERATIONS[verb])
    return decoded


def rerun(session: Session, operations: Iterable[ops.Operation]) -> None:
    """Apply operations to the target of a session as `kvproof replay` does.

    Raises Violation, TargetDied, and UsageError where the last one is not possible on the target.
    """
    if not play(session, making_room(session, operations)):
        raise UsageError(IMPOSSIBLE, "nothing is known of the failure there")


def play(session: Session, operations: Iterable[ops.Operation]) -> bool:
    """Apply the operations that this target's answers allow; whether the last one ran."""
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
    """Whether an operation would exceed the steps in flight of the target."""
    if not isinstance(operation, (ops.Admit, ops.Extend)):
        return False
    schedules = isinstance(operation, ops.Extend) or not malformed(operation.request)
    return schedules and len(session.steps) >= max(1, session.profile.in_flight_steps)


def _possible(session: Session, operation: ops.Operation) -> bool:
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
