"""Differences of groups of answers in figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from kvproof.eval.divergence.counts import Values
from kvproof.eval.divergence.records import Pair

K = TypeVar("K", bound=Hashable)


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Differences over the places of some answers."""

    name: str
    answers: int
    hits: int
    """Answers of which half the prompt or more was cached."""
    places: int
    flips: int
    largest: float
    p999: float
    mean_kl: float
    beyond: int = 0
    """Answers with a place beyond the limit."""


def figures(name: str, found: Sequence[Pair], limit: float = math.inf) -> Figures:
    """Sum up answers."""
    return _figures(
        name,
        np.array([value for each in found for value in each.largest]),
        np.array([value for each in found for value in each.kl]),
        answers=len(found),
        hits=sum(each.hit for each in found),
        flips=sum(each.flips for each in found),
        beyond=sum(each.worst > limit for each in found),
    )


def _figures(name: str, nats: Values, kl: Values, **sums: int) -> Figures:
    return Figures(
        name=name,
        places=len(nats),
        largest=float(nats.max(initial=0.0)),
        p999=float(np.quantile(nats, 0.999)) if len(nats) else 0.0,
        mean_kl=float(kl.mean()) if len(kl) else 0.0,
        **sums,
    )


def groups(found: Sequence[Pair], limit: float) -> dict[str, tuple[Figures, ...]]:
    """Sum up answers by pass, by length after the hit, by distance from its edge."""
    by_pass = by_key(found, lambda each: str(each.phase))
    hits = [each for each in found if each.hit and each.prompt_tokens]
    edge = by_key(hits, _computed)
    return {
        "pass": tuple(figures(name, each, limit) for name, each in by_pass.items()),
        "prompt tokens computed behind the hit": tuple(
            figures(name, edge[name], limit) for name in _COMPUTED.values() if name in edge
        ),
        "distance from the hit's edge": tuple(_by_distance(hits, limit)),
    }


_COMPUTED = {1: "1", 16: "2 to 16", 64: "17 to 64", 256: "65 to 256", math.inf: "more"}
_DISTANCES = {1: "1", 8: "2 to 8", 32: "9 to 32", 128: "33 to 128", math.inf: "more"}


def _computed(each: Pair) -> str:
    return next(name for most, name in _COMPUTED.items() if _tail(each) <= most)


def _by_distance(hits: Sequence[Pair], limit: float) -> Iterator[Figures]:
    """Place 0 of an answer is computed from the last token of the prompt."""
    answer = np.array([n for n, each in enumerate(hits) for _ in each.places])
    far = np.array([_tail(each) + place for each in hits for place in each.places])
    nats = np.array([value for each in hits for value in each.largest])
    kl = np.array([value for each in hits for value in each.kl])
    at = np.searchsorted(list(_DISTANCES), far)
    for group, name in enumerate(_DISTANCES.values()):
        if (here := at == group).any():
            yield _figures(
                name,
                nats[here],
                kl[here],
                answers=(count := len(np.unique(answer[here]))),
                hits=count,
                flips=0,
                beyond=len(np.unique(answer[here & (nats > limit)])),
            )


def _tail(each: Pair) -> int:
    return (each.prompt_tokens or 0) - (each.cached_tokens or 0)


def by_key(found: Iterable[Pair], key: Callable[[Pair], K]) -> dict[K, list[Pair]]:
    """Group answers by a key."""
    by: dict[K, list[Pair]] = {}
    for each in found:
        by.setdefault(key(each), []).append(each)
    return by
