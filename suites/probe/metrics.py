"""Figures of `/metrics`, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.harness.served.counters import Figures, figures, total
from kvproof.suites.probe.server_connection import ServerConnection


def read_figures(line: ServerConnection) -> Figures:
    """Read `/metrics`. Raises NoAnswer, ServerUnreachable."""
    return figures(line.get("/metrics", whole=True).decode(errors="replace"))


def lost(before: Figures, after: Figures, names: Iterable[str]) -> list[str]:
    """Return the families that have disappeared."""
    return [n for n in names if total(before, n) is not None and total(after, n) is None]
