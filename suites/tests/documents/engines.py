"""The known failures of an engine's newest releases and its settings, for its page."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.harness.isolation.environments import EngineVersion
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.rooms import Room
from kvproof.suites.runner.levels import property_names
from kvproof.suites.tests.documents.newest import NEWEST, of_package
from kvproof.suites.tests.engine_settings import table as engine_settings

_HEAD = """
## Known failures of {spec}

| property | bug |
| --- | --- |
"""
_SETTINGS = """
## Settings

Read from the code of {spec}: a test fails for a setting that is neither drawn nor left out with a
reason. `{file}` has both.

| class | settings | drawn | left out |
| --- | --- | --- | --- |
"""


def table(room: Room) -> str:
    """Return the known failures of each target's newest release, and the settings."""
    failures = "".join(_of(room, spec) for spec in of_package(room.package))
    return f"{failures}{_settings(room)}".strip() + "\n"


def _settings(room: Room) -> str:
    settings = engine_settings.of_package(room.package)
    file = f"suites/engines/{room.package}/{engine_settings.FILE}"
    head = _SETTINGS.format(spec=NEWEST[settings.target], file=file)
    return head + "".join(
        f"| {each.name} | {len(each.listed())} | {len(each.drawn)} | "
        f"{len(each.listed()) - len(each.drawn)} |\n"
        for each in settings.classes
    )


def _of(room: Room, spec: EngineVersion) -> str:
    return _HEAD.format(spec=spec) + "".join(_rows(room, spec))


def _rows(room: Room, spec: EngineVersion) -> Iterator[str]:
    entries = expected_failures.load(spec.engine, spec.version, names=property_names())
    for each in sorted(entries, key=lambda entry: (entry.property, entry.mechanism)):
        bug = next(bug for bug in room.bugs if bug.predicate == each.mechanism)
        text = f"[{bug.symptom}](findings/{room.package}/{bug.finding}.md)"
        yield f"| `{each.property}` | {text if bug.finding else bug.symptom} |\n"
