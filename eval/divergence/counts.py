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

from collections.abc import Iterable
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Values: TypeAlias = npt.NDArray[np.float64]
Sizes: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

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


class Answers:
    """All answers of one side as arrays, in the order of their documents."""

    def __init__(self, found: Iterable[Answer]) -> None:
        each = sorted((one.number, one.worst) for one in found)
        self.worst: Values = np.array([worst for _, worst in each])
        """Largest difference of each answer, in nats."""
        numbers = np.array([number for number, _ in each], np.int64)
        self.documents, self._first, self.sizes = np.unique(
            numbers, return_index=True, return_counts=True
        )
        """Each document once, where its answers begin, and how many it has."""
        self.usual = float(np.median(self.worst)) if each else 0.0
        """The middle one of `worst`, in nats; 0 without answers."""

    def __len__(self) -> int:
        return len(self.worst)

    def off(self, least: float) -> Flags:
        """Tell of each document whether an answer is off by more than `least` nats."""
        off: Flags = np.maximum.reduceat(self.worst, self._first) > least
        return off


class Counts(NamedTuple):
    """Documents with an answer that is far off."""

    off: int
    documents: int
    p: float
    """Probability of so many by chance, at most."""


def counts(hits: Answers, controls: Answers, least: float) -> Counts:
    """Count documents with an answer that is off by more than `least` nats."""
    found = _Sides(hits, controls, least)
    return Counts(found.off, len(hits.documents), found.p())


def near_ties(usual: float) -> float:
    """Return the share of near ties that is granted where answers usually differ by so many nats.

    A tie falls otherwise if it is nearer than the noise, so their share grows with the noise: by as
    much a nat of the usual difference as 16 bits need, whose answers differ by 0.01 nats and are
    off in 1 %. Of answers that usually do not differ at all the noise is not known.
    """
    least, most = NEAR_TIES
    return min(most, max(least, usual)) if usual else most


def thresholds(hits: Answers, controls: Answers) -> tuple[float, float]:
    """Return from how many nats an answer is far off: by the usual difference, and in any case."""
    usual = max(hits.usual, controls.usual)
    return min(VISIBLE, max(_LEAST_OFF, _TIMES_USUAL * usual)) if usual else VISIBLE, _LARGE


def times(hits: Answers, controls: Answers, least: float, alpha: float) -> int:
    """Return how many times as many of these requests decide; 0: over MOST answers, or never."""
    most, found = MOST / max(1, len(hits) + len(controls)), _Sides(hits, controls, least)
    tried = [each for each in _TIMES if each <= most]
    if not tried or found.off <= sum(found.chances) or found.p(tried[-1]) > alpha:
        return 0  # the second: near ties explain as many, however often
    return next(each for each in tried if found.p(each) <= alpha)


class _Sides:
    """Documents with their hits and their recomputed answers."""

    def __init__(self, hits: Answers, controls: Answers, least: float) -> None:
        mine, theirs = hits.off(least), controls.off(least)
        self.off = int(mine.sum())
        share = near_ties(max(hits.usual, controls.usual))
        self.chances: Values = 1 - (1 - share) ** hits.sizes.astype(np.float64)
        _, one, other = np.intersect1d(
            hits.documents, controls.documents, assume_unique=True, return_indices=True
        )
        self._both = _Both(mine[one], theirs[other], hits.sizes[one], controls.sizes[other])
        self._others = np.delete(controls.sizes, other)
        self._silent = not controls.worst.any()
        self._none_off = not theirs.any()

    def p(self, times: int = 1) -> float:
        """Probability of so many, if all of them had come so many times."""
        ties = _at_least(self.off * times, self.chances, times)
        p = _matched(self._both, times)
        if self._silent or (p <= AGREED and self._none_off):
            p = _none_off(self._both, self._others, times)
        return min(1.0, max(ties, p))


class _Both(NamedTuple):
    """Documents that have hits as well as recomputed answers; arrays [documents]."""

    off: Flags
    control_off: Flags
    hits: Sizes
    controls: Sizes

    def decide(self) -> Flags:
        """Only one side is off; among more hits than recomputed answers, one of these is."""
        more = self.hits > self.controls
        decide: Flags = (self.off ^ self.control_off) | (self.control_off & more)
        return decide


def _matched(both: _Both, times: int) -> float:
    """Probability that so many documents have only hits that are off; any share in any document."""
    if not both.control_off.any():
        return _none_off(both, both.hits[:0], times)
    one = both.decide()
    off = int((one & ~both.control_off).sum())
    return _at_least(off * times, (both.hits / (both.hits + both.controls))[one], times)


def _none_off(both: _Both, others: Sizes, times: int) -> float:
    """Probability of so many documents with hits that are off, and no recomputed answer at all.

    It is that of the worst share of answers that are off, which is the same in all documents, or
    (where they differ) leaves equally many with right recomputed answers (Jensen, Hoeffding).
    `others`: numbers of recomputed answers of other documents.
    """
    total, controls = len(both.off), both.controls
    if not total:
        return 1.0
    found = 0.0
    for exponents, silent in (
        (both.hits / controls, total + np.minimum(1.0, others / controls.max()).sum()),
        (both.hits / controls.mean(), (controls.sum() + others.sum()) / controls.mean()),
    ):
        weight = _SHARES ** (times * silent)
        share, weight = _SHARES[weight > 0, None], weight[weight > 0]
        power, many = np.unique(exponents, return_counts=True)
        off = 1 - share**power @ many / total
        tail = _of(times * int(both.off.sum()), times * total, off).sum(axis=0)
        found = max(found, float(np.max(tail * weight, initial=0.0)))
    return found


_SHARES = np.linspace(0.001, 0.999, 200)
"""Probabilities that all recomputed answers of a document are right."""


def _at_least(successes: int, chances: Values, times: int) -> float:
    """Probability of so many successes or more among events that come so many times each."""
    found = np.ones(1)
    for chance, count in zip(*np.unique(chances, return_counts=True), strict=True):
        found = np.convolve(found, _of(0, times * int(count), chance)[:, 0])
    return float(found[successes:].sum())


def _of(successes: int, total: int, share: npt.ArrayLike) -> Values:
    """Binomial probabilities [so many successes to all, shares]."""
    ways = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    k = np.arange(successes, total + 1)
    share = np.clip(share, _SMALLEST, 1 - _SMALLEST)  # 0 and 1 have no logarithms
    log = ways[total] - ways[k] - ways[total - k]
    chances = np.outer(k, np.log(share)) + np.outer(total - k, np.log1p(-share))
    found: Values = np.exp(log[:, None] + chances)
    return found
