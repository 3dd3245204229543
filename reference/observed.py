"""`Observed` of versions up to 0.13, which stood in front of its manager; goes with 0.15.

Use `kvproof.reference.observe.cache_metrics.CacheMetrics`, and the manager that it is attached to.
"""

from __future__ import annotations

from kvproof.reference.observe.cache_metrics import CacheMetrics


class Observed(CacheMetrics):
    """Passes everything but counters on to its manager."""

    def __getattr__(self, name: str) -> object:
        """Return an attribute of the manager."""
        return getattr(self.manager, name)
