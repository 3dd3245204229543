"""The catalogue of planted faults: TOML files of `[[fault]]` rows, strict.

Values above the rows of a file hold for each row without a value of its own. Faults of the
reference are in `planted/`, `components/` and `blind/`; those of an engine's own files in the
engine's room, `suites/engines/<engine>/planted/`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import tomllib

from kvproof.harness.errors import UsageError

HERE = Path(__file__).parent
PLANTED, COMPONENTS, BLIND = (HERE / name for name in ("planted", "components", "blind"))
"""Faults modelled on bugs of engines; faults of each property of a component suite; and faults that
were written from `reference/` alone, before the suites were looked at."""
ROOMS = HERE.parent / "engines"
"""The rooms of engines."""

Kind: TypeAlias = Literal["soundness", "hits", "accounting", "component"]
"""`soundness`: a request reads content of another. `hits`: reuse is lost. `accounting`: counts,
owners, order, refusals or costs are wrong. `component`: a part of the reference breaks a promise of
its own; the loss to an engine does not matter."""
SUBJECT = "reference"
"""Name of the subject; no module of the reference is imported before a fault is planted."""
KERNELS = "kernels"
"""The `suite` of faults that `kvproof sweep` has to find."""


class PlantedFault(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Replaces `old`, which occurs once in `module`, by `new`.

    A module of the reference is named below `kvproof`; an engine's is one of its own.
    """

    name: str
    story: str
    """The wrong behaviour, in words."""
    module: str
    old: str
    new: str
    mechanism: str
    target: str = SUBJECT
    """The faulty target that the suites judge; as after `--target`."""
    suite: str = "cache"
    """The suite that runs first: `cache`, a component suite, or `kernels`."""
    kind: Kind = "accounting"
    property: str = ""
    """The property that finds it alone, with any other symptoms; for `kernels`, the
    kernel. Empty: any property may find it."""
    promise: str = ""
    """The rules that a blind fault breaks."""
    bugs: tuple[str, ...] = ()
    """Ids of the known bugs that it is modelled on."""
    note: str = ""
    """The difference between it and these bugs."""
    unshadowed: str = ""
    """The reason why no shadow memory can see a soundness fault."""
    equivalent: str = ""
    """The reason why nothing can distinguish it from the original; it is not run."""
    survives: str = ""
    """The reason why the histories of budget `pr` do not find it."""

    def __post_init__(self) -> None:
        if not (in_engine(self) or self.property or self.promise):
            raise ValueError(f"{self.name}: a fault names a property, or a promise")
        if self.old == self.new or not self.old:
            raise ValueError(f"{self.name}: a fault changes something")
        if self.unshadowed and self.kind != "soundness":
            raise ValueError(f"{self.name}: only soundness needs a word about the shadow memory")
        if self.equivalent and self.survives:
            raise ValueError(f"{self.name}: a fault that is not run cannot survive")


def in_engine(fault: PlantedFault) -> bool:
    """Whether it lies in an engine's own files."""
    return "==" in fault.target


def shadowed(fault: PlantedFault) -> bool:
    """Whether a shadow memory has to find a fault."""
    catalogued = not (fault.unshadowed or fault.promise or in_engine(fault))
    return fault.kind == "soundness" and catalogued


@cache
def load() -> Mapping[str, PlantedFault]:
    """Read the faults of the reference: name -> fault.

    Raises msgspec.ValidationError, and ValueError for a second fault of a name.
    """
    return read(PLANTED, COMPONENTS)


@cache
def blind() -> Mapping[str, PlantedFault]:
    """Read the faults of the blind campaign, as `load` does."""
    return read(BLIND)


@cache
def engines() -> Mapping[str, PlantedFault]:
    """Read the faults of engines' own files, as `load` does."""
    return read(*sorted(ROOMS.glob("*/planted")))


def everything() -> Mapping[str, PlantedFault]:
    """Return all faults of all targets."""
    return {**load(), **blind(), **engines()}


def read(*folders: Path) -> dict[str, PlantedFault]:
    """Read the faults of the files of some folders; see `load`."""
    found: dict[str, PlantedFault] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("*.toml"))):
        shared = tomllib.loads(path.read_text(encoding="utf-8"))
        rows = [{**shared, **each} for each in shared.pop("fault")]
        for fault in msgspec.convert(rows, list[PlantedFault]):
            if fault.name in found:
                raise ValueError(f"{path.name}: there is a fault {fault.name!r} already")
            found[fault.name] = fault
    return found


def find(name: str) -> PlantedFault:
    """Return a fault by its name. Raises UsageError."""
    faults = everything()
    if name not in faults:
        close = get_close_matches(name, faults, 1)
        hint = f"did you mean {close[0]!r}?" if close else "kvproof faults --list names them"
        raise UsageError(f"there is no fault {name!r}", hint)
    return faults[name]


def chosen(pattern: str, target: str = SUBJECT) -> list[PlantedFault]:
    """Return faults whose name or mechanism matches one of the globs. Raises UsageError.

    They are those of the reference, or of one engine. Blind faults are among them only if a glob
    names them: their mechanisms begin with `blind`.
    """
    globs = [each.strip() for each in pattern.split(",") if each.strip()] or ["*"]
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


def _of(target: str, globs: list[str]) -> Iterable[PlantedFault]:
    if target == SUBJECT:
        named = any(g.startswith("blind") or g in blind() for g in globs)
        return [*load().values(), *(blind().values() if named else ())]
    found = [fault for fault in engines().values() if fault.target == target]
    if not found:
        there = ", ".join(sorted({fault.target for fault in engines().values()}))
        raise UsageError(f"there are no faults of --target {target}", f"faults exist of {there}")
    return found


def of_suite(suite: str) -> list[PlantedFault]:
    """Return the faults of the reference that a suite has to find."""
    return [fault for fault in load().values() if fault.suite == suite and not fault.equivalent]
