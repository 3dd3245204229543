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

Kind: TypeAlias = Literal["soundness", "hits", "accounting"]
"""`soundness`: a request reads content of another. `hits`: reuse is lost. `accounting`: counts,
owners, order, refusals or costs are wrong."""
KERNELS = "kernels"
"""The `suite` of faults that `kvproof sweep` has to find."""


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Replace `old` by `new` in `module` below `kvproof`; `old` occurs there exactly once."""

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
    kernel."""
    unshadowed: str = ""
    """Why no shadow memory can see a soundness fault."""
    equivalent: str = ""
    """Why no suite can distinguish it from the reference; it is not run."""
    note: str = ""
    promise: str = ""
    """Of a blind fault: the rules that it breaks. No bug is its model, and no property is named."""

    def __post_init__(self) -> None:
        if not (self.bugs and self.property) and not self.promise:
            raise ValueError(f"{self.name}: a fault names its bugs and a property, or a promise")
        if self.old == self.new or not self.old:
            raise ValueError(f"{self.name}: a fault changes something")
        if self.unshadowed and self.kind != "soundness":
            raise ValueError(f"{self.name}: only soundness needs a word about the shadow memory")


def shadowed(fault: Fault) -> bool:
    """Whether a shadow memory has to find a fault."""
    return fault.kind == "soundness" and not fault.unshadowed and not fault.promise


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    mechanism: str
    fault: tuple[Fault, ...]


@cache
def load() -> Mapping[str, Fault]:
    """Read all files: name -> fault. Raises msgspec.ValidationError, ValueError for a duplicate."""
    return _read(FOLDER)


@cache
def blind() -> Mapping[str, Fault]:
    """Read the faults of the blind campaign, as `load` does."""
    return _read(BLIND)


def _read(folder: Path) -> dict[str, Fault]:
    found: dict[str, Fault] = {}
    for path in sorted(folder.glob("*.toml")):
        file = msgspec.convert(tomllib.loads(path.read_text()), _File)
        for fault in file.fault:
            if fault.name in found:
                raise ValueError(f"{path.name}: there is a fault {fault.name!r} already")
            found[fault.name] = msgspec.structs.replace(fault, mechanism=file.mechanism)
    return found


def find(name: str) -> Fault:
    """Return a fault by its name. Raises UsageError."""
    faults = {**load(), **blind()}
    if name not in faults:
        close = get_close_matches(name, faults, 1)
        hint = f"did you mean {close[0]!r}?" if close else "kvproof faults --list names them"
        raise UsageError(f"there is no fault {name!r}", hint)
    return faults[name]


def chosen(pattern: str) -> list[Fault]:
    """Return faults whose name or mechanism matches one of the globs. Raises UsageError.

    Blind faults are among them only if a glob names them: their mechanisms begin with `blind`.
    """
    globs = pattern.replace(",", " ").split() or ["*"]
    named = [*load().values()]
    if any(g.startswith("blind") or g in blind() for g in globs):
        named += blind().values()
    found = [
        fault
        for fault in named
        if any(fnmatchcase(fault.name, g) or fnmatchcase(fault.mechanism, g) for g in globs)
    ]
    if not found:
        raise UsageError(
            f"no fault matches --only {pattern!r}",
            "name faults or mechanisms, for example --only 'identity,vllm_*'; --list prints all",
        )
    return found


def of_suite(suite: str) -> list[Fault]:
    """Return the faults that a suite has to find."""
    return [fault for fault in load().values() if fault.suite == suite and not fault.equivalent]
