"""Known failures of one engine version: strict, with a reason and an upstream link."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

import msgspec
import tomllib

from kvproof.harness.errors import UsageError
from kvproof.suites.levels import property_names

FOLDER = Path(__file__).parent / "expected"


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry: this property fails on this version, and why."""

    property: str
    reason: str
    upstream: str
    """Link to the issue or pull request."""


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expected: list[Expected] = []


def load(engine: str, version: str, *, folder: Path = FOLDER) -> dict[str, Expected]:
    """Return property -> entry for `<folder>/<engine>-<version>.toml`; no file, no entries.

    An entry that names no property is an error (UsageError): it could never be missed.
    """
    path = folder / f"{engine}-{version}.toml"
    if not path.exists():
        return {}
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text()), _File).expected
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{str(path)!r} is not a list of expected failures: {error}") from error
    names = property_names()
    for entry in entries:
        if entry.property not in names:
            close = get_close_matches(entry.property, names, 1)
            raise UsageError(
                f"{str(path)!r} names the property {entry.property!r}, which does not exist",
                f"did you mean {close[0]!r}?" if close else "see kvproof run --list-properties",
            )
    return {entry.property: entry for entry in entries}
