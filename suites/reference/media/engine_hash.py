"""The suite `media` on an engine's own content hash (`harness.contract.media_hash`).

Two items are drawn: equal ones in other memory layouts, or ones that differ in one place, most of
them with equal bytes. The engine hashes both; equal keys must mean equal items.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import (
    Arguments,
    ComponentSuite,
    Config,
    Draw,
    RemoteCalls,
    TargetProvided,
)
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.media import properties as seen
from kvproof.suites.reference.media.properties import PROPERTIES

_BY_VALUE, _INJECTIVE = "hashes_are_by_value", "hashes_are_injective"
_WITHOUT = {
    prop.name: "an engine is asked for its content hash alone"
    for prop in PROPERTIES
    if prop.name not in (_BY_VALUE, _INJECTIVE)
}
_LAYOUTS = 3

Part = list[Any]
"""Type of the numbers, shape, first number, step."""


class Traits(NamedTuple):
    """Items that an engine's processors hand to its hash."""

    grid: bool
    """An item comes with a grid: rows of (time, height, width)."""
    dtypes: tuple[str, ...]
    lists: bool
    """An item may be a list of arrays."""

    @property
    def reached(self) -> tuple[str, ...]:
        """Situations that have to occur."""
        able = {seen.GRID: self.grid, seen.CUT: self.lists, seen.DTYPE: len(self.dtypes) > 1}
        return (seen.SHAPE, *(name for name, can in able.items() if can))


def on_hash(ask: RemoteCalls) -> TargetProvided:
    """Return the suite on a target's content hash."""
    traits = Traits(**ask(("traits", {}))[0])
    by = {_BY_VALUE: (seen.OTHER_LAYOUT,), _INJECTIVE: traits.reached}
    return TargetProvided(
        ComponentSuite(
            name="media",
            properties=tuple(p._replace(situations=by[p.name]) for p in PROPERTIES if p.name in by),
            draw_config=lambda _: {},
            machine=partial(HashMachine, ask),
            draw_operation=partial(_propose, traits),
        ),
        _WITHOUT,
    )


class HashMachine:
    """Has two items hashed, the second in all layouts."""

    def __init__(self, ask: RemoteCalls, _config: Config, coverage: Coverage) -> None:
        self._ask, self._coverage = ask, coverage

    def apply(self, verb: str, *, one: Arguments, other: Arguments, situation: str) -> object:
        """Judge two items, equal or with the difference that the situation names."""
        assert verb == "compare", verb
        items = [{**one, "layout": 0}, *({**other, "layout": each} for each in range(_LAYOUTS))]
        first, *others = self._ask(("hash", {"items": items}))[0]
        self._judge(one, other, first, others)
        laid = any(1 not in shape for _, shape, *_ in one["parts"])  # the others are dense always
        self._coverage.event(situation, situation != seen.OTHER_LAYOUT or laid)
        return first

    def _judge(self, one: Arguments, other: Arguments, first: str, others: list[str]) -> None:
        same = meaning(one) == meaning(other)
        for layout, second in enumerate(others):
            self._coverage.check(
                _BY_VALUE if same else _INJECTIVE,
                (first == second) == same,
                partial(_sentence, one, other, layout, keys="two keys" if same else "one key"),
                facts={"one": one, "other": other},
            )


def _sentence(one: Arguments, other: Arguments, layout: int, *, keys: str) -> str:
    return f"{_said(one)} and {_said(other)} (layout {layout}) have {keys}"


def _said(item: Arguments) -> str:
    parts = " + ".join(f"{d}{s} from {first} by {step}" for d, s, first, step in item["parts"])
    return parts if item["grid"] is None else f"{parts}, grid {item['grid']}"


def meaning(item: Arguments) -> Hashable:
    """Return the item without the step of a single number and the list of a single part."""
    parts = tuple((d, tuple(s), first, step * (prod(s) > 1)) for d, s, first, step in item["parts"])
    return parts, repr(item["grid"])


# --- drawing ---


def _propose(traits: Traits, _: HashMachine, draw: Draw) -> tuple[str, Arguments]:
    one = _item(traits, draw)
    other, situation = one, seen.OTHER_LAYOUT
    if draw(st.integers(0, 3)):
        other, situation = draw(st.sampled_from(list(_variants(traits, one))))
    if meaning(one) == meaning(other):
        situation = seen.OTHER_LAYOUT
    return "compare", {"one": one, "other": other, "situation": situation}


def _item(traits: Traits, draw: Draw) -> Arguments:
    count = draw(st.integers(1, 3)) if traits.lists else 1
    dtype, step = draw(st.sampled_from(traits.dtypes)), draw(st.integers(0, 1))
    width = draw(st.lists(st.integers(1, 4), max_size=2))
    parts = [
        [dtype, [draw(st.integers(1, 4)), *width], draw(st.integers(0, 1)), step]
        for _ in range(count)
    ]
    sizes = st.integers(1, 4)
    grid = [[1, draw(sizes), draw(sizes)] for _ in parts] if traits.grid else None
    return {"parts": parts, "listed": count > 1, "grid": grid}


def _variants(traits: Traits, one: Arguments) -> Iterator[tuple[Arguments, str]]:
    """Items that differ in one place, with what differs."""
    for at, (dtype, shape, start, step) in enumerate(one["parts"]):
        changed = partial(_with_part, one, at)
        yield changed(dtype, shape, start + 1, step), seen.ONE_CHANGE
        for turned in ([*shape[::-1]], [*shape, 1], [prod(shape)]):
            yield changed(dtype, turned, start, step), seen.SHAPE
        for each in traits.dtypes:
            yield changed(each, shape, start, step), seen.DTYPE
    if traits.grid:
        grid = [[t, w, h] for t, h, w in one["grid"]]
        yield {**one, "grid": grid}, seen.GRID
    if traits.lists:
        for parts in _cuts(one["parts"]):
            yield {**one, "parts": parts, "listed": True}, seen.CUT


def _with_part(one: Arguments, at: int, *part: Any) -> Arguments:
    return {**one, "parts": [*one["parts"][:at], list(part), *one["parts"][at + 1 :]]}


def _cuts(parts: list[Part]) -> Iterator[list[Part]]:
    """The same numbers in the same order, in other parts."""
    first, *rest = parts
    dtype, (rows, *width), start, step = first
    for at in range(1, rows):
        behind = start + step * at * prod(width)
        two = [[dtype, [at, *width], start, step], [dtype, [rows - at, *width], behind, step]]
        yield [*two, *rest]
