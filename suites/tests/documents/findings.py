"""The index of findings, from records and the findings' own pages."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kvproof.suites.framework.bugs import Bug
from kvproof.suites.framework.rooms import Room, rooms


def table() -> str:
    """Return the findings of all engines, as Markdown."""
    lines = [
        "| finding | engine | judged as | upstream issue |",
        "| --- | --- | --- | --- |",
        *(_row(room, bug) for room, bug in found()),
    ]
    return "\n".join(lines) + "\n"


def found() -> Iterator[tuple[Room, Bug]]:
    """Yield the bugs that have a finding."""
    return ((room, bug) for room in rooms() for bug in room.bugs if bug.finding)


def text(room: Room, bug: Bug) -> str:
    """Return the page of a finding."""
    return (room.finding(bug) / "README.md").read_text(encoding="utf-8")


def _row(room: Room, bug: Bug) -> str:
    page = text(room, bug)
    place = f"findings/{room.package}/{bug.finding}.md"
    links = ", ".join(f"[{each.text}]({each.url})" for each in room.links(bug))
    cells = (
        f"[{page.partition('# ')[2].splitlines()[0]}]({place})",
        f"{room.records.engine} {bug.versions}",
        cell(page, "judged as"),
        links or "none known",
    )
    return f"| {' | '.join(cells)} |"


def cell(page: str, name: str) -> str:
    """Return the text of a row in the table of a finding's page."""
    row = re.search(rf"^\| {name} \| (.*) \|$", page, re.MULTILINE)
    assert row, f"a page has no row {name!r}"
    return row[1]
