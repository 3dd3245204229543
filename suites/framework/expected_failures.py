"""Known failures of one engine version: each a mechanism, with a finding or an upstream link.

An entry excuses the failures that its predicate (`suites/mechanisms`) recognises, and nothing else
of its property. Its own history is replayed before it is judged, so that a random search that does
not meet it proves nothing; a history that does not show it any more is a failure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path

import msgspec
import tomllib

from kvproof.harness.errors import UsageError
from kvproof.harness.records.renamed import current
from kvproof.suites.framework.known import Known
from kvproof.suites.mechanisms.failed import Failed, Predicate
from kvproof.suites.mechanisms.registry import adoptions, modules

FOLDER = Path(__file__).parents[1] / "expected"
SUITES = Path(__file__).parents[1]
FACTOR, SLACK = 3, 10
"""A rate is far if so many times more, or fewer, histories show it, and so many beyond that."""


class Expected(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry: in this way a property fails on this version, and why."""

    property: str
    mechanism: str
    """Name of its predicate in the engine's module of `suites/mechanisms`."""
    reason: str
    upstream: str
    finding: str = ""
    """Folder below `suites/findings`."""
    history: str = ""
    """Op log that shows it, below `suites`; empty: `history.json` of the finding."""
    goes_on: bool = True
    """A history goes on after it; False: the target cannot be followed any further."""
    needs: str = ""
    """Capability of the target without which nothing shows it; empty: none."""
    rate: float | None = None
    """Histories that show it, of 1,000 operations of its suite at level full; None: too rare."""

    def log(self) -> Path | None:
        """The history that shows it; None: none is kept."""
        name = self.history or (self.finding and f"findings/{self.finding}/history.json")
        return SUITES / name if name else None

    def far(self, histories: int, operations: int) -> str:
        """Return how far the rate of a run is from the stored one, in words; empty: near."""
        if self.rate is None:
            return ""
        usual = self.rate * operations / 1000
        if usual / FACTOR - SLACK <= histories <= usual * FACTOR + SLACK:
            return ""
        return f"in {histories} histories, {usual:.0f} are usual: look whether it is the same bug"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    expected: list[Expected] = []


def load(
    engine: str,
    version: str,
    *,
    names: Collection[str],
    folder: Path = FOLDER,
    unsupported: Collection[str] = (),
) -> list[Expected]:
    """Return the entries of `<folder>/<engine>-<version>.toml`; no file, no entries.

    `names` are those of all properties; entries of `unsupported` properties are left out.
    Raises UsageError for an unreadable file, an unknown property or mechanism, or a second entry
    for both.
    """
    path = folder / f"{engine}-{version}.toml"
    if not path.exists():
        return []
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).expected
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{str(path)!r} is not a list of expected failures: {error}") from error
    found: dict[tuple[str, str], Expected] = {}
    for each in entries:
        entry = msgspec.structs.replace(each, property=current(each.property))
        _check(path, entry.property, names, "property", "see kvproof run --list-properties")
        _check(path, entry.mechanism, _named(engine), "mechanism", f"add it for {engine}")
        key = entry.property, entry.mechanism
        if key in found:
            raise UsageError(
                f"{str(path)!r} has two entries for {entry.property!r} by {entry.mechanism!r}",
                "keep one of them",
            )
        found[key] = entry
    return [each for each in found.values() if each.needs not in unsupported]


def _check(path: Path, name: str, names: Collection[str], kind: str, hint: str) -> None:
    if name not in names:
        close = get_close_matches(name, names, 1)
        raise UsageError(
            f"{str(path)!r} names the {kind} {name!r}, which does not exist",
            f"did you mean {close[0]!r}?" if close else hint,
        )


def _named(engine: str) -> dict[str, Predicate]:
    return {name: each for module in modules(engine) for name, each in module.items()}


def known(engine: str, entries: Iterable[Expected]) -> tuple[Known, ...]:
    """Return entries as histories recognise them."""
    predicates, adopt = _named(engine), adoptions(engine)
    return tuple(
        Known(
            each.mechanism,
            each.property,
            predicates[each.mechanism],
            each.goes_on,
            adopt.get(each.mechanism, _nothing),
        )
        for each in entries
    )


def _nothing(_: Failed) -> None:
    """The checks follow the target by themselves."""


def by_property(entries: Iterable[Expected]) -> dict[str, list[Expected]]:
    """Return property -> its entries."""
    found: dict[str, list[Expected]] = defaultdict(list)
    for each in entries:
        found[each.property].append(each)
    return dict(found)
