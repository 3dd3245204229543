"""Bugs of earlier releases as Markdown: what had them, what finds them, what mended them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from kvproof.harness.reproduce import oplog
from kvproof.suites.framework.bugs import Bug
from kvproof.suites.framework.rooms import Room, rooms
from kvproof.suites.framework.versions import within
from kvproof.suites.tests.documents.newest import NEWEST, of_package

_HEAD = """
### {engine}

| bug | upstream | releases that have it | properties that find it | mended | history |
| --- | --- | --- | --- | --- | --- |
"""


def table() -> str:
    """Return one row per bug that an earlier release shows and the newest does not, by engine."""
    lines = []
    for room in rooms():
        rows = [_row(room, bug) for bug in historical(room)]
        if rows:
            lines.append(_HEAD.format(engine=room.records.engine) + "".join(rows))
    return "".join(lines).lstrip("\n")


def historical(room: Room) -> Iterator[Bug]:
    """Yield the bugs of a room that the newest releases of its targets do not have."""
    newest = [NEWEST[each.engine].version for each in of_package(room.package)]
    for bug in room.bugs:
        ranges = [bug.range_of(each) for each in bug.shows]
        gone = ranges and not any(within(each, text) for text in ranges for each in newest)
        if gone or bug.played:
            yield bug


def _row(room: Room, bug: Bug) -> str:
    links = " ".join(f"[{each.text}]({each.url})" for each in room.links(bug))
    names, history = _properties(room, bug), _played(room, bug)
    cells = (bug.symptom, links, _releases(bug), names, bug.fixed, history)
    return f"| {' | '.join(cells)} |\n"


def _releases(bug: Bug) -> str:
    """Return the range by each target that shows it."""
    loop = bug.played.versions if bug.played else ""
    return ", ".join(filter(None, (bug.versions, f"the loop {loop}" * bool(loop))))


def _properties(room: Room, bug: Bug) -> str:
    names = [each.property for each in bug.shows]
    if bug.played:
        names.append(oplog.load(_log(room, bug)).property)
    return ", ".join(f"`{name}`" for name in dict.fromkeys(names))


def _played(room: Room, bug: Bug) -> str:
    """Return what a played history shows: its length, where it fails, where it holds."""
    if not bug.played:
        return ""
    count = len(oplog.load(_log(room, bug)).operations)
    played = bug.played
    shown = f"fails in {played.has}, holds in {played.without}"
    return f"`{played.history}`, {count} operations, {played.found}: {shown}"


def _log(room: Room, bug: Bug) -> Path:
    assert bug.played
    return room.folder / "histories" / f"{bug.played.history}.json"
