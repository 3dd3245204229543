"""Known failures of one release of a target, from the records of its engine's room.

An entry excuses the failures that its predicate recognises, and nothing else of its property. Its
own history is replayed before it is judged, so that a random search that does not meet it proves
nothing. In a release that kvproof knows, a history that does not show it any more is a failure; in
any other release, or in a build of your own, the bug counts as mended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path

import msgspec

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import EngineVersion
from kvproof.suites.framework import rooms
from kvproof.suites.framework.bugs import Bug, Shown, link
from kvproof.suites.framework.failed import Failed, Predicate
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.rooms import Room
from kvproof.suites.framework.versions import within

FACTOR, SLACK = 3, 10
"""A rate is far if so many times more, or fewer, histories show it, and so many beyond that."""


class Expected(msgspec.Struct, frozen=True):
    """One entry: in this way a property fails on this release, and why."""

    property: str
    mechanism: str
    """Name of its predicate in the engine's room."""
    reason: str
    upstream: str
    history: Path | None = None
    """Op log that shows it; None: none is kept."""
    goes_on: bool = True
    """A history goes on after it; False: the target cannot be followed any further."""
    needs: str = ""
    """Capability of the target without which nothing shows it; empty: none."""
    rate: float | None = None
    """Histories that show it, of 1,000 operations of its suite at level full; None: too rare."""
    strict: bool = True
    """A history that does not show it any more is a failure; False: the bug is mended then."""
    recognises: Predicate | None = None
    """Its predicate, where it is none of the room's."""
    verbs: tuple[str, ...] = ()
    """Operations of its minimal history; with any, a failure is known by an equal minimal one."""
    of_engine: bool = False
    """Whether it is of the engine itself, whatever connector runs."""

    def far(self, histories: int, operations: int) -> str:
        """Return how far the rate of a run is from the stored one, in words; empty: near."""
        if self.rate is None:
            return ""
        usual = self.rate * operations / 1000
        if usual / FACTOR - SLACK <= histories <= usual * FACTOR + SLACK:
            return ""
        return f"in {histories} histories, {usual:.0f} are usual: look whether it is the same bug"


def load(
    target: str,
    version: str,
    *,
    names: Collection[str],
    folder: Path = rooms.FOLDER,
    unsupported: Collection[str] = (),
    build: str = "",
) -> list[Expected]:
    """Return the entries of a release; an engine without a room has none.

    `names` are those of all properties; entries of `unsupported` properties are left out. `build`
    is the version with the name of an own build, as in 0.33.0+mine; empty: that of the release.
    Raises UsageError for an unreadable file, an unknown property or mechanism, or a second entry
    for both.
    """
    room = rooms.room(target, folder=folder)
    if room is None:
        return []
    strict = EngineVersion(target, build or version).locked
    found: dict[tuple[str, str], Expected] = {}
    for bug, shown in _shown(room, target, version):
        _check(room, bug, shown.property, names, "property", "see kvproof run --list-properties")
        _check(room, bug, bug.predicate, room.predicates(), "mechanism", "add it to `mechanisms`")
        key = shown.property, bug.predicate
        if key in found:
            raise UsageError(
                f"{_place(room, bug)} fails {key[0]!r} by {key[1]!r} twice in {version}",
                "keep one of them, or part their releases",
            )
        found[key] = _entry(room, bug, shown, version, strict=strict)
    return [each for each in found.values() if each.needs not in unsupported]


def _shown(room: Room, target: str, version: str) -> Iterator[tuple[Bug, Shown]]:
    wanted = rooms.layer(target)
    for bug in (each for each in room.bugs if each.layer == wanted):
        for shown in bug.shows:
            if within(version, bug.range_of(shown)):
                yield bug, shown


def _entry(room: Room, bug: Bug, shown: Shown, version: str, *, strict: bool) -> Expected:
    place = f" (suites/engines/{room.package}/findings/{bug.finding})" if bug.finding else ""
    return Expected(
        shown.property,
        bug.predicate,
        f"{shown.reason or bug.symptom}{place}",
        _upstream(room, bug, shown, version),
        room.history(bug) if bug.finding and shown.replayed else None,
        bug.goes_on if shown.goes_on is None else shown.goes_on,
        bug.needs,
        shown.rates.get(version),
        strict,
        of_engine=room.records.of_engine(bug),
    )


def _upstream(room: Room, bug: Bug, shown: Shown, version: str) -> str:
    if shown.upstream:
        return link(shown.upstream, room.records.repository).url
    return next((each.url for each in room.links(bug)), room.records.source(bug, version))


def _check(room: Room, bug: Bug, name: str, names: Collection[str], kind: str, hint: str) -> None:
    if name not in names:
        close = get_close_matches(name, names, 1)
        raise UsageError(
            f"{_place(room, bug)} names the {kind} {name!r}, which does not exist",
            f"did you mean {close[0]!r}?" if close else hint,
        )


def _place(room: Room, bug: Bug) -> str:
    return f"{str(room.folder)!r}: {bug.name}"


def known(target: str, entries: Iterable[Expected]) -> tuple[Known, ...]:
    """Return entries as histories recognise them."""
    room = rooms.room(target)
    predicates, adopt = (room.predicates(), room.adoptions()) if room else ({}, {})
    return tuple(
        Known(
            each.mechanism,
            each.property,
            each.recognises or predicates[each.mechanism],
            each.goes_on,
            adopt.get(each.mechanism, _nothing),
        )
        for each in entries
        if not each.verbs
    )


def _nothing(_: Failed) -> None:
    """The checks follow the target by themselves."""


def by_property(entries: Iterable[Expected]) -> dict[str, list[Expected]]:
    """Return property -> its entries."""
    found: dict[str, list[Expected]] = defaultdict(list)
    for each in entries:
        found[each.property].append(each)
    return dict(found)
