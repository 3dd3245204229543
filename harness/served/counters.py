"""Situations that only the counters of a server show: preemption, a full pool, tiers.

They are those of `/metrics`, in Prometheus's text format, under the names of known engines.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from kvproof.harness.served.situations import Means

Figures: TypeAlias = Mapping[str, float]
"""Name with labels -> value."""

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{.*\})?\s+(\S+)")


def figures(text: str) -> dict[str, float]:
    """Read the text of `/metrics`; lines that are no finite number are left out."""
    found: dict[str, float] = {}
    for match in filter(None, map(_LINE.match, text.splitlines())):
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


class _Names(NamedTuple):
    """Names of one engine."""

    resumed: str
    """Counter that grows when a preempted request goes on."""
    held: str
    """Gauge of what requests hold of the pool, in blocks or as a share."""
    pool: str = ""
    """Gauge of the whole pool; empty: `held` is a share."""
    tiers: Mapping[Means, str] = {}
    """Situation, which is its own means -> counter of tokens that a tier gave."""


_TIER = 'kvproof_tier_hit_tokens_total{{request="new",tier="{}"}}'

_NAMES = (
    _Names(
        resumed='kvproof_query_tokens_total{request="resumed"}',
        held='kvproof_blocks{owner="held"}',
        pool="kvproof_blocks",
        tiers={
            "host": _TIER.format("host"),
            "disk": _TIER.format("disk"),
            "peer": _TIER.format("remote"),
        },
    ),
    _Names(resumed="vllm:num_preemptions_total", held="vllm:kv_cache_usage_perc"),
)

_FULL = 0.9
"""Share of the pool that is held when it counts as full."""


def means(found: Figures) -> Iterator[Means]:
    """Yield the means that counters are: of preemption and the pool, and of each tier."""
    for names in _NAMES:
        if total(found, names.held) is not None:
            yield "counters"
        yield from (tier for tier, name in names.tiers.items() if total(found, name) is not None)


def occurred(before: Figures, after: Figures) -> Iterable[str]:
    """Yield the situations between two looks, for a request that was under way meanwhile."""
    for names in _NAMES:
        if grown(before, after, names.resumed) > 0:
            yield from ("preempted", "resumed")
        if max(_share(before, names), _share(after, names)) >= _FULL:
            yield "pool-full"
        for tier, counter in names.tiers.items():
            if grown(before, after, counter) > 0:
                yield tier


def grown(before: Figures, after: Figures, name: str) -> float:
    """Return the growth of a present family; 0 for one that never was there."""
    return (total(after, name) or 0.0) - (total(before, name) or 0.0)


def _share(found: Figures, names: _Names) -> float:
    held = total(found, names.held) or 0.0
    return held / (total(found, names.pool) or 1.0) if names.pool else held
