"""The known bugs as Markdown, for the docs and `kvproof run --list-properties`."""

from __future__ import annotations

from collections import Counter

from kvproof.suites.conformance.suite import NAME as CACHE
from kvproof.suites.framework.bugs import AWAITED, Bug
from kvproof.suites.framework.rooms import Room, rooms
from kvproof.suites.runner.levels import catalogue

_SUMMARY = """\
| engine | bugs | on the engine itself | on other targets | in the reference | in part | {awaited} |
| --- | --- | --- | --- | --- | --- | {dashes} |
"""
_HEAD = """
## {engine}

| bug | upstream | what went wrong | rules | caught by |
| --- | --- | --- | --- | --- |
"""

_SUITES = catalogue("full")
_PART_OF = {
    prop.name: suite
    for suite, properties in _SUITES.items()
    for prop in properties
    if prop.name not in {each.name for each in _SUITES[CACHE]}
}


def known_bugs_table() -> str:
    """Return counts per engine, then one row per reported bug; ends with a newline."""
    found = [room for room in rooms() if any(bug.reported for bug in room.bugs)]
    head = _SUMMARY.format(
        awaited=" | ".join(f"awaits {what}" for what in AWAITED),
        dashes=" | ".join("---" for _ in AWAITED),
    )
    return head + "".join(map(_counts, found)) + "".join(map(_engine, found))


def _counts(room: Room) -> str:
    found = Counter(_where(bug) for bug in room.bugs if bug.reported)
    kinds = ("itself", "any", "reference", "part", *AWAITED)
    cells = (room.records.engine, found.total(), *(found[kind] for kind in kinds))
    return f"| {' | '.join(map(str, cells))} |\n"


def _where(bug: Bug) -> str:
    if bug.awaits:
        return bug.awaits
    if bug.limit:
        return "part"
    if bug.judged:
        return "itself"
    on_any = any(name not in _PART_OF for name in bug.elsewhere)
    return "any" if on_any else "reference"


def _engine(room: Room) -> str:
    rows = (_row(room, bug) for bug in room.bugs if bug.reported)
    return _HEAD.format(engine=room.records.engine) + "".join(rows)


def _row(room: Room, bug: Bug) -> str:
    links = " ".join(f"[{link.text}]({link.url})" for link in room.links(bug))
    caught = _caught(bug)
    if not (bug.awaits or bug.judged):
        caught += f" (not on {room.records.engine}'s own target)"
    cells = (bug.name, links, bug.symptom, " ".join(bug.rules), caught + _limit(bug))
    return f"| {' | '.join(cells)} |\n"


def _caught(bug: Bug) -> str:
    if bug.awaits:
        return f"awaits {AWAITED[bug.awaits]}: {bug.reason}"
    return ", ".join(map(_named, bug.caught_by))


def _limit(bug: Bug) -> str:
    return f"; {bug.limit}" if bug.limit else ""


def _named(name: str) -> str:
    return f"`{name}`" + (f" ({_PART_OF[name]})" if name in _PART_OF else "")
