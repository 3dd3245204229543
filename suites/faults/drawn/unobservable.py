"""Drawn faults that a person has read and found to change nothing that a user can observe.

`unobservable.toml` has one row a change: the module, the line with it, and the reason. A row fits
every sample that draws the same change.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import tomllib

from kvproof.suites.faults.catalogue import PlantedFault

PATH = Path(__file__).with_suffix(".toml")


class Unobservable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A change of `old` to `new` in a module, as in a fault's story without the line number."""

    module: str
    change: str
    why: str
    near: str = ""
    """A part of the lines that only this place has, where a module has the changed text twice."""

    def fits(self, fault: PlantedFault) -> bool:
        """Whether a fault is this change."""
        same = (self.module, self.change) == (fault.module, change_of(fault))
        return same and self.near in fault.old


@cache
def load() -> list[Unobservable]:
    """Read the rows. Raises msgspec.ValidationError."""
    rows = tomllib.loads(PATH.read_text(encoding="utf-8")).get("change", [])
    return msgspec.convert(rows, list[Unobservable])


def marked(faults: Iterable[PlantedFault]) -> list[PlantedFault]:
    """Return the faults; those that are in the list have its reason and are not run."""
    return [msgspec.structs.replace(fault, equivalent=_why(fault)) for fault in faults]


def _why(fault: PlantedFault) -> str:
    return next((row.why for row in load() if row.fits(fault)), "")


def change_of(fault: PlantedFault) -> str:
    """Return the change of a drawn fault in words, without its line."""
    return fault.story.partition(": ")[2]
