"""Metrics of `/metrics`: the families of the cache (V2) and of the server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kvproof.reference.observe.cache_metrics import CacheMetrics
from kvproof.reference.observe.prometheus import CacheCollector
from kvproof.reference.server.service import Service
from kvproof.reference.tiers.metrics import TierCollector


def make_registry(service: Service) -> CollectorRegistry:
    """Return a registry of cache, tiers and server, read when asked; observes the cache."""
    registry = CollectorRegistry()
    registry.register(CacheCollector(CacheMetrics(service.engine.cache)))
    registry.register(ServerCollector(service))
    if service.engine.tiers is not None:
        registry.register(TierCollector(service.engine.tiers))
    ProcessCollector(registry=registry)
    return registry


class ServerCollector(Collector):
    """Yields requests, tokens and failures of one service."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Read everything now."""
        service, loop = self._service, self._service.loop
        running, waiting = loop.counts
        yield _gauge("requests_running", "Requests that steps compute", running)
        yield _gauge("requests_waiting", "Accepted requests that wait for room", waiting)
        yield _gauge("places", "Requests that may be under way at once", service.places)
        yield _gauge("places_taken", "Requests under way, tokenization included", service.taken)
        yield _counter("requests", "Requests that have ended", "outcome", loop.outcomes)
        yield _counter(
            "requests_turned_away", "Requests answered with 429", "", {"": service.turned_away}
        )
        yield _counter("tokens", "Tokens of requests that ran", "kind", loop.tokens)
        yield _counter("failed_steps", "Steps that raised", "", {"": loop.failures})


def _gauge(name: str, words: str, value: int) -> Metric:
    return GaugeMetricFamily(f"kvproof_{name}", words, value=value)


def _counter(name: str, words: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"kvproof_{name}", words, labels=[label] if label else [])
    for value, count in sorted(counts.items()):
        family.add_metric([value] if label else [], count)
    return family
