"""The counters of hits in vLLM's scheduler statistics, added up over the steps of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.harness.contract.whole_engine import HitCounts


class Counts:
    """Adds up statistics, which come once for each step."""

    def __init__(self) -> None:
        self._asked = self._hit = self._asked_outside = self._hit_outside = 0

    def add(self, outputs: Mapping[int, Any]) -> None:
        """Take the statistics that came with the outputs of a step, if any did."""
        for stats in (each.scheduler_stats for each in outputs.values()):
            if stats is None:
                continue
            own, outside = stats.prefix_cache_stats, stats.connector_prefix_cache_stats
            self._asked += own.queries
            self._hit += own.hits
            if outside is not None:
                self._asked_outside += outside.queries
                self._hit_outside += outside.hits

    def total(self) -> HitCounts:
        """Return the sums."""
        return HitCounts(self._asked, self._hit, self._asked_outside, self._hit_outside)


def cached(output: Any) -> int:
    """Return the published number of a prompt's tokens that were not computed; -1: none."""
    stats = getattr(output, "prefill_stats", None)
    return -1 if stats is None else int(stats.num_cached_tokens)
