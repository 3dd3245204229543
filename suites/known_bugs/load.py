"""The files of known bugs: one per engine, strict.

A bug is caught by properties, or it awaits a missing feature of kvproof, with the reason.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import msgspec
import tomllib

FOLDER = Path(__file__).parent
ENGINES = ("vllm", "sglang", "lmdeploy", "lmcache")

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

_REFERENCE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)?(?P<kind>[#@])(?P<name>\w+)")


class Link(msgspec.Struct, frozen=True):
    """An issue, pull request, commit or advisory."""

    text: str
    url: str


class Bug(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One bug. Raises ValueError unless it either is caught or awaits something."""

    id: str
    upstream: tuple[str, ...]
    """`#1` of the file's repository, `owner/name#1`, `owner/name@commit`, or a URL."""
    symptom: str
    mechanism: str
    rules: tuple[str, ...]
    properties: tuple[str, ...] = ()
    """Each fails on this bug in an engine that shows all that the contract shows."""
    limit: str = ""
    """The symptoms that all this does not see."""
    awaits: Awaited | None = None
    reason: str = ""
    """Why nothing could see it yet."""

    def __post_init__(self) -> None:
        if bool(self.properties) == bool(self.awaits):
            raise ValueError(f"{self.id}: give either what catches the bug or what it awaits")
        if bool(self.awaits) != bool(self.reason) or (self.limit and self.awaits):
            raise ValueError(f"{self.id}: a reason belongs to `awaits`, a limit to what is caught")
        if not (self.upstream and self.rules and self.symptom):
            raise ValueError(f"{self.id}: a bug needs its source, its rules and its symptom")


class Engine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bugs of one engine, and of ports of it."""

    engine: str
    repository: str
    bug: tuple[Bug, ...]

    def links(self, bug: Bug) -> list[Link]:
        """Return the links where a bug was reported or repaired. Raises ValueError."""
        return [_link(reference, self.repository) for reference in bug.upstream]


def _link(reference: str, repository: str) -> Link:
    if reference.startswith("https://"):
        return Link(reference.rsplit("/", 1)[1], reference)
    found = _REFERENCE.fullmatch(reference)
    if found is None:
        raise ValueError(f"{reference!r} is no reference, for example 'owner/name#1'")
    home = found["repository"] or repository
    where = "issues" if found["kind"] == "#" else "commit"  # issues lead on to pull requests
    url = f"https://github.com/{home}/{where}/{found['name']}"
    return Link(f"{home.rsplit('/', 1)[1]}{found['kind']}{found['name']}", url)


def judged() -> dict[str, frozenset[str]]:
    """Return engine -> the properties that judge its newest release."""
    lists = tomllib.loads((FOLDER / "judged.toml").read_text(encoding="utf-8"))
    return {engine: frozenset(names) for engine, names in lists.items()}


def load(*, folder: Path = FOLDER) -> list[Engine]:
    """Read all files. Raises msgspec.ValidationError, naming the entry."""
    return [
        msgspec.convert(tomllib.loads((folder / f"{name}.toml").read_text()), Engine)
        for name in ENGINES
    ]
