"""The known failures of an engine's newest releases, for its page."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.harness.isolation.environments import EngineVersion
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.rooms import Room
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.documents.newest import of_package

_HEAD = """
## Known failures of {spec}

| property | bug |
| --- | --- |
"""


def table(room: Room) -> str:
    """Return the known failures of the newest release of each target, as Markdown."""
    return "".join(_of(room, spec) for spec in of_package(room.package)).strip() + "\n"


def _of(room: Room, spec: EngineVersion) -> str:
    return _HEAD.format(spec=spec) + "".join(_rows(room, spec))


def _rows(room: Room, spec: EngineVersion) -> Iterator[str]:
    entries = expected_failures.load(spec.engine, spec.version, names=property_names())
    for each in sorted(entries, key=lambda entry: (entry.property, entry.mechanism)):
        bug = next(bug for bug in room.bugs if bug.predicate == each.mechanism)
        text = f"[{bug.symptom}](findings/{room.package}/{bug.finding}.md)"
        yield f"| `{each.property}` | {text if bug.finding else bug.symptom} |\n"
