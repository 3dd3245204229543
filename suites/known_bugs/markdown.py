"""The known bugs as Markdown, for the docs and `kvproof run --list-properties`."""

from __future__ import annotations

from collections import Counter

from kvproof.suites.conformance.suite import NAME as CACHE
from kvproof.suites.known_bugs.load import AWAITED, Bug, Engine, judged, load
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


_PART_OF = {
    prop.name: suite
    for suite, properties in catalogue("full").items()
    for prop in properties
    if suite != CACHE
}

_JUDGED = judged()


def table() -> str:
    """Return counts per engine, then one row per bug; ends with a newline."""
    engines = load()
    head = _SUMMARY.format(
        awaited=" | ".join(f"awaits {what}" for what in AWAITED),
        dashes=" | ".join("---" for _ in AWAITED),
    )
    return head + "".join(map(_counts, engines)) + "".join(map(_engine, engines))


def _counts(engine: Engine) -> str:
    found = Counter(_where(bug, engine.engine) for bug in engine.bug)
    kinds = ("itself", "any", "reference", "part", *AWAITED)
    cells = (engine.engine, len(engine.bug), *(found[kind] for kind in kinds))
    return f"| {' | '.join(map(str, cells))} |\n"


def _where(bug: Bug, engine: str) -> str:
    if bug.awaits:
        return bug.awaits
    if bug.limit:
        return "part"
    if not _JUDGED[engine].isdisjoint(bug.properties):
        return "itself"
    on_any = any(name not in _PART_OF for name in bug.properties)
    return "any" if on_any else "reference"


def _engine(engine: Engine) -> str:
    rows = (_row(engine, bug) for bug in engine.bug)
    return _HEAD.format(engine=engine.engine) + "".join(rows)


def _row(engine: Engine, bug: Bug) -> str:
    links = " ".join(f"[{link.text}]({link.url})" for link in engine.links(bug))
    cells = (bug.id, links, bug.symptom, " ".join(bug.rules), _caught(bug, engine.engine))
    return f"| {' | '.join(cells)} |\n"


def _caught(bug: Bug, engine: str) -> str:
    if bug.awaits:
        return f"awaits {AWAITED[bug.awaits]}: {bug.reason}"
    names = ", ".join(map(_named, bug.properties))
    if _JUDGED[engine].isdisjoint(bug.properties):
        names += f" (not on {engine}'s own target)"
    return f"{names}; {bug.limit}" if bug.limit else names


def _named(name: str) -> str:
    return f"`{name}`" + (f" ({_PART_OF[name]})" if name in _PART_OF else "")
