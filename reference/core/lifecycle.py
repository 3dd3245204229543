"""A life cycle as a frozen table: the events that are possible in each state.

The same table decides, refuses and is drawn in the documentation, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType


class IllegalMove(RuntimeError):
    """The state does not allow the event; nothing has changed."""


class Transitions:
    """`table` maps (state, event) to the next state. The first state of the table is the start."""

    __slots__ = ("name", "start", "table")

    def __init__(self, name: str, table: Mapping[tuple[str, str], str]) -> None:
        self.name = name
        self.table = MappingProxyType(dict(table))
        self.start = next(iter(self.table))[0]

    def move(self, state: str, event: str) -> str:
        """Return the state after `event`. Raises IllegalMove, naming both states."""
        after = self.table.get((state, event))
        if after is None:
            raise self.illegal(state, event)
        return after

    def moves(self, event: str) -> Mapping[str, str]:
        """Return state -> next state of one event, for hot paths; others raise as in `move`."""
        return _Moves(self, event)

    def illegal(self, state: str, event: str) -> IllegalMove:
        """Return the error for a forbidden `event`, also for one that only a count forbids."""
        targets = sorted({to for (_, name), to in self.table.items() if name == event})
        to = " or ".join(targets) or "no state"
        legal = ", ".join(f"{name} (to {self.table[state, name]})" for name in self.events(state))
        return IllegalMove(
            f"{self.name}: {event!r} leads to {to} and is not allowed in state {state}; "
            f"allowed there: {legal or 'nothing'}"
        )

    def events(self, state: str) -> list[str]:
        """Return the moves allowed in `state`, in the order of the table."""
        return [event for source, event in self.table if source == state]

    def states(self) -> list[str]:
        """Return every state, in the order in which the table first names them."""
        sources = [source for source, _ in self.table]
        return list(dict.fromkeys([*sources, *self.table.values()]))


class _Moves(dict[str, str]):
    """The part of a table that one event may look up."""

    def __init__(self, life: Transitions, event: str) -> None:
        super().__init__({state: to for (state, name), to in life.table.items() if name == event})
        self._life, self._event = life, event

    def __missing__(self, state: str) -> str:
        raise self._life.illegal(state, self._event)
