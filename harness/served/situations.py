"""Situations in which a served cache can be wrong: one registry for every verdict on a server.

A verdict without a situation has not judged it, so each lists what occurred and names what did not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias

from kvproof.harness.errors import UsageError

Family: TypeAlias = Literal[
    "length", "content", "age", "pressure", "company", "identity", "life", "tier", "count"
]

Means: TypeAlias = Literal[
    "", "1k", "8k", "32k", "longest", "salt", "adapter", "image", "reset", "restart", "weights",
    "sleep", "pool", "counters", "host", "disk", "peer",
]  # fmt: skip
"""The needs of a client that brings a situation about; empty: nothing but requests."""


class Situation(NamedTuple):
    """A kind of request to a cache."""

    family: Family
    phrase: str
    """A noun phrase for reports."""
    means: Means = ""


SITUATIONS: Mapping[str, Situation] = {
    "one-block": Situation("length", "a hit of exactly one block"),
    "partial-block": Situation("length", "a prompt that parts from a cached one inside a block"),
    "short": Situation("length", "a hit of less than 1,024 tokens"),
    "1k": Situation("length", "a hit of 1,024 tokens or more", "1k"),
    "8k": Situation("length", "a hit of 8,192 tokens or more", "8k"),
    "32k": Situation("length", "a hit of 32,768 tokens or more", "32k"),
    "longest": Situation("length", "a hit of nearly the longest prompt", "longest"),
    "prompt": Situation("content", "a hit within the prompt of an earlier request"),
    "generated": Situation("content", "a hit on a whole block of generated tokens"),
    "both": Situation("content", "a hit across the border of prompt and answer"),
    "fresh": Situation("age", "a hit on an entry used within the last second"),
    "old": Situation("age", "a hit on an entry that was not used for 20 seconds"),
    "third-use": Situation("age", "the third hit on an entry, or a later one"),
    "idle": Situation("age", "the first hit after 5 seconds without a request"),
    "evicted": Situation("pressure", "a hit soon after an eviction", "pool"),
    "pool-full": Situation("pressure", "a hit while the pool was full", "counters"),
    "preempted": Situation("pressure", "a hit while a request was preempted", "counters"),
    "resumed": Situation("pressure", "a hit while a preempted request was resumed", "counters"),
    "alone": Situation("company", "a hit of a request alone"),
    "2-at-once": Situation("company", "a hit beside one other request"),
    "8-at-once": Situation("company", "a hit among 8 requests at once"),
    "64-at-once": Situation("company", "a hit among 64 requests at once"),
    "twins": Situation("company", "equal new prompts at the same time"),
    "long-beside-short": Situation("company", "a hit beside a request 8 times as long or short"),
    "salt": Situation("identity", "a hit under a cache_salt", "salt"),
    "adapter": Situation("identity", "a hit under an adapter", "adapter"),
    "image": Situation("identity", "a hit with an image", "image"),
    "swapped-images": Situation("identity", "two images in the other order", "image"),
    "other-namespace": Situation("identity", "equal tokens of another salt or adapter", "salt"),
    "reset": Situation("life", "a hit after the cache was reset", "reset"),
    "weights": Situation("life", "a hit after the weights changed", "weights"),
    "restart": Situation("life", "a hit after the server was restarted", "restart"),
    "sleep": Situation("life", "a hit after sleep and waking up", "sleep"),
    "host": Situation("tier", "a hit from host memory", "host"),
    "disk": Situation("tier", "a hit from disk", "disk"),
    "peer": Situation("tier", "a hit from another server", "peer"),
    "100th": Situation("count", "a hit after 100 requests or more"),
    "500th": Situation("count", "a hit after 500 requests or more"),
    "1000th": Situation("count", "a hit after 1,000 requests or more"),
}
"""Name, the word of `--require` -> situation."""

LENGTHS: Mapping[str, int] = {"1k": 1024, "8k": 8192, "32k": 32_768}
"""Situation -> least tokens of the hit."""

COMPANY: Mapping[str, int] = {"2-at-once": 2, "8-at-once": 8, "64-at-once": 64}
"""Situation -> least requests at the same time, the own one included."""

COUNTS: Mapping[str, int] = {"100th": 100, "500th": 500, "1000th": 1000}
"""Situation -> least requests before."""

UNSURE: frozenset[Means] = frozenset({"pool", "counters", "host", "disk", "peer"})
"""Means that bring a situation about only where the pool is small enough; `all` is without them."""

ALL, NONE = "all", "none"
"""Words of `--require` besides names: all that the server can do; nothing."""


def doable(means: Iterable[Means]) -> tuple[str, ...]:
    """Return the situations that can be brought about with these means."""
    able = {"", *means}
    return tuple(name for name, each in SITUATIONS.items() if each.means in able)


def tried() -> tuple[str, ...]:
    """Return the situations that `all` brings about where it can, and does not require."""
    return tuple(name for name, each in SITUATIONS.items() if each.means in UNSURE)


def required(words: Iterable[str], means: Iterable[Means]) -> tuple[str, ...]:
    """Read `--require`: names, families, `all` or `none`. Raises UsageError."""
    found: dict[str, None] = {}
    for word in words:
        named = [name for name, each in SITUATIONS.items() if word in (name, each.family)]
        if word == ALL:
            named = [*doable(set(means) - UNSURE)]
        elif not named and word != NONE:
            families = dict.fromkeys(each.family for each in SITUATIONS.values())
            raise UsageError(
                f"--require {word[:40]!r} names no situation",
                f"{ALL}, {NONE}, a family ({', '.join(families)}) or of {', '.join(SITUATIONS)}",
            )
        found |= dict.fromkeys(named)
    return tuple(found)


def unseen(names: Iterable[str], seen: Mapping[str, int] | Counter[str]) -> tuple[str, ...]:
    """Return those of `names` that never occurred."""
    return tuple(name for name in names if not seen.get(name))
