"""Rows for the profiles of a suite: half of them from the covering array, dealt out to profiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from kvproof.harness.contract.factors import Row
from kvproof.suites.framework.component_suite import Draw
from kvproof.suites.framework.draws import integers, sampled_from
from kvproof.suites.framework.rows import Factors, Given


def own_levels(given: Given, table: Factors) -> dict[str, Sequence[str]]:
    """Return the given levels that a table has."""
    every = {name: [each] if isinstance(each, str) else each for name, each in given.items()}
    found = {
        name: [level for level in each if level in table.levels[name]]
        for name, each in every.items()
        if name in table.levels
    }
    return {name: each for name, each in found.items() if each}


class DealtRows:
    """The rows of a table, by profile."""

    def __init__(self, table: Factors, given: Mapping[str, Given]) -> None:
        """`given`: profile -> its levels; those that the table lacks do not count."""
        self.table = table
        self._given = {name: own_levels(each, table) for name, each in given.items()}

    @cached_property
    def _hands(self) -> Mapping[str, Sequence[Row]]:
        """The rows of the covering array by profile: each goes to one whose levels it has."""
        hands: dict[str, list[Row]] = {name: [] for name in self._given}
        for row in self.table.covering:
            fitting = [
                hands[name]
                for name, given in self._given.items()
                if all(row[factor] in levels for factor, levels in given.items())
            ]
            min(fitting, key=len, default=list[Row]()).append(row)
        return hands

    def draw(self, name: str, draw: Draw) -> Row:
        """Draw a row of the covering array, or one with the levels of a profile."""
        hand = self._hands[name]
        index: int = draw(integers(0, 2 * len(hand)))
        if 0 < index <= len(hand):
            return hand[index - 1]
        return self._with(self._given[name], draw)

    def beyond(self, given: Given, draw: Draw) -> Row:
        """Draw a row with given levels that is none of the covering array."""
        return self._with(own_levels(given, self.table), draw)

    def _with(self, given: Given, draw: Draw) -> Row:
        return self.table.draw(lambda able: str(draw(sampled_from(tuple(able)))), given)
