"""Facts of a generated document: things, their places, their keepers, the keepers' places."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from kvproof.eval.benchmark.data import Difficulty
from kvproof.eval.benchmark.words import filler, names, people, places

_Line = TypeVar("_Line")


@dataclass(frozen=True)
class FactBase:
    """Facts of one document, by number of the thing. All names differ.

    Position, order and frequency are the same for all things, so that only the facts identify the
    thing of the question.
    """

    title: str
    things: tuple[str, ...]
    sites: tuple[str, ...]
    """Place of each thing."""
    keepers: tuple[str, ...]
    desks: tuple[str, ...]
    """Place of each thing's keeper."""

    def answers(self, difficulty: Difficulty) -> tuple[str, ...]:
        """Answer for each thing: its place, or with `hard` its keeper's place."""
        return self.sites if difficulty == "easy" else self.desks


def draw_facts(rng: random.Random, size: int) -> FactBase:
    """Draw the facts of `size` things."""
    rooms = places(rng, 2 * size)
    title, *things = names(rng, size + 1)
    return FactBase(
        title=title,
        things=tuple(things),
        sites=tuple(rooms[:size]),
        keepers=tuple(people(rng, size)),
        desks=tuple(rooms[size:]),
    )


def scattered(rng: random.Random, facts: list[str], fill: int) -> list[str]:
    """Facts in random order, with `fill` filler sentences at random places."""
    lines = facts + [_sentence(rng) for _ in range(fill)]
    rng.shuffle(lines)
    return lines


def _sentence(rng: random.Random) -> str:
    text = filler(rng)
    return text[0].upper() + text[1:]


def parts(lines: list[_Line], size: int) -> Iterator[list[_Line]]:
    """Lines in parts of `size`; the last one is shorter."""
    rest = iter(lines)
    while piece := list(islice(rest, size)):
        yield piece
