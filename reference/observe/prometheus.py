"""Prometheus metrics of a cache manager, by the official client (V2).

    registry.register(CacheCollector(CacheMetrics(manager)))

Values are read at each scrape. The client is the extra `metrics`; without it, importing this module
raises ImportError with the command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvproof.reference.observe.cache_metrics import CacheMetrics

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "metrics need the Prometheus client: pip install 'kvproof[metrics]'"
    ) from error


class CacheCollector(Collector):
    """Yields the families of one manager; names begin with `kvproof_` (V2)."""

    def __init__(self, metrics: CacheMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Read everything now (V1, V2)."""
        yield from self._hits()
        yield from self._requests()
        yield from self._blocks()
        if self._metrics.manager.states:
            yield from self._checkpoints()

    def _hits(self) -> Iterator[Metric]:
        statistics = self._metrics.manager.statistics
        new, again = statistics.cumulative, statistics.resumed
        yield _counter(
            "query_tokens",
            "Prompt tokens of admitted requests that may read the cache",
            "request",
            {"new": new.queries, "resumed": again.queries},
        )
        yield _counter(
            "hit_tokens",
            "Prompt tokens that were found in the cache",
            "request",
            {"new": new.hits, "resumed": again.hits},
        )
        yield GaugeMetricFamily(
            "kvproof_rolling_hit_rate",
            "Hits over queries of the last requests, resumed ones left out",
            value=statistics.rolling.rate,
        )

    def _requests(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield _counter("requests_admitted", "Admitted requests", "", {"": metrics.admitted})
        yield _counter(
            "refusals", "Refused admissions and further steps", "reason", metrics.refused
        )
        yield GaugeMetricFamily(
            "kvproof_steps_in_flight", "Steps begun, not ended", value=metrics.steps_in_flight
        )
        yield GaugeMetricFamily(
            "kvproof_epoch", "Resets since the start", value=metrics.manager.epoch
        )

    def _blocks(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "kvproof_blocks", "Blocks of the pool by owner", labels=["owner"]
        )
        for owner, count in self._metrics.manager.usage()._asdict().items():
            family.add_metric([owner], count)
        yield family
        evicted = {str(group): count for group, count in sorted(self._metrics.evicted.items())}
        yield _counter("evicted_blocks", "Blocks that lost what they held", "group", evicted)

    def _checkpoints(self) -> Iterator[Metric]:
        metrics = self._metrics
        counts = {
            "saved": metrics.saved,
            "restored": metrics.restored,
            "evicted": metrics.evicted_checkpoints,
        }
        yield _counter("checkpoints", "Checkpoints of recurrent states", "event", counts)


def _counter(name: str, words: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"kvproof_{name}", words, labels=[label] if label else [])
    for value, count in counts.items():
        family.add_metric([value] if label else [], count)
    return family
