"""Rows: configurations drawn factor by factor; a covering array has every pair of levels.

Exclusions hold for every row, so that no history is spent on a configuration that is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, islice
from typing import TypeAlias

from kvproof.harness.contract.factors import Excluded, Row

Level: TypeAlias = tuple[str, str]
"""A factor and one of its levels."""
Pair: TypeAlias = tuple[Level, Level]
"""Two levels of unlike factors, in the order of the table."""
Given: TypeAlias = Mapping[str, str | Sequence[str]]
"""Factor -> its level, or the ones to draw from."""
Pick: TypeAlias = Callable[[Sequence[str]], str]

_TRIES = 40
"""Rows that are tried for a pair before it counts as excluded."""
_CANDIDATES = 6
"""Rows of which a covering array takes the one with the most new pairs."""


class DeadEnd(Exception):
    """The levels chosen so far exclude every level of another factor."""


class Factors:
    """A published table: the factors of a target's configurations, their levels, the exclusions."""

    def __init__(
        self, levels: Mapping[str, Sequence[str]], excluded: Sequence[Excluded] = ()
    ) -> None:
        """`levels`: a level that is repeated is drawn more often. Raises ValueError for a typo.

        A factor with one level has that level in every configuration; it is no part of rows.
        """
        every = {name: tuple(dict.fromkeys(each)) for name, each in levels.items()}
        self.fixed: Row = {name: each[0] for name, each in every.items() if len(each) == 1}
        self.levels = {name: each for name, each in every.items() if name not in self.fixed}
        self.weighted = {name: levels[name] for name in self.levels}
        self._by_factor: dict[str, list[Excluded]] = {name: [] for name in self.levels}
        self.excluded = tuple(filter(None, (self._beyond_fixed(each) for each in excluded)))
        for each in self.excluded:
            for factor in each.when:
                self._by_factor[factor].append(each)

    def _beyond_fixed(self, each: Excluded) -> Excluded | None:
        """Return an exclusion without the levels that every row has; None: no row is left out."""
        for factor in each.when:
            if factor not in self.fixed and factor not in self.levels:
                raise ValueError(f"{factor!r} of {each} is no factor")
        when = {name: levels for name, levels in each.when.items() if name in self.levels}
        own = all(self.fixed[name] in each.when[name] for name in each.when.keys() - when.keys())
        return Excluded(each.reason, when) if own else None

    def within(self, given: Given) -> Factors:
        """Return the table of rows with given levels only; those that it lacks do not count."""
        own = {name: [each] if isinstance(each, str) else each for name, each in given.items()}
        levels = {name: own.get(name, each) for name, each in self.weighted.items()}
        fixed = {name: [level] for name, level in self.fixed.items()}
        return Factors({**levels, **fixed}, self.excluded)

    def why_not(self, row: Mapping[str, str]) -> str:
        """Return why a row, which may lack factors, is left out; empty: it is not."""
        return next((each.reason for each in self.excluded if each.leaves_out(row)), "")

    def draw(self, pick: Pick, given: Given | None = None) -> Row:
        """Draw a row. `given`: levels of some factors, or the ones to draw from.

        Raises DeadEnd if exclusions leave nothing.
        """
        wanted: Given = {**(given or {})}
        order = [*wanted, *(name for name in self.levels if name not in wanted)]
        row = self._drawn({}, order, {**self.weighted, **wanted}, pick)
        return {name: row[name] for name in self.levels}

    def _drawn(self, row: Row, order: Sequence[str], wanted: Given, pick: Pick) -> Row:
        """Return a row with the factors of `order` more; a level that leads nowhere is dropped."""
        if not order:
            return row
        factor, every = order[0], wanted[order[0]]
        every = (every,) if isinstance(every, str) else every
        able, why = [level for level in every if self.fits(row, factor, level)], None
        while able:
            level = able[0] if len(able) == 1 else pick(able)
            try:
                return self._drawn({**row, factor: level}, order[1:], wanted, pick)
            except DeadEnd as error:
                able, why = [each for each in able if each != level], error
        raise why or DeadEnd(f"{row} leaves no level of {factor}")

    def fits(self, row: Row, factor: str, level: str) -> bool:
        """Tell whether a row that has a level more is not left out."""
        more = {**row, factor: level}
        return not any(each.leaves_out(more) for each in self._by_factor[factor])

    @cached_property
    def covering(self) -> tuple[Row, ...]:
        """A covering array: rows in which every pair of levels occurs that can."""
        return tuple(_Covering(self).rows())

    @cached_property
    def pairs(self) -> frozenset[Pair]:
        """The pairs that some row has."""
        return frozenset(pair for row in self.covering for pair in pairs_of(row))

    def every_pair(self) -> Iterator[Pair]:
        """Yield the pairs of all levels, the excluded ones too."""
        for one, other in combinations(self.levels, 2):
            for first in self.levels[one]:
                for second in self.levels[other]:
                    yield (one, first), (other, second)


def pairs_of(row: Row) -> Iterator[Pair]:
    """Yield the pairs of a row, whose factors are in the order of the table."""
    return combinations(row.items(), 2)


class _Covering:
    """Makes rows greedily: each has a pair that is left, and many others that are left.

    Levels are numbered, and sets of them are bits of a number.
    """

    def __init__(self, factors: Factors) -> None:
        self._factors = factors
        self._source = random.Random(0)  # noqa: S311 - reproducible, not secret
        names = [(factor, level) for factor, each in factors.levels.items() for level in each]
        self._number = {level: number for number, level in enumerate(names)}
        own = {
            name: self._bits((name, level) for level in factors.levels[name]) for name, _ in names
        }
        every = (1 << len(names)) - 1
        self._left = [every & ~own[factor] for factor, _ in names]
        """Level -> the levels of other factors that no row has had with it."""
        self._beside = [[*self._excluding(*level)] for level in names]
        """Level -> its exclusions: levels of each other factor, of which a row has one."""

    def _excluding(self, factor: str, level: str) -> Iterator[tuple[int, ...]]:
        for each in self._factors.excluded:
            if level in each.when.get(factor, ()):
                others = ((name, levels) for name, levels in each.when.items() if name != factor)
                yield tuple(
                    self._bits((name, one) for one in levels if (name, one) in self._number)
                    for name, levels in others
                )

    def _fits(self, number: int, bits: int) -> bool:
        return not any(all(bits & others for others in each) for each in self._beside[number])

    def _bits(self, levels: Iterable[Level]) -> int:
        return sum(1 << self._number[level] for level in levels)

    def rows(self) -> Iterator[Row]:
        """Yield rows until no pair is left; one that no row of several tries has is excluded."""
        for level, at in self._number.items():
            for other, number in self._number.items():
                if self._left[at] >> number & 1 and (row := self._best(level, other)):
                    bits = self._bits(row.items())
                    for each in row.items():
                        self._left[self._number[each]] &= ~bits
                    yield row

    def _best(self, *pair: Level) -> Row | None:
        tries = (self._grown(dict(pair)) for _ in range(_TRIES))
        few = list(islice((row for row in tries if row), _CANDIDATES))
        return max(few, key=self._new, default=None)

    def _new(self, row: Row) -> int:
        bits = self._bits(row.items())
        return sum((self._left[self._number[each]] & bits).bit_count() for each in row.items())

    def _grown(self, row: Row) -> Row | None:
        """Return a row with these levels; the others have most pairs left, then most weight."""
        bits, order = self._bits(row.items()), [*self._factors.levels]
        if not all(self._fits(self._number[each], bits) for each in row.items()):
            return None
        self._source.shuffle(order)
        for factor in order:
            if factor in row:
                continue
            able = [
                each
                for each in self._factors.levels[factor]
                if self._fits(self._number[factor, each], bits)
            ]
            if not able:
                return None
            gains = [(self._left[self._number[factor, each]] & bits).bit_count() for each in able]
            most = {each for each, gain in zip(able, gains, strict=True) if gain == max(gains)}
            weighted = [each for each in self._factors.weighted[factor] if each in most]
            row[factor] = self._source.choice(weighted)
            bits |= 1 << self._number[factor, row[factor]]
        return {name: row[name] for name in self._factors.levels}
