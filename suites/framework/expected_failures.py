"""Known failures of one engine version: strict, with a reason and an upstream link.

An entry for one situation excuses only histories in which that situation has occurred, so the
property keeps its power everywhere else. Not every run draws such a situation; a run without it
ignores the entry. The history stored with the finding must go on failing: the project's tests
replay it where the engine is installed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path

import msgspec
import tomllib

from kvproof.harness.errors import UsageError
from kvproof.harness.records.renamed import current
from kvproof.suites.framework.property import LEVELS, Level

FOLDER = Path(__file__).parents[1] / "expected"


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry: this property fails on this version, and why."""

    property: str
    reason: str
    upstream: str
    where: str = ""
    """The situation that it needs; empty: every run of its level sees it."""
    level: Level = "core"
    """The least level at which every run sees it."""
    rare: bool = False
    """Not every run of any level sees it, and no situation marks it."""

    def is_seen(self, level: Level) -> bool:
        """Whether every run of a level sees it: a run without it then fails."""
        return not (self.where or self.rare) and LEVELS.index(level) >= LEVELS.index(self.level)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expected: list[Expected] = []


def load(
    engine: str, version: str, *, names: Collection[str], folder: Path = FOLDER
) -> dict[str, Expected]:
    """Return property -> entry for `<folder>/<engine>-<version>.toml`; no file, no entries.

    `names` are those of all properties. Raises UsageError for an unreadable file, an unknown
    property, or a second entry for a property.
    """
    path = folder / f"{engine}-{version}.toml"
    if not path.exists():
        return {}
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).expected
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{str(path)!r} is not a list of expected failures: {error}") from error
    found: dict[str, Expected] = {}
    for each in entries:
        entry = msgspec.structs.replace(each, property=current(each.property))
        if entry.property not in names:
            close = get_close_matches(entry.property, names, 1)
            raise UsageError(
                f"{str(path)!r} names the property {entry.property!r}, which does not exist",
                f"did you mean {close[0]!r}?" if close else "see kvproof run --list-properties",
            )
        if entry.property in found:
            raise UsageError(
                f"{str(path)!r} has two entries for the property {entry.property!r}",
                "keep one: a property is excused in one situation, or wherever it fails",
            )
        found[entry.property] = entry
    return found


def everywhere(entries: Mapping[str, Expected]) -> set[str]:
    """Return the properties that may fail in any history."""
    return {name for name, entry in entries.items() if not entry.where}


def confined(entries: Mapping[str, Expected]) -> dict[str, str]:
    """Return property -> situation of the entries for one situation."""
    return {name: entry.where for name, entry in entries.items() if entry.where}
