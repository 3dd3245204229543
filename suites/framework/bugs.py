"""Records of engines' bugs: one bug, one record, in the `bugs.toml` of the engine's room.

A record has the report of the bug, the properties that catch it, its releases, the failures by
which it shows there, and the planted bugs that it must not excuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from kvproof.suites.framework import versions

Awaited = Literal["kernels", "tiers", "models", "server", "policies", "measurements"]

AWAITED: dict[Awaited, str] = {
    "kernels": "kernels and the buffers of a worker",
    "tiers": "other tiers, transfers, connectors",
    "models": "models that compute on the pages",
    "server": "a serving process",
    "policies": "a policy that the reference does not offer",
    "measurements": "a measurement over hours",
}
"""Missing features that properties would need -> in words."""

Layer = Literal["manager", "loop"]

_REFERENCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)?(?P<kind>[#@])(?P<name>\w+)")


class Link(msgspec.Struct, frozen=True):
    """An issue, pull request, commit, advisory or file."""

    text: str
    url: str


class Shown(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A property that fails by the bug: an expected failure of the releases."""

    property: str
    versions: str = ""
    """Range of releases; empty: that of the bug."""
    reason: str = ""
    """Sentence for verdicts; empty: the symptom of the bug."""
    upstream: str = ""
    """Reference for this property alone; empty: that of the bug."""
    goes_on: bool | None = None
    """Whether a history goes on after it; None: as the bug has it."""
    replayed: bool = True
    """Whether the finding's history shows it; False: something else fails there before."""
    rates: dict[str, float] = {}
    """Release -> histories that show it, of 1,000 operations of its suite at level full."""


class Mask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A planted bug with one of the bug's properties, which the known failure must not excuse."""

    bug: str
    """Name of the planted bug."""
    levels: dict[str, str | list[str]] = {}
    """Factor of the configurations that are searched -> its level, or those to draw from."""
    engine: dict[str, Any] = {}
    """Settings of the engine that the known failure needs."""


class Played(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A history that fails in one release and holds in a later one."""

    history: str
    """Name of a file in the room's `histories`, without its suffix."""
    has: str
    """Release in which it fails."""
    without: str
    """Later release in which it holds."""
    versions: str = ""
    """Releases that were seen to have the bug, where they are not those of the record."""
    found: Literal["search", "by hand"] = "search"


class Bug(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One bug. Raises ValueError for a record that is incomplete or contradicts itself."""

    symptom: str
    id: str = ""
    """Identifier; empty: the name of the finding."""
    upstream: tuple[str, ...] = ()
    """`#1` of the room's repository, `owner/name#1`, `owner/name@commit`, or a URL."""
    where: str = ""
    """Path in the room's repository, or URL, of the code that has the bug."""
    line: int = 0
    """First line of the code there that has to change, in the newest release; 0: not noted."""
    rules: tuple[str, ...] = ()
    """Rules that the bug breaks; empty: those of its properties."""
    properties: tuple[str, ...] = ()
    """Properties that catch it and judge the engine itself, besides those of `shows`."""
    elsewhere: tuple[str, ...] = ()
    """Properties that catch it, and judge other targets or the reference alone."""
    limit: str = ""
    """Symptoms that none of these properties catches."""
    awaits: Awaited | None = None
    reason: str = ""
    """Reason why no property could catch it yet."""
    layer: Layer = "manager"
    """Target that shows it: the cache manager, or the engine's own loop."""
    versions: str = ""
    """Range of releases that have it, as far as they were driven."""
    mechanism: str = ""
    """Name of its predicate in the room's `mechanisms`; empty: the name of the finding."""
    needs: str = ""
    """Capability of the target without which nothing shows it; empty: none."""
    goes_on: bool = True
    """Whether histories go on after it; False: the target cannot be followed any further."""
    finding: str = ""
    """Folder in the room's `findings`: page, script and history."""
    shows: tuple[Shown, ...] = ()
    masks: tuple[Mask, ...] = ()
    played: Played | None = None
    fixed: str = ""
    """Release, and change, that mended it."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise ValueError(f"{self.name}: {problem}")
        for each in (self.versions, *(shown.versions for shown in self.shows)):
            if each:
                versions.check(each)

    @property
    def name(self) -> str:
        """Identifier of the bug in its room."""
        return self.id or self.finding

    @property
    def predicate(self) -> str:
        """Name of the function that recognises it; empty: no release shows it."""
        return (self.mechanism or self.finding) if self.shows else ""

    @property
    def reported(self) -> bool:
        """Whether the bug is listed with its rules, and not as a finding alone."""
        return bool(self.rules)

    @property
    def caught_by(self) -> tuple[str, ...]:
        """Properties that catch it, beginning with those that judge the engine itself."""
        shown = (each.property for each in self.shows)
        return tuple(dict.fromkeys((*shown, *self.properties, *self.elsewhere)))

    @property
    def judged(self) -> bool:
        """Whether a property that catches it judges the engine itself."""
        return bool(self.shows or self.properties)

    def range_of(self, shown: Shown) -> str:
        """Return the releases in which a property fails by the bug."""
        return shown.versions or self.versions


def _problems(bug: Bug) -> Iterator[str]:
    """Yield the contradictions of a record."""
    caught, played = bug.caught_by, bug.played is not None
    if not bug.name:
        yield "a record needs an id or a finding"
    if not bug.symptom:
        yield "a bug needs its symptom"
    if not (bug.finding or played or (bug.upstream and bug.rules)):
        yield "a bug needs its source and its rules, a finding, or a history that was played"
    if bug.reported and bool(caught) == bool(bug.awaits):
        yield "give either what catches the bug or what it awaits"
    if bool(bug.awaits) != bool(bug.reason) or (bug.limit and bug.awaits):
        yield "a reason belongs to `awaits`, a limit to what is caught"
    if bug.shows and not (bug.mechanism or bug.finding):
        yield "what fails by it needs the name of a mechanism"
    if any(not bug.range_of(each) for each in bug.shows):
        yield "what fails by it needs `versions`"


class Records(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records of one engine, and of ports of it."""

    engine: str
    """Name as its authors write it."""
    repository: str
    """`owner/name` on GitHub."""
    connectors: tuple[str, ...] = ()
    """Folders of the engine's own connectors."""
    bug: tuple[Bug, ...] = ()

    def links(self, bug: Bug) -> list[Link]:
        """Return the links where a bug was reported or repaired. Raises ValueError."""
        return [link(reference, self.repository) for reference in bug.upstream]

    def of_engine(self, bug: Bug) -> bool:
        """Whether a bug is in the engine itself, whatever connector runs."""
        outside = ("https://", *self.connectors)
        return bool(bug.where) and not bug.where.startswith(outside)

    def source(self, bug: Bug, version: str) -> str:
        """Return the address of the code that has the bug in a release; empty: not noted."""
        if not bug.where or bug.where.startswith("https://"):
            return bug.where
        return f"https://github.com/{self.repository}/blob/v{version}/{bug.where}"


def link(reference: str, repository: str) -> Link:
    """Return the link of a reference in a record of that repository. Raises ValueError."""
    if reference.startswith("https://"):
        return Link(reference.rsplit("/", 1)[1], reference)
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise ValueError(f"{reference!r} is no reference, for example 'owner/name#1'")
    home = found["repository"] or repository
    where = "issues" if found["kind"] == "#" else "commit"  # issues lead on to pull requests
    url = f"https://github.com/{home}/{where}/{found['name']}"
    return Link(f"{home.rsplit('/', 1)[1]}{found['kind']}{found['name']}", url)
