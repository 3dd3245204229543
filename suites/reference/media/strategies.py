"""Suite `media`: its draws."""

from __future__ import annotations

from typing import Any, TypeAlias

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.media.engine_hash import on_hash
from kvproof.suites.reference.media.machine import MediaMachine
from kvproof.suites.reference.media.model import Thing, places
from kvproof.suites.reference.media.properties import PROPERTIES
from kvproof.suites.reference.media.values import VALUES, changed, regrouped

Operation: TypeAlias = tuple[str, Arguments]

BLOCKS = (1, 2, 3, 4, 6, 8)


def draw_config(draw: Draw) -> Config:
    """Draw the size of a block, in tokens."""
    return {"block_size": draw(st.sampled_from(BLOCKS))}


def draw_operation(machine: MediaMachine, draw: Draw) -> Operation:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return _hash(draw)
    if kind == 1:
        return _ask(draw)
    if machine.walk is None or kind < 6:
        return _arrive(machine, draw)
    return "step", {"budget": draw(st.integers(1, 3 * machine.block_size))}


def _hash(draw: Draw) -> Operation:
    relation = draw(st.integers(0, 4))
    if relation == 0:
        one, other = regrouped(draw)
    else:
        one = draw(VALUES)
        other = one if relation < 3 else changed(one, draw) if relation == 3 else draw(VALUES)
    return "hash", {"one": one, "other": other}


def _ask(draw: Draw) -> Operation:
    return "ask", {
        "digest": draw(st.sampled_from([None, "7f3c"])),
        "cached": draw(st.integers(0, 3)) != 3,
        "times": draw(st.integers(1, 3)),
    }


def _arrive(machine: MediaMachine, draw: Draw) -> Operation:
    if machine.things and draw(st.integers(0, 2)):
        things = _varied(draw(st.sampled_from(machine.things[-3:])), draw)
    else:
        things = _fresh(machine.block_size, draw)
    end = max([1, *(start + length for thing in things for start, length in thing.places)])
    total = end + draw(st.integers(-1 if end > 1 else 0, 2 * machine.block_size))
    count = len(list(places(things)))
    return "arrive", {
        "total": total,
        "text": draw(st.integers(0, 1)) if not draw(st.integers(0, 7)) else 0,
        "things": [list(thing) for thing in things],
        "order": draw(st.permutations(range(count))),
        "matched": _matched(things, total, draw),
        "turn": draw(st.integers(0, end)) if draw(st.booleans()) else 0,
        "blank": bool(count) and draw(st.integers(0, 31)) == 31,
    }


def _matched(things: list[Thing], total: int, draw: Draw) -> int:
    long = [place for thing in things for place in thing.places if place[1] > 1]
    if not long or draw(st.booleans()):
        matched: int = draw(st.integers(0, total))
        return matched
    start, length = draw(st.sampled_from(long[-2:]))
    return int(start + draw(st.integers(1, length - 1)))


def _fresh(block_size: int, draw: Draw) -> list[Thing]:
    """Draw things one after the other; now and then one overlaps the one before.

    Or images a token shorter than a block without a gap: clamped out of one, a match lands in the
    one before.
    """
    if block_size > 2 and draw(st.integers(0, 3)) == 3:
        length = block_size - 1
        return [Thing("image", ((i * length, length),), (0,)) for i in range(draw(_FEW))]
    things, position = [], 0
    for _ in range(draw(_FEW)):
        gap = draw(st.sampled_from([0, 0, 1, 2, block_size, -1]))
        things.append(_thing(max(0, position + gap), block_size, draw))
        position = sum(things[-1].places[-1])
    return things


_FEW = st.integers(0, 4)


def _thing(start: int, block_size: int, draw: Draw) -> Thing:
    kind = draw(st.sampled_from(["image", "image", "audio", "video", "video", "embeds"]))
    if kind == "embeds":
        rows = draw(st.lists(st.sampled_from([0, 1, None]), min_size=1, max_size=4))
        return Thing(kind, tuple((start + i, 1) for i in range(len(rows))), tuple(rows))
    where: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 3)) if kind == "video" else 1):
        length = draw(st.integers(1, 4 * block_size if draw(st.integers(0, 2)) == 2 else 3))
        where.append((start, length))
        start += length + draw(st.integers(0, 1))
    contents = [draw(st.integers(0, 1)) for _ in where]
    return Thing(kind, tuple(where), tuple(contents))


def _varied(things: list[Thing], draw: Draw) -> list[Thing]:
    """Return the same things, or change one of them in one respect."""
    if not things or draw(st.integers(0, 2)) == 0:
        return things
    index = draw(st.integers(0, len(things) - 1))
    return [*things[:index], *_changed(things[index], draw), *things[index + 1 :]]


def _changed(thing: Thing, draw: Draw) -> list[Thing]:
    place = len(thing.places) - 1 - draw(st.integers(0, len(thing.places) - 1))
    content: Any = thing.contents[place]
    other = tuple(
        1 - (content or 0) if index == place else each for index, each in enumerate(thing.contents)
    )
    variants = [[thing._replace(contents=other)], []]
    if thing.kind in ("image", "audio"):
        (start, length), swapped = thing.places[0], {"image": "audio", "audio": "image"}
        variants.append([thing._replace(kind=swapped[thing.kind])])
        if length > 1:
            variants.append([thing._replace(places=((start, length - 1),))])
            variants.append([thing._replace(places=((start + 1, length - 1),))])
    variant: list[Thing] = draw(st.sampled_from(variants))
    return variant


SUITE = ComponentSuite(
    "media", PROPERTIES, draw_config, MediaMachine, draw_operation, target_provided=on_hash
)
