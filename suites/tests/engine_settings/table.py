"""The table of an engine's settings in its room, `settings.toml`: drawn, or left out and why."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from kvproof.suites.framework.rooms import FOLDER
from kvproof.suites.tests.engine_settings.source import READERS

FILE = "settings.toml"


class Class(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One class of settings, one mapping that an engine reads, or one registry."""

    name: str
    read: str
    """Way of reading, one of `source.READERS`."""
    files: str
    """Patterns of its files, below the installed packages."""
    of: str = ""
    """Class, mapping or function in them; empty: its name."""
    drawn: dict[str, str] = {}
    """Setting -> factor of the suite `engine`, or field of a configuration."""
    left_out: dict[str, tuple[str, ...]] = {}
    """Reason -> settings."""

    def listed(self) -> list[str]:
        """Return every setting of the table."""
        return [*self.drawn, *(name for names in self.left_out.values() for name in names)]

    def found(self, root: Path) -> set[str]:
        """Return every setting of the installed code."""
        read = READERS[self.read]
        each = (read(root, pattern, self.of or self.name) for pattern in self.files.split())
        return set().union(*each)


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    target: str
    """Target whose newest release is compared."""
    classes: tuple[Class, ...] = msgspec.field(name="class")


@cache
def of_package(package: str) -> Table:
    """Return the table of an engine. Raises OSError or ValidationError for a bad one."""
    return msgspec.toml.decode((FOLDER / package / FILE).read_bytes(), type=Table)


def differences(each: Class, root: Path) -> list[str]:
    """Return what code and table disagree on, in words."""
    listed, found = each.listed(), each.found(root)
    twice = sorted({name for name in listed if listed.count(name) > 1})
    return [
        *(f"{name}: neither drawn nor left out" for name in sorted(found - set(listed))),
        *(f"{name}: the engine has it no more" for name in sorted(set(listed) - found)),
        *(f"{name}: listed twice" for name in twice),
    ]
