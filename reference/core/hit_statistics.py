"""Hit counters in tokens, counted once per request at admission (V1)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True)
class HitCounts:
    """Queried tokens and hit tokens."""

    queries: int = 0
    hits: int = 0

    @property
    def rate(self) -> float:
        """Return hits / queries, 0 if nothing was asked."""
        return self.hits / self.queries if self.queries else 0.0


class HitStatistics:
    """Cumulative, and over the last `window` requests."""

    def __init__(self, window: int) -> None:
        self._recent: deque[tuple[int, int]] = deque(maxlen=window)
        self._queries = self._hits = self._resumed_queries = self._resumed_hits = 0

    def reset(self) -> None:
        """Clear the rolling window; cumulative counters go on."""
        self._recent.clear()

    def count(self, queries: int, hits: int, *, resumed: bool = False) -> None:
        """Count an admission (V1); resumed requests repeat their queries, and count apart."""
        if resumed:
            self._resumed_queries += queries
            self._resumed_hits += hits
            return
        self._queries += queries
        self._hits += hits
        self._recent.append((queries, hits))

    @property
    def cumulative(self) -> HitCounts:
        """Every new request since the start."""
        return HitCounts(self._queries, self._hits)

    @property
    def resumed(self) -> HitCounts:
        """Preempted requests, apart from `cumulative`."""
        return HitCounts(self._resumed_queries, self._resumed_hits)

    @property
    def rolling(self) -> HitCounts:
        """The last `window` requests."""
        return HitCounts(sum(q for q, _ in self._recent), sum(h for _, h in self._recent))
