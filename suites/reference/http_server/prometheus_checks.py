"""Checks of `/metrics`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families

from kvproof.suites.reference.http_server.tracked_requests import Order, TrackedRequest

LEFT = ("kvproof_requests_total{cancelled}", "kvproof_requests_total{failed}")


def read(data: bytes) -> dict[str, float]:
    """Return the figures by name, labels in braces: `kvproof_requests_total{completed}`."""
    found = {
        sample.name + "".join(f"{{{value}}}" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(data.decode())
        for sample in family.samples
    }
    states = ("kvproof_requests_running", "kvproof_requests_waiting")
    found["requests inside"] = sum(found[name] for name in states)
    found["requests left"] = sum(found[name] for name in LEFT)
    return found


def expected(
    tracked: Sequence[TrackedRequest], *, turned_away: int, failed_steps: int
) -> dict[str, float]:
    """Return the figures that follow from the model's work."""
    orders = [order for each in tracked for order in each.orders]
    states = Counter(order.state for order in orders)
    figures = {
        "kvproof_requests_total{completed}": states["completed"],
        "kvproof_requests_total{refused}": states["refused"],
        "requests left": states["cancelled"] + states["failed"],
        "requests inside": states["begun"],
        "kvproof_places_taken": sum(len(each.orders) for each in tracked if not each.closed),
        "kvproof_requests_turned_away_total": turned_away,
        "kvproof_failed_steps_total": failed_steps,
    }
    if not failed_steps:  # after a failed step its admissions are unknown
        figures |= {"kvproof_requests_total{cancelled}": states["cancelled"]} | _tokens(orders)
    return {name: float(value) for name, value in figures.items()}


def _tokens(orders: Sequence[Order]) -> dict[str, int]:
    ran = [order for order in orders if order.hit is not None]
    cached = sum(order.hit or 0 for order in ran)
    return {
        "kvproof_tokens_total{prompt}": sum(len(order.prompt) for order in ran),
        "kvproof_tokens_total{cached}": cached,
        "kvproof_hit_tokens_total{new}": cached,
        "kvproof_tokens_total{generated}": sum(o.said for o in ran if o.state != "begun"),
    }
