"""Factors of a configuration: what can be on, off or of several kinds, and what excludes what.

A row gives each factor a level. Standard library only: engines' adapters declare exclusions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

Row: TypeAlias = dict[str, str]
"""Factor -> level."""


@dataclass(frozen=True)
class Excluded:
    """A combination of levels that is not drawn."""

    reason: str
    """The engine's own reason, or that of its adapter."""
    when: Mapping[str, tuple[str, ...]]
    """Factor -> levels; rows with one of them in each of these factors are left out."""

    def leaves_out(self, row: Mapping[str, str]) -> bool:
        """Tell whether a row, which may lack factors, has the combination."""
        return all(row.get(factor) in levels for factor, levels in self.when.items())


def never(reason: str, when: Mapping[str, str | Iterable[str]]) -> Excluded:
    """Return an exclusion of levels, or of one level, of each of some factors."""
    return Excluded(
        reason,
        {name: (each,) if isinstance(each, str) else tuple(each) for name, each in when.items()},
    )
