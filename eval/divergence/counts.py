"""Counts of documents with an answer that is far off, among hits and among recomputed answers.

What counts as far off is one of THRESHOLDS; how far the worst is does not matter, so a rare large
difference of a correct engine weighs as one. A document is one unit, however often it was asked:
its answers share one computation. Two null hypotheses must both be rejected:

- Hits are off no oftener than a share NEAR_TIES of answers. A hit computes its prompt in other
  chunks than any recomputed answer, so near ties and choices of experts may fall otherwise there
  although recomputed answers repeat; no control bounds that share, so it is granted.
- Hits are off no oftener than recomputed answers of the same documents (exact rank test on counts,
  Fisher's). Where no recomputed answer of the whole run is off, those of all documents count, as
  long as those of the same ones agree at the level AGREED, or do not differ in a single bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from kvproof.harness.statistics import fisher

THRESHOLDS = (1.0, 4.0)
"""Nats, of one log-probability. A smaller difference drowns in the rounding of 16 bits."""

NEAR_TIES = 0.01
"""Share of correct hits that may be off although recomputed answers repeat."""

AGREED = 0.01
"""Level at which the same documents must agree with all, so that long prompts may be noisier."""

LEAST = 3
"""Documents of a situation that is judged by itself."""

MOST = 100_000
"""Answers up to which is tried out on paper how many decide."""

_TIMES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


class Answer(Protocol):
    """An answer that was compared with the recomputed one."""

    @property
    def number(self) -> int:
        """Number of its document."""

    @property
    def worst(self) -> float:
        """Largest difference of a log-probability, in nats."""


class Counts(NamedTuple):
    """Documents, and groups of recomputed answers, of which each had as many chances."""

    off: int
    documents: int
    control_off: int
    controls: int
    p: float
    """Probability of so many by chance, at most."""


def counts(hits: Sequence[Answer], controls: Sequence[Answer], least: float) -> Counts:
    """Count documents with an answer that is off by more than `least` nats."""
    mine, theirs = _by_document(hits, least), _by_document(controls, least)
    off = sum(map(any, mine.values()))
    ties = _at_least(off, [1 - (1 - NEAR_TIES) ** len(each) for each in mine.values()])
    found = _matched(mine, theirs)
    silent = not any(each.worst for each in controls)
    if silent or (found.p <= AGREED and not any(each.worst > least for each in controls)):
        found = _pooled(mine, theirs)
    return Counts(off, len(mine), found.control_off, found.controls, max(ties, found.p))


def times(hits: Sequence[Answer], controls: Sequence[Answer], least: float, alpha: float) -> int:
    """Return how many times as many of these requests decide; 0: over MOST answers, or never."""
    most = MOST / max(1, len(hits) + len(controls))

    def p(factor: int) -> float:
        return counts(_copied(hits, factor), _copied(controls, factor), least).p

    return next((factor for factor in _TIMES if factor <= most and p(factor) <= alpha), 0)


class _Copy(NamedTuple):
    number: int
    worst: float


def _copied(found: Sequence[Answer], factor: int) -> list[_Copy]:
    step = 1 + max((each.number for each in found), default=0)
    return [_Copy(each.number + step * n, each.worst) for n in range(factor) for each in found]


def _by_document(found: Iterable[Answer], least: float) -> dict[int, list[bool]]:
    by: dict[int, list[bool]] = {}
    for each in found:
        by.setdefault(each.number, []).append(each.worst > least)
    return by


def _matched(mine: dict[int, list[bool]], theirs: dict[int, list[bool]]) -> Counts:
    """Compare with the same documents; each gives equally many groups, as long as its hits."""
    both = [number for number in mine if theirs.get(number)]
    size = {number: min(len(mine[number]), len(theirs[number])) for number in both}
    groups = min((len(theirs[number]) // size[number] for number in both), default=0)
    off = sum(any(mine[number][: size[number]]) for number in both)
    units = [group for n in both for group in _groups(theirs[n], size[n])[:groups]]
    return _tested(off, len(both), units)


def _pooled(mine: dict[int, list[bool]], theirs: dict[int, list[bool]]) -> Counts:
    mean = -(-sum(map(len, mine.values())) // max(1, len(mine)))
    units = [group for each in theirs.values() for group in _groups(each, min(mean, len(each)))]
    return _tested(sum(map(any, mine.values())), len(mine), units)


def _groups(found: list[bool], size: int) -> list[bool]:
    return [any(found[at : at + size]) for at in range(0, len(found) - size + 1, size)]


def _tested(off: int, documents: int, units: list[bool]) -> Counts:
    wrong, count = sum(units), len(units)
    p = fisher(off, documents, wrong, count) if documents and count else 1.0
    return Counts(off, documents, wrong, count, p)


def _at_least(successes: int, chances: Sequence[float]) -> float:
    """Probability of so many successes among events of unequal chances."""
    below = np.zeros(max(1, successes))
    below[0] = 1.0
    for chance in chances:
        below[1:] = below[1:] * (1 - chance) + below[:-1] * chance
        below[0] *= 1 - chance
    return float(1 - below.sum()) if successes else 1.0
