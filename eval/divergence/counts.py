"""Counts of documents with an answer that is far off, among hits and among recomputed answers.

What counts as far off is one of two thresholds; how far the worst is does not matter, so a rare
large difference of a correct engine weighs as one. A document is one unit, however often it was
asked: its answers share one computation. Two null hypotheses must both be rejected:

- Hits are off no oftener than a share of near ties. A hit computes its prompt in other chunks than
  any recomputed answer, so near ties and choices of experts may fall otherwise there although
  recomputed answers repeat; no control bounds that share, so it is granted: see `near_ties`.
- Hits are off no oftener than recomputed answers of the same document, whatever share of those is
  off in each document. Where no recomputed answer is off, the likeliest share is taken that leaves
  all of them right: those of all documents count, as long as those of the same ones agree at the
  level AGREED, or do not differ in a single bit. Where some are off, documents in which either only
  hits or only recomputed answers are off decide (exact, as McNemar's test).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Values: TypeAlias = npt.NDArray[np.float64]

VISIBLE = 1.0
"""Nats, of one log-probability. A smaller difference drowns in the rounding of 16 bits."""

_LARGE = 4.0
"""Nats. Experts and long prompts may often be off by less."""

_LEAST_OFF, _TIMES_USUAL = 0.01, 1000
"""Nats that are far off where the usual difference is so many times smaller."""

NEAR_TIES = (0.001, 0.01)
"""Least and largest share of correct hits that may be off although recomputed answers repeat."""

AGREED = 0.01
"""Level at which the same documents must agree with all, so that long prompts may be noisier."""

_SMALLEST = 1e-15
"""Distance of a share from 0 and from 1, at least."""

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
    """Documents with an answer that is far off."""

    off: int
    documents: int
    p: float
    """Probability of so many by chance, at most."""


def counts(hits: Sequence[Answer], controls: Sequence[Answer], least: float) -> Counts:
    """Count documents with an answer that is off by more than `least` nats."""
    found = _Sides(hits, controls, least)
    return Counts(found.off, len(found.hits), found.p())


def near_ties(hits: Sequence[Answer], controls: Sequence[Answer]) -> float:
    """Return the share of near ties that is granted.

    A tie falls otherwise if it is nearer than the noise, so their share grows with the noise: by as
    much a nat of the usual difference as 16 bits need, whose answers differ by 0.01 nats and are
    off in 1 %. Of answers that usually do not differ at all the noise is not known.
    """
    usual, (least, most) = _usual(hits, controls), NEAR_TIES
    return min(most, max(least, usual)) if usual else most


def thresholds(hits: Sequence[Answer], controls: Sequence[Answer]) -> tuple[float, float]:
    """Return from how many nats an answer is far off: by the usual difference, and in any case."""
    usual = _usual(hits, controls)
    return min(VISIBLE, max(_LEAST_OFF, _TIMES_USUAL * usual)) if usual else VISIBLE, _LARGE


def _usual(hits: Sequence[Answer], controls: Sequence[Answer]) -> float:
    return max(_median(hits), _median(controls))


def _median(found: Sequence[Answer]) -> float:
    return float(np.median([each.worst for each in found])) if found else 0.0


def times(hits: Sequence[Answer], controls: Sequence[Answer], least: float, alpha: float) -> int:
    """Return how many times as many of these requests decide; 0: over MOST answers, or never."""
    most, found = MOST / max(1, len(hits) + len(controls)), _Sides(hits, controls, least)
    tried = [each for each in _TIMES if each <= most]
    if not tried or found.off <= sum(found.chances) or found.p(tried[-1]) > alpha:
        return 0  # the second: near ties explain as many, however often
    return next(each for each in tried if found.p(each) <= alpha)


class _Sides:
    """Documents with their hits and their recomputed answers."""

    def __init__(self, hits: Sequence[Answer], controls: Sequence[Answer], least: float) -> None:
        self.hits, theirs = _by_document(hits, least), _by_document(controls, least)
        self.off = sum(map(any, self.hits.values()))
        share = near_ties(hits, controls)
        self.chances = [1 - (1 - share) ** len(each) for each in self.hits.values()]
        self._both = [_Both(self.hits[n], theirs[n]) for n in self.hits if n in theirs]
        self._others = [len(each) for n, each in theirs.items() if n not in self.hits]
        self._silent = not any(each.worst for each in controls)
        self._none_off = not any(map(any, theirs.values()))

    def p(self, times: int = 1) -> float:
        """Probability of so many, if all of them had come so many times."""
        ties = _at_least(self.off * times, self.chances * times)
        p = _matched(self._both * times)
        if self._silent or (p <= AGREED and self._none_off):
            p = _none_off(self._both * times, self._others * times)
        return max(ties, p)


def _by_document(found: Iterable[Answer], least: float) -> dict[int, list[bool]]:
    by: dict[int, list[bool]] = {}
    for each in found:
        by.setdefault(each.number, []).append(each.worst > least)
    return by


class _Both:
    """One document, with its hits and its recomputed answers."""

    def __init__(self, hits: Sequence[bool], controls: Sequence[bool]) -> None:
        self.off, self.control_off = any(hits), any(controls)
        self.hits, self.controls = len(hits), len(controls)

    @property
    def decides(self) -> bool:
        """Only one side is off; among more hits than recomputed answers, one of these is."""
        more = self.hits > self.controls
        return self.control_off if self.control_off and more else self.off != self.control_off


def _matched(both: Sequence[_Both]) -> float:
    """Probability that so many documents have only hits that are off; any share in any document."""
    if not any(each.control_off for each in both):
        return _none_off(both, ())
    one = [each for each in both if each.decides]
    chances = [each.hits / (each.hits + each.controls) for each in one]
    return _at_least(sum(not each.control_off for each in one), chances)


def _none_off(both: Sequence[_Both], others: Sequence[int]) -> float:
    """Probability of so many documents with hits that are off, and no recomputed answer at all.

    It is that of the worst share of answers that are off, which is the same in all documents, or
    (where they differ) leaves equally many with right recomputed answers (Jensen, Hoeffding).
    `others`: numbers of recomputed answers of other documents.
    """
    if not both:
        return 1.0
    off, most = sum(each.off for each in both), max(each.controls for each in both)
    hits, controls = (np.array([each[at] for each in map(_sizes, both)]) for at in (0, 1))
    found = 0.0
    for exponents, silent in (
        (hits / controls, len(both) + sum(min(1.0, count / most) for count in others)),
        (hits / controls.mean(), (controls.sum() + sum(others)) / controls.mean()),
    ):
        right = np.mean(_SHARES[:, None] ** exponents, axis=1)
        found = max(found, np.max(_binomial(off, len(both), 1 - right) * _SHARES**silent))
    return float(found)


def _sizes(each: _Both) -> tuple[int, int]:
    return each.hits, each.controls


_SHARES = np.linspace(0.001, 0.999, 200)
"""Probabilities that all recomputed answers of a document are right."""


def _at_least(successes: int, chances: Sequence[float]) -> float:
    """Probability of so many successes or more among events of unequal chances."""
    found = np.zeros(successes + 1)
    found[0] = 1.0
    for chance in chances:
        passed = chance * found[:-1]
        found[:-1] -= passed
        found[1:] += passed
    return float(found[-1])


def _binomial(successes: int, total: int, share: Values) -> Values:
    """Probability of so many successes or more, for each share."""
    ways = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    k = np.arange(successes, total + 1)
    share = np.clip(share, _SMALLEST, 1 - _SMALLEST)  # 0 and 1 have no logarithms
    log = ways[total] - ways[k] - ways[total - k]
    chances = np.outer(k, np.log(share)) + np.outer(total - k, np.log1p(-share))
    found: Values = np.exp(log[:, None] + chances).sum(axis=0)
    return found
