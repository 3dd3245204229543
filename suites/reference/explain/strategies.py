"""The suite `explain`: its operations and their frequencies."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.explain.machine import ExplainMachine
from kvproof.suites.reference.explain.properties import PROPERTIES

NAMES = ("a", "b", "c")
MOST_UNITS = 7
_RECENT = 6


Mix: TypeAlias = tuple[tuple[str, int, bool], ...]
"""Groups of a configuration: kind, size in blocks, draft."""


def draw_config(draw: Draw) -> Config:
    """Draw groups, and a pool for exactly one prompt or a few."""
    return _config(draw, mix=draw(st.sampled_from(_MIXES)))


def _config(draw: Draw, *, mix: Mix, tight: bool = False) -> Config:
    block = draw(st.integers(1, 4))
    sized = [[kind, block, size * block, 0, draft] for kind, size, draft in mix]
    if draw(st.integers(0, 3)) == 3:
        sized[0][1] *= 2
    unit = max(size for _, size, *_ in sized)
    wide = sum(kind != "state" for kind, *_ in sized) * MOST_UNITS
    room = [wide] if tight else [wide, wide, wide + 2, 2 * wide, 4 * wide + 2]
    return {
        "groups": sized,
        "num_blocks": 2 + draw(st.sampled_from(room)),
        "state_pool": "shared" if tight else draw(st.sampled_from(["shared", "separate"])),
        "max_requests": draw(st.sampled_from([1, 2, 4])),
        "interval": draw(st.sampled_from([0, unit, 2 * unit])),
        "experts": draw(st.booleans()),
    }


_FULL, _STATE = ("full", 0, False), ("state", 0, False)
_WINDOW, _CHUNK = ("window", 2, False), ("chunk", 3, False)
_MIXES: tuple[Mix, ...] = (
    (_FULL,),
    (_FULL, _STATE),
    (_FULL, _WINDOW),
    (_FULL, _CHUNK),
    (_FULL, _WINDOW, _STATE),
    (_FULL, _WINDOW, _CHUNK),
    (_FULL, ("full", 0, True)),
    (_FULL, ("window", 2, True)),
    (_FULL, ("full", 0, True), _STATE),
    (_WINDOW, _CHUNK),
    (_STATE,),
)


def draw_operation(machine: ExplainMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw mostly a request that shares a prefix with an earlier one."""
    if machine.held and draw(st.integers(0, 2)) == 2:
        return "drop", {"name": draw(st.sampled_from(machine.held))}
    choice = draw(st.integers(0, 11))
    if choice == 11:
        return "reset", {}
    if choice == 10:
        return "evict", {"count": draw(st.integers(1, 4))}
    if choice > 7 and machine.manager.eviction.state_blocks:
        return "fill", {"token": draw(st.integers(0, 2))}
    return "serve", _request(machine, draw)


def _request(machine: ExplainMachine, draw: Draw) -> Arguments:
    layout = machine.manager.config.layout
    tokens, spans = _prompt(machine, layout.unit, draw)
    odd = draw(st.integers(0, 19))  # few draws: they take more time than the machine
    return {
        "name": draw(st.sampled_from(NAMES)),
        "tokens": tokens,
        "spans": spans,
        "salt": "s" if odd == 1 else "",
        "read": odd != 2,
        "store": odd != 3,
        "rows": odd not in (4, 5, 6),
        "compute": draw(st.sampled_from([None, None, layout.unit, 2 * layout.unit + 1])),
        "cut": {7: "release", 8: "reset"}.get(odd, ""),
        "decode": _decode(layout.unit, draw) if odd > 9 else [],
        "hold": odd in (9, 10, 11, 12),
    }


def _prompt(machine: ExplainMachine, unit: int, draw: Draw) -> tuple[list[int], list[list[Any]]]:
    most = MOST_UNITS * unit
    how = draw(st.integers(0, 7))
    if machine.prompts and how > 1:
        base, known = draw(st.sampled_from(machine.prompts[-_RECENT:]))
        cut = draw(st.integers(1, len(base))) if how == 2 else len(base)
    else:
        base, known, cut = [draw(st.integers(0, 2))], [], 1
    sizes = [0, 1, unit + 1, most - unit - cut, most - cut]
    more = max(0, draw(st.sampled_from([*sizes, *range(0, most, 3)])))
    tokens = [*base[:cut], *([draw(st.integers(0, 2))] * more)][:most]
    spans = [span for span in known if span[1] + span[2] <= len(tokens)]
    return tokens, spans + _span(spans, tokens, unit, draw)


def _span(spans: list[list[Any]], tokens: list[int], unit: int, draw: Draw) -> list[list[Any]]:
    place = draw(st.integers(0, 7))
    start = sum(spans[-1][1:3]) if spans else 0
    length = unit + place
    if place > 2 or start + place + length > len(tokens):
        return []
    return [["image", start + place, length, draw(st.sampled_from(["x", "y"]))]]


def _decode(unit: int, draw: Draw) -> list[list[int]]:
    drafts = draw(st.sampled_from([0, 0, 2]))
    return [[7] * (1 + drafts)] * draw(st.integers(0, 2 * unit))


PROFILES = (
    *(partial(_config, mix=mix) for mix in _MIXES),
    partial(_config, mix=(_FULL, _CHUNK)),
    partial(_config, mix=(_FULL, _STATE), tight=True),
)

SUITE = ComponentSuite("explain", PROPERTIES, draw_config, ExplainMachine, draw_operation, PROFILES)
