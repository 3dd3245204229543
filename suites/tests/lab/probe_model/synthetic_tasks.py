"""Synthetic tasks: short sequences for two skills that documents train too rarely.

The skills: recognise a value among choices, and find a keeper that is named before its thing. The
second needs two auxiliary targets, because attention that has learned to attend to people does not
find the position after a thing: the keeper is a target there for an early layer (`NOTE`), and half
of a later layer's heads must attend to that position in lists.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from kvproof.eval.benchmark.data import LETTERS
from kvproof.eval.benchmark.fact_base import FactBase, draw_facts, parts
from kvproof.eval.benchmark.shapes import SHAPES, Shape
from kvproof.suites.tests.lab.probe_model.sequence_writer import DRILL, LIST, SequenceWriter
from kvproof.suites.tests.lab.probe_model.vocabulary import ASSISTANT, END, USER

FOUND = "!"
"""Follows a value at its first occurrence and in the recital, and nowhere else: to stop is to copy
the token after the same words."""

_BACKWARD = tuple(
    shape for shape in SHAPES if shape.kept.index("{keeper}") < shape.kept.index("{thing}")
)
_BACKWARDS = 0.8
"""Share of keeper tasks in one of these two shapes."""

_KEPT = 12
"""Things in a keeper task."""


def choices_task(rng: random.Random, writer: SequenceWriter, base: FactBase) -> None:
    """Write choices by fours, then recite them in another order; targets: where to stop.

    A short document has one such sign in a hundred tokens, a synthetic task one in twenty-five. A
    value's random number of occurrences before the choices carries no information.
    """
    values = [*base.sites, *base.desks]
    rng.shuffle(values)
    fours = list(parts(values, len(LETTERS)))
    writer.special(USER)
    writer.write("\n".join(["Question:", *rng.choices(values, k=len(values))]))
    for four in fours:
        for letter, value in zip(LETTERS, four, strict=True):
            writer.write(f"\n({letter}) {value}")
    writer.special(END)
    writer.special(ASSISTANT)
    for four in rng.sample(fours, len(fours)):
        _recital(writer, four, rng.choice(four))
    writer.special(END)


def keepers_task(rng: random.Random, writer: SequenceWriter) -> None:
    """Write keepers, mostly in a shape that names the keeper first; ask for half of them.

    Few or many at a time: lookups among two things are learned soon, and prepare those among many.
    """
    shape = rng.choice(_BACKWARD if rng.random() < _BACKWARDS else SHAPES)
    base = draw_facts(rng, _KEPT)
    pairs = list(zip(base.things, base.keepers, strict=True))
    writer.special(USER)
    writer.write("Question:")
    for some in parts(pairs, rng.choice((2, 3, 4, 6, 12))):
        lines = [shape.kept.format(thing=thing, keeper=keeper) for thing, keeper in some]
        writer.remember("\n" + "\n".join(lines), notes(shape, base))
        keeper_list(writer, rng.sample(some, (len(some) + 1) // 2))
    writer.special(END)


def _recital(writer: SequenceWriter, four: list[str], right: str) -> None:
    writer.write(f" {right}{FOUND} (")
    for letter, value in zip(LETTERS, four[: four.index(right) + 1], strict=False):
        writer.write(f"{letter})")
        writer.write(f" {value}")
        writer.answer(FOUND if value == right else " (", DRILL)


def notes(shape: Shape, base: FactBase) -> dict[str, str]:
    """Keepers that precede their things, by the piece of text that ends with the thing."""
    if shape not in _BACKWARD:
        return {}
    form = shape.kept[: shape.kept.index("{thing}") + len("{thing}")]
    pairs = zip(base.things, base.keepers, strict=True)
    return {form.format(thing=thing, keeper=keeper): keeper for thing, keeper in pairs}


def keeper_list(writer: SequenceWriter, pairs: Iterable[tuple[str, str]]) -> None:
    """Write each thing and, as a target, its keeper."""
    for thing, keeper in pairs:
        writer.write(f"\n{thing}:")
        writer.answer(f" {keeper}", LIST)
