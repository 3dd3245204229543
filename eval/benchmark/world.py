"""What a generated document says: things, where each is, who keeps it, where each keeper is."""

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
class World:
    """Facts of one document, by the number of the thing. All names differ.

    Position, order and frequency are the same for all things, so that nothing but the facts
    distinguishes the one that is asked for.
    """

    title: str
    things: tuple[str, ...]
    sites: tuple[str, ...]
    """Where each thing is."""
    keepers: tuple[str, ...]
    desks: tuple[str, ...]
    """Where the keeper of each thing is found."""

    def answers(self, difficulty: Difficulty) -> tuple[str, ...]:
        """What answers a question, by thing: one step, or two over the keeper."""
        return self.sites if difficulty == "easy" else self.desks


def make_world(rng: random.Random, size: int) -> World:
    """Draw a world of `size` things."""
    rooms = places(rng, 2 * size)
    title, *things = names(rng, size + 1)
    return World(
        title=title,
        things=tuple(things),
        sites=tuple(rooms[:size]),
        keepers=tuple(people(rng, size)),
        desks=tuple(rooms[size:]),
    )


def scattered(rng: random.Random, facts: list[str], fill: int) -> list[str]:
    """Facts in random order, with `fill` sentences without meaning at random places between."""
    lines = facts + [_sentence(rng) for _ in range(fill)]
    rng.shuffle(lines)
    return lines


def _sentence(rng: random.Random) -> str:
    text = filler(rng)
    return text[0].upper() + text[1:]


def parts(lines: list[_Line], size: int) -> Iterator[list[_Line]]:
    """Lines in pieces of `size`, the last one shorter."""
    rest = iter(lines)
    while piece := list(islice(rest, size)):
        yield piece
