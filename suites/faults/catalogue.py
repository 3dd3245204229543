"""The catalogue of faults: one TOML file for each mechanism, strict."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import tomllib

from kvproof.harness.errors import UsageError

FOLDER = Path(__file__).parent / "planted"
BLIND = Path(__file__).parent / "blind"
"""Faults that were written from `reference/` alone, before the suites were looked at."""
ENGINES = Path(__file__).parent / "engines"
"""Faults of engines' own files, one file for each engine."""

Kind: TypeAlias = Literal["soundness", "hits", "accounting"]
"""`soundness`: a request reads content of another. `hits`: reuse is lost. `accounting`: counts,
owners, order, refusals or costs are wrong."""
KERNELS = "kernels"
"""The `suite` of faults that `kvproof sweep` has to find."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Replace `old` by `new` in `module` below `kvproof`; `old` occurs there exactly once.

    Where the target is an engine, the module is one of its own, and known failures are excused.
    """

    name: str
    mechanism: str = ""
    bugs: tuple[str, ...] = ()
    story: str
    kind: Kind
    module: str
    old: str
    new: str
    target: str = "reference"
    """The faulty target that the suites judge; as after `--target`."""
    suite: str = "cache"
    """The suite that has to find it: `cache`, a component suite, or `kernels`."""
    property: str = ""
    """The property that finds it alone, whatever other symptoms it has; for `kernels`, the
    kernel. Of an engine's fault: a property that the engine is known to break in another way."""
    unshadowed: str = ""
    """Why no shadow memory can see a soundness fault."""
    equivalent: str = ""
    """Why no suite can distinguish it from the reference; it is not run."""
    note: str = ""
    promise: str = ""
    """Of a blind fault: the rules that it breaks. No bug is its model, and no property is named."""

    def __post_init__(self) -> None:
        if not (self.bugs and self.property) and not self.promise and not in_engine(self):
            raise ValueError(f"{self.name}: a fault names its bugs and a property, or a promise")
        if self.old == self.new or not self.old:
            raise ValueError(f"{self.name}: a fault changes something")
        if self.unshadowed and self.kind != "soundness":
            raise ValueError(f"{self.name}: only soundness needs a word about the shadow memory")


def in_engine(fault: Fault) -> bool:
    """Whether it lies in an engine's own files."""
    return "==" in fault.target


def shadowed(fault: Fault) -> bool:
    """Whether a shadow memory has to find a fault."""
    catalogued = not (fault.unshadowed or fault.promise or in_engine(fault))
    return fault.kind == "soundness" and catalogued


@cache
def load() -> Mapping[str, Fault]:
    """Read all files: name -> fault. Raises msgspec.ValidationError, ValueError for a duplicate."""
    return _read(FOLDER)


@cache
def blind() -> Mapping[str, Fault]:
    """Read the faults of the blind campaign, as `load` does."""
    return _read(BLIND)


@cache
def engines() -> Mapping[str, Fault]:
    """Read the faults of engines' own files, as `load` does."""
    return _read(ENGINES)


def _read(folder: Path) -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    for path in sorted(folder.glob("*.toml")):
        shared = tomllib.loads(path.read_text())
        rows = [{**shared, **each} for each in shared.pop("fault")]
        for fault in msgspec.convert(rows, list[Fault]):
            if fault.name in found:
                raise ValueError(f"{path.name}: there is a fault {fault.name!r} already")
            found[fault.name] = fault
    return found


def find(name: str) -> Fault:
    """Return a fault by its name. Raises UsageError."""
    faults = {**load(), **blind(), **engines()}
    if name not in faults:
        close = get_close_matches(name, faults, 1)
        hint = f"did you mean {close[0]!r}?" if close else "kvproof faults --list names them"
        raise UsageError(f"there is no fault {name!r}", hint)
    return faults[name]


def chosen(pattern: str, target: str = "reference") -> list[Fault]:
    """Return faults whose name or mechanism matches one of the globs. Raises UsageError.

    Those of the reference, or of one engine. Blind faults are among them only if a glob names them:
    their mechanisms begin with `blind`.
    """
    globs = pattern.replace(",", " ").split() or ["*"]
    found = [
        fault
        for fault in _of(target, globs)
        if any(fnmatchcase(fault.name, g) or fnmatchcase(fault.mechanism, g) for g in globs)
    ]
    if not found:
        raise UsageError(
            f"no fault matches --only {pattern!r}",
            "name faults or mechanisms, for example --only 'identity,vllm_*'; --list prints all",
        )
    return found


def _of(target: str, globs: list[str]) -> list[Fault]:
    if target == "reference":
        named = any(g.startswith("blind") or g in blind() for g in globs)
        return [*load().values(), *(blind().values() if named else ())]
    found = [fault for fault in engines().values() if fault.target == target]
    if not found:
        there = ", ".join(sorted({fault.target for fault in engines().values()}))
        raise UsageError(f"there are no faults of --target {target}", f"faults exist of {there}")
    return found


def of_suite(suite: str) -> list[Fault]:
    """Return the faults that a suite has to find."""
    return [fault for fault in load().values() if fault.suite == suite and not fault.equivalent]
