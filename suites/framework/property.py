"""Properties of a cache manager, the rows of all suites.

A property passes on a target only if it was evaluated and every situation that it needs occurred;
otherwise it is inconclusive. `needs` names a capability of the profile: without it the property is
unsupported, for the profile's reason.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias, get_args

from kvproof.harness.oracle.violation import INVARIANT

Level: TypeAlias = Literal["core", "full"]
"""`core`: one group of full attention. `full`: everything, with the suites of the reference."""
LEVELS: tuple[Level, ...] = get_args(Level)


class Property(NamedTuple):
    """One property in a sentence; `name` identifies it in reports."""

    name: str
    rules: tuple[str, ...]
    sentence: str
    situations: tuple[str, ...] = ()
    """Must have occurred at least once; an optional one starts with a capability and a colon."""
    needs: str = ""
    oracle: str = INVARIANT
    """The oracle that judges it."""
    level: Level = "core"
    """The lowest level that judges it."""

    @property
    def section(self) -> str:
        """Letter of the rule section under which reports list the property."""
        return self.rules[0][0]
