"""Prometheus metrics of watched caches, by the official client.

The client is the extra `metrics`; without it, importing this module raises ImportError with the
command.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from kvproof.harness.watch.folder import WatchedFolder

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "metrics need the Prometheus client: pip install 'kvproof[metrics]'"
    ) from error

_COUNTERS = {
    "lines": "Lines that the engine wrote and the watcher read",
    "lost": "Lines that had no room in shared memory",
    "requests": "Admitted requests",
    "tokens": "Tokens of all requests",
    "judged_tokens": "Tokens of judged requests",
    "hit_tokens": "Tokens that judged requests found in the cache",
    "slots": "Slots compared",
    "incidents": "Incidents written",
}
_GAUGES = {
    "share": "Share of new requests that is judged at present",
    "judged": "Share of all tokens that was judged",
    "late": "Seconds from the writing of the latest line to its verdict",
    "latest": "The largest of these",
}
_LABEL = ["cache"]


class WatchCollector(Collector):
    """Yields the families of all caches; names begin with `kvproof_watch_`."""

    def __init__(self, folder: WatchedFolder) -> None:
        self._folder = folder

    def collect(self) -> Iterator[Metric]:
        """Read everything now."""
        yield from self._families(CounterMetricFamily, _COUNTERS)
        yield from self._families(GaugeMetricFamily, _GAUGES)
        broken = CounterMetricFamily(
            "kvproof_watch_violations", "Broken properties", labels=[*_LABEL, "property"]
        )
        for cache in self._folder.caches:
            for prop, count in dict(cache.counts.violations).items():
                broken.add_metric([cache.name, prop], count)
        yield broken
        refused = len(self._folder.refused)
        yield GaugeMetricFamily("kvproof_watch_refused", "Caches that are not judged", refused)

    def _families(
        self, kind: type[CounterMetricFamily | GaugeMetricFamily], fields: dict[str, str]
    ) -> Iterator[Metric]:
        for field, words in fields.items():
            family = kind(f"kvproof_watch_{field}", words, labels=_LABEL)
            for cache in self._folder.caches:
                family.add_metric([cache.name], attrgetter(field)(cache.counts))
            yield family
