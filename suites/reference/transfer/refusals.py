"""Calls with one wrong argument: they raise, and nothing at all is enqueued (G4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.reference.transfer.chunk_layout import ChunkLayout
from kvproof.reference.transfer.host_object import HostObject
from kvproof.suites.reference.transfer import properties as seen
from kvproof.suites.reference.transfer.state import TransferState


def refuse(
    machine: TransferState,
    *,
    kind: str,
    ids: dict[str, list[int]],
    objects: list[int],
    written: bool,
) -> object:
    subject = machine.subject
    call: dict[str, Any] = {
        "block_ids": [list(each) for each in machine.ids_of(ids)],
        "objects": [subject.objects[at] for at in objects],
        "skip_first_tokens": 0,
        "valid": None,
    }
    if not _SPOILT[kind](machine, call):
        return None
    before = subject.streams.enqueued if subject.streams else 0
    way = subject.transfer.retrieve if written or kind == "twice" else subject.transfer.store
    try:
        way(call.pop("block_ids"), call.pop("objects"), **call)
        answer = ""
    except ValueError as error:
        answer = str(error)
    after = subject.streams.enqueued if subject.streams else 0
    machine.coverage.event(seen.REFUSED[kind])
    machine.coverage.check(
        "wrong_arguments_move_nothing",
        answer and before == after and (machine.delayed or machine.unchanged()),
        lambda: f"a wrong {kind} is answered by {answer!r}, {after - before} works are enqueued",
    )
    return answer


def _id(machine: TransferState, call: dict[str, Any], wrong: int | None = None) -> bool:
    """Put an id after the last block, or another wrong one, at the end of the last group."""
    group = machine.subject.groups.groups[-1]
    ids = call["block_ids"][-1]
    if not ids or not machine.subject.layout.groups[-1].blocks:
        return False
    ids[-1] = group.blocks if wrong is None else wrong
    return True


def _negative(machine: TransferState, call: dict[str, Any]) -> bool:
    return _id(machine, call, -1)


def _count(_: TransferState, call: dict[str, Any]) -> bool:
    call["block_ids"][-1].append(0)
    return True


def _groups(_: TransferState, call: dict[str, Any]) -> bool:
    call["block_ids"].append([])
    return True


def _object(machine: TransferState, call: dict[str, Any]) -> bool:
    layout = machine.subject.layout
    geometries = [group.geometry for group in layout.groups]
    other = ChunkLayout.of(geometries, tokens=2 * layout.tokens)
    call["objects"][-1] = HostObject.allocate(other)
    return True


def _twice(machine: TransferState, call: dict[str, Any]) -> bool:
    """Name one block for the last places of two chunks."""
    ids, count = call["block_ids"][-1], len(call["objects"])
    if count < 2 or not ids or not machine.subject.layout.groups[-1].blocks:
        return False
    ids[-1] = ids[len(ids) // count - 1] = 1
    return True


def _skip(_: TransferState, call: dict[str, Any]) -> bool:
    call["skip_first_tokens"] = -1
    return True


def _ranges(machine: TransferState, call: dict[str, Any]) -> bool:
    count = len(call["objects"])
    call["valid"] = [[range(0)] * (count + 1) for _ in machine.subject.groups.groups]
    return True


_SPOILT: dict[str, Callable[[TransferState, dict[str, Any]], bool]] = {
    "id": _id,
    "negative": _negative,
    "count": _count,
    "groups": _groups,
    "object": _object,
    "twice": _twice,
    "skip": _skip,
    "ranges": _ranges,
}
