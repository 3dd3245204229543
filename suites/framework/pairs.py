"""Pairs that a run has reached: of two levels, and of a level and a situation.

Those that a table of factors excludes are not missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from kvproof.harness.contract.factors import Row
from kvproof.harness.records.pairs import PairCoverage
from kvproof.suites.framework.property import Property
from kvproof.suites.framework.rows import Factors, Level, pairs_of

Needs: TypeAlias = Mapping[str, Mapping[str, Sequence[str]]]
"""Situation -> factor -> the levels of which it needs one."""


class Space(NamedTuple):
    """What a suite draws from: a table of factors, and the levels that situations need."""

    factors: Factors
    needs: Needs
    missing: Mapping[str, str] = {}
    """Factor of which no configuration has another level -> the reason."""

    def _meets(self, level: Level, situation: str) -> bool:
        """Tell whether some row has a level and what a situation needs."""
        pairs, (own, name) = self.factors.pairs, level
        for factor, levels in self.needs.get(situation, {}).items():
            others = [(factor, each) for each in levels]
            beside = any((level, each) in pairs or (each, level) in pairs for each in others)
            if name not in levels if own == factor else not beside:
                return False
        return True

    def situations(self, names: Iterable[str]) -> set[str]:
        """Return the pairs of a level and one of the situations that can be reached."""
        levels = [(factor, each) for factor, own in self.factors.levels.items() for each in own]
        return {
            _with(level, name) for name in names for level in levels if self._meets(level, name)
        }


def _named(level: Level) -> str:
    return f"{level[0]} {level[1]}"


def _with(level: Level, situation: str) -> str:
    return f"{_named(level)} | {situation}"


def reached(row: Row, situations: Iterable[str]) -> Iterator[str]:
    """Yield the pairs of a history."""
    seen = list(situations)
    for one, other in pairs_of(row):
        yield f"{_named(one)} + {_named(other)}"
    for level in row.items():
        for situation in seen:
            yield _with(level, situation)


def coverage(space: Space, properties: Iterable[Property], seen: Iterable[str]) -> PairCoverage:
    """Return the pairs that a run has reached, and those that it has not."""
    features = {f"{_named(one)} + {_named(other)}" for one, other in space.factors.pairs}
    names = dict.fromkeys(name for prop in properties for name in prop.situations)
    situations, had = space.situations(names), set(seen)
    every = sum(1 for _ in space.factors.every_pair())
    return PairCoverage(
        levels={name: list(each) for name, each in space.factors.levels.items()},
        excluded={
            **{_when(each.when): each.reason for each in space.factors.excluded},
            **{
                f"{factor}, but {space.factors.fixed[factor]}": why
                for factor, why in space.missing.items()
            },
        },
        excluded_pairs=every - len(features),
        features=len(features),
        situations=len(situations),
        missing_features=sorted(features - had),
        missing_situations=sorted(situations - had),
    )


def _when(when: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{factor} {' or '.join(levels)}" for factor, levels in when.items())


def half_unseen(space: Space, prop: Property, seen: Mapping[str, int]) -> str:
    """Say that half of a property's pairs of level and situation were not reached; else empty."""
    every = space.situations(prop.situations)
    had = sum(1 for each in every if each in seen)
    if not every or 2 * had >= len(every):
        return ""
    return f"reached {had} of its {len(every)} pairs of a feature and a situation"
