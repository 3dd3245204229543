"""The rooms of engines, found by their folders in `suites/engines`.

A room holds the records of its engine's bugs in `bugs.toml`, or in `bugs/*.toml` besides, and their
predicates in `mechanisms`, a module or a package of modules. Targets of one package share a room. A
target of a package without a room has no known bugs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

import msgspec
import tomllib

from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.environments import package_of
from kvproof.suites.framework.bugs import Bug, Layer, Link, Records
from kvproof.suites.framework.failed import Adopt, Predicate

FOLDER = Path(__file__).parents[1] / "engines"
ALL = "bugs.toml"
T = TypeVar("T")


class Room(NamedTuple):
    """All that is known of one engine."""

    folder: Path
    records: Records

    @property
    def package(self) -> str:
        """Package of the engine, the name of the folder."""
        return self.folder.name

    @property
    def bugs(self) -> tuple[Bug, ...]:
        """Records, in the order of the file."""
        return self.records.bug

    def links(self, bug: Bug) -> list[Link]:
        """Return the links where a bug was reported or repaired."""
        return self.records.links(bug)

    def finding(self, bug: Bug) -> Path:
        """Return the folder of a bug's finding."""
        return self.folder / "findings" / bug.finding

    def history(self, bug: Bug) -> Path | None:
        """Return the op log that shows a bug; None: none is kept."""
        if bug.finding:
            return self.finding(bug) / "history.json"
        return self.folder / "histories" / f"{bug.played.history}.json" if bug.played else None

    def predicates(self) -> dict[str, Predicate]:
        """Return name -> predicate: every public function in `mechanisms`."""
        return {
            name: each
            for module in _modules(self.package)
            for name, each in vars(module).items()
            if callable(each)
            and getattr(each, "__module__", "") == module.__name__
            and not name.startswith("_")
        }

    def adoptions(self) -> dict[str, Adopt]:
        """Return name -> how the oracle takes over the target's state after that failure."""
        found: dict[str, Adopt] = {}
        for module in _modules(self.package):
            found.update(getattr(module, "ADOPT", {}))
        return found


def rooms(folder: Path = FOLDER) -> list[Room]:
    """Return all rooms. Raises UsageError for a file of records that cannot be read."""
    return [_read(path.parent) for path in sorted(folder.glob(f"*/{ALL}"))]


def room(target: str, *, folder: Path = FOLDER) -> Room | None:
    """Return the room of a target; None: its engine has none. Raises UsageError as `rooms`."""
    found = folder / package_of(target)
    return _read(found) if (found / ALL).exists() else None


def layer(target: str) -> Layer:
    """Return the layer of its engine that a target drives."""
    return "manager" if package_of(target) == target else "loop"


@cache
def _read(folder: Path) -> Room:
    first = _converted(folder / ALL, Records)
    topics = [_converted(path, _Topic) for path in sorted(folder.glob("bugs/*.toml"))]
    more = [bug for topic in topics for bug in topic.bug]
    return Room(folder, msgspec.structs.replace(first, bug=(*first.bug, *more)))


class _Topic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bug: tuple[Bug, ...]


def _converted(path: Path, kind: type[T]) -> T:
    try:
        found: Mapping[str, object] = tomllib.loads(path.read_text(encoding="utf-8"))
        return msgspec.convert(found, kind)
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"{str(path)!r} is no list of bugs: {error}") from error


@cache
def _modules(package: str) -> tuple[ModuleType, ...]:
    name = f"kvproof.suites.engines.{package}"
    if not (find_spec(name) and find_spec(f"{name}.mechanisms")):
        return ()  # no release of the engine shows a bug
    return tuple(_with_parts(importlib.import_module(f"{name}.mechanisms")))


def _with_parts(module: ModuleType) -> Iterator[ModuleType]:
    yield module
    for part in pkgutil.iter_modules(getattr(module, "__path__", ())):
        yield importlib.import_module(f"{module.__name__}.{part.name}")
