"""Suite `tiers`: a dozen objects, room for a few, and an unreliable disk."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.tiers import properties as seen
from kvproof.suites.reference.tiers.machine import TiersMachine
from kvproof.suites.reference.tiers.model import HEADER
from kvproof.suites.reference.tiers.properties import PROPERTIES

OBJECTS = 9
CUTS = (0, 7, 8, 40, 48, 52, 63, 64, 65, 70, 100, 140)
"""Where a write may stop: inside and at the border of every header field, and after them."""


def draw_config(draw: Draw) -> Config:
    """Draw tiers that hold a few of the objects each."""
    sizes = draw(st.lists(st.sampled_from((1, 8, 40, 40, 90)), min_size=OBJECTS, max_size=OBJECTS))
    return {
        "sizes": sizes,
        "host": draw(st.integers(8, 200)),
        "disk": draw(st.integers(2 * HEADER, 5 * HEADER)),
    }


def _numbers(draw: Draw) -> list[int]:
    numbers: list[int] = draw(st.lists(st.integers(0, OBJECTS - 1), min_size=1, max_size=4))
    return numbers


def _store(_: TiersMachine, draw: Draw) -> Arguments:
    return {"numbers": _numbers(draw)}


def _read(machine: TiersMachine, draw: Draw) -> Arguments:
    known = [
        n for n in range(OBJECTS) if n in (*machine.model.host.numbers, *machine.model.disk.numbers)
    ]
    if known and draw(st.integers(0, 4)):
        return {"numbers": draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))}
    return {"numbers": _numbers(draw)}


def _trouble(_: TiersMachine, draw: Draw) -> Arguments:
    return {
        "how": draw(st.sampled_from(("full", "error", "killed", "killed_after"))),
        "after": draw(st.integers(0, 3)),
        "cut": draw(st.sampled_from(CUTS)),
    }


def _spoil(machine: TiersMachine, draw: Draw) -> Arguments:
    how = draw(st.sampled_from(tuple(seen.DAMAGE)))
    if how in ("flip", "cut"):
        how += str(draw(st.sampled_from(CUTS)))
    return {"number": draw(st.sampled_from(machine.model.disk.numbers or [0])), "how": how}


def _restart(machine: TiersMachine, draw: Draw) -> Arguments:
    smaller = draw(st.integers(2 * HEADER, machine.config["disk"]))
    return {"capacity": smaller if draw(st.booleans()) else machine.capacity}


def _key(_: TiersMachine, draw: Draw) -> Arguments:
    return {
        "tokens": draw(st.lists(st.integers(0, 3), min_size=8, max_size=8)),
        "unit": draw(st.integers(0, 1)),
        "part": draw(st.sampled_from(("full", "local0", "state", "experts"))),
        "what": draw(st.sampled_from(("", *seen.DIFFERENT))),
        "reset": draw(st.booleans()),
    }


_ARGUMENTS: dict[str, Callable[[TiersMachine, Draw], Arguments]] = {
    "store": _store,
    "read": _read,
    "end": lambda machine, draw: {"reading": draw(st.sampled_from(sorted(machine.reading) or [0]))},
    "trouble": _trouble,
    "spoil": _spoil,
    "restart": _restart,
    "drop": _store,
    "key": _key,
    "clear": lambda _, __: {},
    "put_foreign": lambda _, __: {},
}
VERBS = (
    *["store"] * 6, *["read"] * 5, *["end"] * 5, *["trouble"] * 3, *["spoil"] * 3, *["key"] * 3,
    "restart", "drop", "clear", "put_foreign",
)  # fmt: skip


def draw_operation(machine: TiersMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = draw(st.sampled_from((*VERBS, *["restart"] * 3) if machine.doubtful else VERBS))
    return verb, _ARGUMENTS[verb](machine, draw)


SUITE = ComponentSuite("tiers", PROPERTIES, draw_config, TiersMachine, draw_operation)
