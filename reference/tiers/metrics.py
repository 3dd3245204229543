"""Prometheus metrics of the tiers below a pool, by the official client (V2).

    registry.register(TierCollector(engine.tiers))

Everything is read when Prometheus asks. The client is the extra `metrics`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from kvproof.reference.tiers.below import DISK, HOST
from kvproof.reference.tiers.disk_tier import DiskTier
from kvproof.reference.tiers.host_tier import HostTier
from kvproof.reference.tiers.tiers import Tiers

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "metrics need the Prometheus client: pip install 'kvproof[metrics]'"
    ) from error

_WORDS = {
    "hits": "Objects that were asked for and are here",
    "misses": "Objects that were asked for and are not here",
    "stored": "Objects taken in",
    "stored_bytes": "Bytes taken in",
    "read_bytes": "Bytes given out",
    "evicted": "Objects that left for others",
    "left_out": "Objects that found no room",
    "errors": "Failed reads and writes, and objects that were not whole",
}


class TierCollector(Collector):
    """Yields the families of all tiers of one cache; names begin with `kvproof_tier_` (V2)."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def collect(self) -> Iterator[Metric]:
        """Read everything now (V1, V2)."""
        yield from self._counts()
        yield from self._sizes()
        yield self._loaded()
        yield GaugeMetricFamily(
            "kvproof_tier_loading_requests",
            "Requests whose objects are on their way",
            value=self._tiers.num_loading,
        )
        yield CounterMetricFamily(
            "kvproof_tier_abandoned_loads",
            "Requests that did not wait for their objects any longer",
            value=self._tiers.abandoned,
        )
        if self._tiers.remote is not None:
            yield CounterMetricFamily(
                "kvproof_tier_remote_failures",
                "Calls that ended without the remote store",
                value=self._tiers.remote.failures,
            )

    def _levels(self) -> dict[str, HostTier | DiskTier]:
        host, disk = self._tiers.host, self._tiers.disk
        return {HOST: host} if disk is None else {HOST: host, DISK: disk}

    def _counts(self) -> Iterator[Metric]:
        levels = {name: asdict(tier.counts) for name, tier in self._levels().items()}
        for count, words in _WORDS.items():
            family = CounterMetricFamily(f"kvproof_tier_{count}", words, labels=["tier"])
            for name, counts in levels.items():
                family.add_metric([name], counts[count])
            yield family

    def _sizes(self) -> Iterator[Metric]:
        for field, words in (
            ("objects", "Objects that are here"),
            ("bytes", "Bytes of objects that are here"),
            ("capacity", "Bytes that may be here"),
            ("pinned", "Objects that are being read"),
        ):
            family = GaugeMetricFamily(f"kvproof_tier_resident_{field}", words, labels=["tier"])
            for name, tier in self._levels().items():
                family.add_metric([name], getattr(tier.status(), field))
            yield family

    def _loaded(self) -> Metric:
        family = CounterMetricFamily(
            "kvproof_tier_hit_tokens",
            "Prompt tokens that were hit because a tier had them",
            labels=["tier", "request"],
        )
        for request, loaded in (
            ("new", self._tiers.loaded),
            ("resumed", self._tiers.loaded_again),
        ):
            for name in (HOST, *self._tiers.host.below.stores):
                family.add_metric([name, request], loaded[name])
        return family
