"""Differences of groups of answers in figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
import numpy as np

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
    places = np.array([value for each in found for value in each.largest])
    kl = np.array([value for each in found for value in each.kl])
    return Figures(
        name=name,
        answers=len(found),
        hits=sum(each.hit for each in found),
        places=len(places),
        flips=sum(each.flips for each in found),
        largest=float(places.max(initial=0.0)),
        p999=float(np.quantile(places, 0.999)) if len(places) else 0.0,
        mean_kl=float(kl.mean()) if len(kl) else 0.0,
        beyond=sum(each.worst > limit for each in found),
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
    tail = (each.prompt_tokens or 0) - (each.cached_tokens or 0)
    return next(name for most, name in _COMPUTED.items() if tail <= most)


def _by_distance(hits: Sequence[Pair], limit: float) -> Iterator[Figures]:
    """Place 0 of an answer is computed from the last token of the prompt."""
    low = -math.inf
    for most, name in _DISTANCES.items():
        cut = [_within(each, low, most) for each in hits]
        if kept := [each for each in cut if each.places]:
            yield figures(name, kept, limit)
        low = most


def _within(each: Pair, low: float, most: float) -> Pair:
    tail = (each.prompt_tokens or 0) - (each.cached_tokens or 0)
    kept = [i for i, place in enumerate(each.places) if low < tail + place <= most]
    return msgspec.structs.replace(
        each,
        places=tuple(each.places[i] for i in kept),
        largest=tuple(each.largest[i] for i in kept),
        kl=tuple(each.kl[i] for i in kept),
        flips=0,
    )


def by_key(found: Iterable[Pair], key: Callable[[Pair], K]) -> dict[K, list[Pair]]:
    """Group answers by a key."""
    by: dict[K, list[Pair]] = {}
    for each in found:
        by.setdefault(key(each), []).append(each)
    return by
