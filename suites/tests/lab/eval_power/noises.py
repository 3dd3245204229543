"""Correct engines as they differ: largest differences of hits and of recomputed answers.

Each model draws a group of documents: so many answers of each from the cache, and so many
recomputed ones. No model depends on the cache, so that every FAIL is a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.eval.divergence.judge import judge
from kvproof.eval.divergence.records import Evidence, Options, Pair, Role, Served
from kvproof.eval.run.records import Abilities, Phase

Values: TypeAlias = npt.NDArray[np.float64]
Random: TypeAlias = np.random.Generator


class Group(NamedTuple):
    """Documents that are asked alike."""

    documents: int
    hits: int
    controls: int
    situations: tuple[str, ...]
    long: bool = False


USUAL = ("short", "prompt", "fresh", "alone")
GROUPS = (
    Group(24, 6, 8, USUAL),
    Group(8, 2, 3, (*USUAL, "one-block")),
    Group(8, 3, 3, (*USUAL, "partial-block")),
    Group(8, 2, 3, ("1k", "prompt", "third-use"), long=True),
    Group(8, 2, 3, ("8k", "prompt", "fresh"), long=True),
    Group(8, 2, 3, ("generated", "both", "short")),
    Group(8, 2, 3, ("short", "old", "idle")),
    Group(64, 1, 3, ("short", "64-at-once", "8-at-once", "2-at-once")),
    Group(8, 2, 3, ("short", "salt", "other-namespace")),
)
"""A run of about the default size."""

Draw: TypeAlias = Callable[[Random, Group], tuple[Values, Values]]
"""Returns differences of hits [documents, hits] and of recomputed answers."""


def _alike(one: Callable[[Random, tuple[int, int]], Values]) -> Draw:
    """Hits and recomputed answers are drawn from one distribution."""

    def draw(rng: Random, group: Group) -> tuple[Values, Values]:
        count = group.documents
        return one(rng, (count, group.hits)), one(rng, (count, group.controls))

    return draw


def _small(rng: Random, size: tuple[int, int], scale: float = 1e-3) -> Values:
    return rng.lognormal(np.log(scale), 0.6, size)


def _mixed(share: float, low: float = 0.5, high: float = 12.0, scale: float = 1e-2) -> Draw:
    """Many small differences, and rare large ones."""

    def one(rng: Random, size: tuple[int, int]) -> Values:
        rare = rng.random(size) < share
        return np.where(rare, rng.uniform(low, high, size), _small(rng, size, scale))

    return _alike(one)


def _by_document(share: float) -> Draw:
    """Documents at a near tie: each answer of them falls either way."""

    def draw(rng: Random, group: Group) -> tuple[Values, Values]:
        tied = rng.random((group.documents, 1)) < share

        def side(count: int) -> Values:
            size = (group.documents, count)
            off = tied & (rng.random(size) < 0.5)
            return np.where(off, rng.uniform(1, 8, size), _small(rng, size, 1e-2))

        return side(group.hits), side(group.controls)

    return draw


def _silent(share: float, small: float = 0.0, low: float = 1.0, *, whole: bool = False) -> Draw:
    """Recomputed answers repeat bit for bit; hits have other chunks, and rare large differences.

    `whole`: all hits of a document are off together, since it was computed once.
    """

    def draw(rng: Random, group: Group) -> tuple[Values, Values]:
        size = (group.documents, group.hits)
        rare = rng.random((group.documents, 1) if whole else size) < share
        usual = _small(rng, size, small) if small else np.zeros(size)
        return np.where(rare, rng.uniform(low, 10, size), usual), np.zeros(
            (group.documents, group.controls)
        )

    return draw


def _longer(rng: Random, group: Group) -> tuple[Values, Values]:
    """Long prompts differ by nats in most answers, short ones hardly."""
    shares = 0.7 if group.long else 0.001
    return _mixed(shares)(rng, group)


def _shorter_chunks(rng: Random, group: Group) -> tuple[Values, Values]:
    """Hits differ 30 times as much as recomputed answers, as their sums have another order."""
    hits, controls = _alike(_small)(rng, group)
    return 30 * hits, controls


def _odd_base(rng: Random, group: Group) -> tuple[Values, Values]:
    """One answer of 20 that all others are held against is itself the odd one."""
    hits, controls = _alike(_small)(rng, group)
    odd = np.where(rng.random((group.documents, 1)) < 0.05, 5.0, 0.0)
    return hits + odd, controls + odd


MODELS: dict[str, Draw] = {
    "exact": _alike(lambda _, size: np.zeros(size)),
    "float32": _alike(lambda rng, size: _small(rng, size, 8e-6)),
    "16 bits": _alike(lambda rng, size: _small(rng, size, 1e-2)),
    "Student's t with 2 degrees": _alike(lambda rng, size: abs(rng.standard_t(2, size)) * 0.01),
    "Cauchy": _alike(lambda rng, size: abs(rng.standard_cauchy(size)) * 0.01),
    "experts, 0.1 % of answers off": _mixed(0.001),
    "experts, 1 % of answers off": _mixed(0.01),
    "experts, 5 % of answers off": _mixed(0.05),
    "experts, 30 % of answers off": _mixed(0.3),
    "1 % off over a floor of 0": _alike(
        lambda rng, size: np.where(rng.random(size) < 0.01, rng.uniform(1, 9, size), 0.0)
    ),
    "float32, 1 % of answers off": _mixed(0.01, scale=8e-6),
    "near ties in 5 % of documents": _by_document(0.05),
    "long prompts off in 70 %": _longer,
    "the compared answer odd in 5 %": _odd_base,
    "hits of shorter chunks, 30 times the floor": _shorter_chunks,
    "floor 0, hits of shorter chunks": _silent(0.0, small=0.05),
    "floor 0, 0.8 % of hits off": _silent(0.008),
    "floor 0, 1 % of hits off, shorter chunks": _silent(0.01, small=0.05),
    "floor 0, all hits of 1 % of documents off": _silent(0.01, whole=True),
    "floor 0, 0.1 % of hits off, float32": _silent(0.001, small=8e-6),
}
"""Name -> a correct engine."""


def broken(draw: Draw, struck: str, every: int = 1) -> Draw:
    """Add a wrong block to every so-many-th hit, of one situation or (empty) of all."""

    def strike(rng: Random, group: Group) -> tuple[Values, Values]:
        hits, controls = draw(rng, group)
        if struck and struck not in group.situations:
            return hits, controls
        off = rng.random(hits.shape) < 1 / every
        return np.where(off, rng.uniform(5, 12, hits.shape), hits), controls

    return strike


def verdict(draw: Draw, rng: Random, **options: bool) -> str:
    """Judge one run of a default size."""
    records: list[Evidence] = [served("off", "base"), served("on", "judged")]
    number = 0
    for group in GROUPS:
        hits, controls = draw(rng, group)
        for mine, theirs in zip(hits.tolist(), controls.tolist(), strict=True):
            records += [pair("on", number, each, "warm", group.situations) for each in mine]
            records += [pair("off", number, each, "again") for each in theirs]
            number += 1
    return judge(Options(documents=number, **options), records).verdict


def served(name: str, role: Role) -> Served:
    """Describe a server of a simulated run."""
    return Served(
        configuration=name, role=role, url="", model="m", abilities=ABLE, engine="", version="",
        prefix_cache=role == "judged", settings={}, command=(),
    )  # fmt: skip


def pair(
    name: str, number: int, nats: float, phase: Phase, situations: tuple[str, ...] = ()
) -> Pair:
    """Return an answer with one place, a control if it was recomputed."""
    control = phase == "again"
    return Pair(
        configuration=name, control=control, phase=phase, text="whole", number=number,
        prompt_tokens=1000, cached_tokens=0 if control else 960, expected_cached=0, places=(0,),
        largest=(nats,), kl=(nats * nats,), flips=0, left=0, requests=1, seconds=0.0,
        situations=situations,
    )  # fmt: skip


ABLE = Abilities(top=5, token_ids=True, ignore_eos=True, salt=True)
