"""Figures of `/metrics`, in Prometheus's text format."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import TypeAlias

from kvproof.suites.probe.server_connection import ServerConnection

Figures: TypeAlias = dict[str, float]
"""Name with labels -> value."""

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})?\s+(\S+)")


def read_figures(line: ServerConnection) -> Figures:
    """Read `/metrics`. Raises NoAnswer, ServerUnreachable."""
    found: Figures = {}
    for text in line.get("/metrics", whole=True).decode(errors="replace").splitlines():
        match = _LINE.match(text)
        if match is None:
            continue
        with suppress(ValueError):
            value = float(match[3])
            if math.isfinite(value):
                found[match[1] + (match[2] or "")] = value
    return found


def total(figures: Figures, name: str) -> float | None:
    """Sum a family, or its entries with a label, as in `name{label="value"}`; None: absent."""
    family, _, label = name.partition("{")
    wanted = label.rstrip("}")
    values = [
        value
        for key, value in figures.items()
        if key.partition("{")[0] == family and wanted in key.partition("{")[2]
    ]
    return sum(values) if values else None


def lost(before: Figures, after: Figures, names: Iterable[str]) -> list[str]:
    """Return the families that have disappeared."""
    return [n for n in names if total(before, n) is not None and total(after, n) is None]


def grown(before: Figures, after: Figures, name: str) -> float:
    """Return the growth of a present family; 0 for one that never was there."""
    return (total(after, name) or 0.0) - (total(before, name) or 0.0)
