"""Prometheus metrics of a cache server, by the official client (V2, G8).

    registry.register(ServerCollector(lambda: server.snapshot))

The client is the extra `metrics`; without it, importing this module raises ImportError
with the command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvproof.reference.cache_server.report import Report

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ImportError(
        "metrics need the Prometheus client: pip install 'kvproof[metrics]'"
    ) from error

_GAUGES = {
    "capacity_bytes": ("capacity", "Bytes of the arena"),
    "used_bytes": ("used", "Bytes of the arena that objects of any state take"),
    "largest_free_bytes": ("largest_free", "Bytes of the largest free extent"),
    "objects": ("objects", "Objects that can be read"),
    "payload_bytes": ("payload", "Bytes of the objects that can be read, without rounding"),
    "leased_objects": ("leased", "Objects under a lease"),
    "reserved_objects": ("reserved", "Objects that are being written"),
    "dropped_objects": ("dropped", "Forgotten objects that a client still holds"),
    "pinned_objects": ("pinned", "Objects that pins keep"),
    "pinned_bytes": ("pinned_bytes", "Bytes of the objects that pins keep"),
}
_COUNTERS = {
    "stored_objects": ("stored", "Objects that were committed"),
    "evicted_objects": ("evicted", "Objects that made room for others"),
    "hits": ("hits", "Keys that were acquired"),
    "misses": ("misses", "Keys that were to be acquired and not there"),
}


class ServerCollector(Collector):
    """Yields the families of one server; names begin with `kvproof_cache_server_`."""

    def __init__(self, report: Callable[[], Report]) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Read one report."""
        report = self._report()
        for name, (field, words) in _GAUGES.items():
            yield GaugeMetricFamily(_full(name), words, value=getattr(report, field))
        for name, (field, words) in _COUNTERS.items():
            yield CounterMetricFamily(_full(name), words, value=getattr(report, field))
        refused = CounterMetricFamily(_full("refused"), "What was refused", labels=["reason"])
        for reason, count in sorted(report.refused.items()):
            refused.add_metric([reason], count)
        yield refused
        sessions = GaugeMetricFamily(_full("sessions"), "Clients", labels=["state"])
        lapsed = sum(session.lapsed for session in report.sessions)
        sessions.add_metric(["live"], len(report.sessions) - lapsed)
        sessions.add_metric(["silent"], lapsed)
        yield sessions


def _full(name: str) -> str:
    return f"kvproof_cache_server_{name}"
