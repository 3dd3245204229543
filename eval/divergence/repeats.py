"""Whether recomputed answers repeat, and the cause if they do not.

An engine that promises bits is judged by bits, so the answers that count as right must repeat bit
for bit. A new `cache_salt` recomputes a prompt only if it changes nothing except the request's
reads of the cache. No rule makes it so: a server may draw from it, or route by it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple, TypeAlias

from kvproof.eval.divergence.distributions import difference
from kvproof.eval.run.records import Cause
from kvproof.harness.http.completion_client import Reply

Ask: TypeAlias = Callable[[str], Reply]
"""Answers one prompt under a salt."""

TIMES = 3
"""Answers to each prompt that are compared."""


class Gap(NamedTuple):
    """Recomputed answers to one prompt that differ."""

    cause: Cause
    largest: float
    """Largest difference in a place."""


def gap(ask: Ask, salts: Sequence[str]) -> Gap | None:
    """Compare the answers under these salts. Equal salts recompute in another way."""
    first = [ask(salt) for salt in salts]
    largest = max(apart(one, other) for one, other in combinations(first, 2))
    if not largest:
        return None
    if len(set(salts)) < len(salts):
        return Gap("server", largest)
    again = [ask(salt) for salt in salts]
    repeat = not any(map(apart, first, again))
    return Gap("salt" if repeat else "server", largest)


def apart(one: Reply, other: Reply) -> float:
    """Return the largest difference after equal tokens; 1 if only their ends differ."""
    found = 0.0
    for before, after in zip(one.tokens, other.tokens, strict=False):
        found = max(found, difference(before, after).largest)
        if before.token != after.token:
            return found
    return found or float(len(one.tokens) != len(other.tokens))
