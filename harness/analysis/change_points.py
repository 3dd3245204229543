"""Where a series of figures over many runs changed its level."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

LEAST = 4
"""Runs on each side of a change: three may be one bad night."""

_ALPHA = 0.01
"""Probability that a series without any change is given one, before `compare`'s thresholds."""

_ORDERS = 499
"""Random orders that the largest split is held against."""


class Step(NamedTuple):
    """A change of level between two runs."""

    at: int
    """Number of the first run of the new level."""
    before: float
    """Median of the level until then."""
    after: float
    """Median of the level from then on."""

    @property
    def ratio(self) -> float:
        """The new level over the old."""
        return self.after / self.before if self.before else float("inf")


def steps(values: Sequence[float], *, threshold: float) -> list[Step]:
    """Changes of level by more than `threshold`, a fraction; ordered by time.

    A series is split where the ranks of its halves differ most, if random orders of the same values
    rarely differ so much; then each half is split in the same way.
    """
    found = sorted(_splits(np.asarray(values, float), 0, threshold))
    if not found:
        return []
    bounds = pairwise([0, *found, len(values)])
    levels = [float(np.median(values[low:high])) for low, high in bounds]
    return [Step(at, levels[n], levels[n + 1]) for n, at in enumerate(found)]


def _splits(values: npt.NDArray[np.float64], start: int, threshold: float) -> Iterator[int]:
    if len(values) < 2 * LEAST:
        return
    ranks = _ranks(values)
    seen = _contrast(ranks[None, :])[0]
    at = int(seen.argmax()) + LEAST
    if not _beyond(values, at, threshold) or not _rare(ranks, float(seen.max())):
        return
    yield start + at
    yield from _splits(values[:at], start, threshold)
    yield from _splits(values[at:], start + at, threshold)


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """From 0; equal values share their mean rank, so that time gives counted figures no order."""
    _, which, times = np.unique(values, return_inverse=True, return_counts=True)
    found: npt.NDArray[np.float64] = (times.cumsum() - (times + 1) / 2)[which]
    return found


def _beyond(values: npt.NDArray[np.float64], at: int, threshold: float) -> bool:
    before, after = np.median(values[:at]), np.median(values[at:])
    return bool(max(before, after) > (1 + threshold) * min(before, after))


def _rare(ranks: npt.NDArray[np.float64], most: float) -> bool:
    rng = np.random.Generator(np.random.PCG64(0))
    orders = rng.permuted(np.tile(ranks, (_ORDERS, 1)), axis=1)
    as_large = int((_contrast(orders).max(axis=1) >= most).sum())
    return (as_large + 1) / (_ORDERS + 1) <= _ALPHA


def _contrast(ranks: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Per row and split: the distance of both sides' mean ranks, in standard deviations."""
    count = ranks.shape[1]
    left = np.arange(LEAST, count - LEAST + 1)
    sums = ranks.cumsum(axis=1)[:, left - 1]
    expected = left * (count - 1) / 2
    spread = np.sqrt(left * (count - left) * (count + 1) / 12)
    found: npt.NDArray[np.float64] = np.abs(sums - expected) / spread
    return found
