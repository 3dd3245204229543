"""Prometheus metrics of a cache manager, by the official client (V2).

    registry.register(CacheCollector(observed))

Everything is read when Prometheus asks. The client is the extra `metrics`; without it, importing
this module says how to get it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvproof.reference.observe.instrumented import Observed

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "metrics need the Prometheus client: pip install 'kvproof[metrics]'"
    ) from error


class CacheCollector(Collector):
    """Yields the families of one manager; names begin with `kvproof_` (V2)."""

    def __init__(self, observed: Observed) -> None:
        self._observed = observed

    def collect(self) -> Iterator[Metric]:
        """Read everything now (V1, V2)."""
        yield from self._hits()
        yield from self._requests()
        yield from self._blocks()
        if self._observed.manager.states:
            yield from self._checkpoints()

    def _hits(self) -> Iterator[Metric]:
        statistics = self._observed.manager.statistics
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
        observed = self._observed
        yield _counter("requests_admitted", "Admitted requests", "", {"": observed.admitted})
        yield _counter(
            "refusals", "Refused admissions and further steps", "reason", observed.refused
        )
        yield GaugeMetricFamily(
            "kvproof_steps_in_flight", "Steps begun, not ended", value=observed.steps_in_flight
        )
        yield GaugeMetricFamily(
            "kvproof_epoch", "Resets since the start", value=observed.manager.epoch
        )

    def _blocks(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "kvproof_blocks", "Blocks of the pool by owner", labels=["owner"]
        )
        for owner, count in self._observed.manager.usage()._asdict().items():
            family.add_metric([owner], count)
        yield family
        evicted = {str(group): count for group, count in sorted(self._observed.evicted.items())}
        yield _counter("evicted_blocks", "Blocks that lost what they held", "group", evicted)

    def _checkpoints(self) -> Iterator[Metric]:
        observed = self._observed
        counts = {
            "saved": observed.saved,
            "restored": observed.restored,
            "evicted": observed.evicted_checkpoints,
        }
        yield _counter("checkpoints", "Checkpoints of recurrent states", "event", counts)


def _counter(name: str, words: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"kvproof_{name}", words, labels=[label] if label else [])
    for value, count in counts.items():
        family.add_metric([value] if label else [], count)
    return family
