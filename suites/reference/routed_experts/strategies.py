"""The suite `experts`: its operations and their frequencies."""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.routed_experts.machine import RoutedExpertsMachine
from kvproof.suites.reference.routed_experts.properties import PROPERTIES

REQUESTS = ("a", "b", "c")


def _draw_config(draw: Draw) -> Config:
    return {
        "unit": draw(st.integers(1, 4)),
        "experts": draw(st.sampled_from((8, 256, 257, 60_000))),
        "layers": draw(st.integers(1, 3)),
        "ranks": draw(st.integers(1, 3)),
    }


def _propose(machine: RoutedExpertsMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = draw(st.sampled_from(_VERBS if machine.requests else _FIRST))
    if verb in ("arrive", "serve"):
        free = [request for request in REQUESTS if request not in machine.requests] or REQUESTS
        arguments = {
            "request": draw(st.sampled_from(free)),
            "text": _draw_text(machine, draw),
            "require": draw(st.booleans()),
        }
        return verb, arguments | ({} if verb == "arrive" else {"record": draw(st.booleans())})
    arguments = {name: draw(strategy) for name, strategy in _ARGUMENTS[verb].items()}
    if verb not in ("evict", "reset"):
        arguments["request"] = draw(st.sampled_from(sorted(machine.requests)))
    return verb, arguments


def _draw_text(machine: RoutedExpertsMachine, draw: Draw) -> str:
    """Draw a few units of few letters, so that texts begin alike."""
    units = draw(st.lists(st.sampled_from("xxy"), min_size=1, max_size=5))
    tail: int = draw(st.integers(0, machine.unit))
    return "".join(letter * machine.unit for letter in units) + "z" * tail


_FIRST = ("serve", "serve", "arrive", "evict", "reset")
_VERBS = (
    *("compute", "compute", "compute", "keep", "keep", "ask", "ask", "verify", "verify"),
    *("arrive", "arrive", "serve", "serve", "finish", "evict", "evict", "unfit", "reset"),
)
_MOSTLY = st.sampled_from((True, True, True, False))
_ARGUMENTS: dict[str, dict[str, st.SearchStrategy[object]]] = {
    "compute": {"count": st.integers(1, 8), "record": _MOSTLY},
    "verify": {
        "drafts": st.text("!x", min_size=1, max_size=5),
        "accepted": st.integers(0, 5),
        "record": _MOSTLY,
    },
    "unfit": {"kind": st.sampled_from(("number", "shape", "range", "place", "type"))},
    "evict": {"which": st.integers(0, 5), "count": st.integers(1, 3)},
    **{verb: {} for verb in ("keep", "ask", "finish", "reset")},
}

SUITE = ComponentSuite(
    name="experts",
    properties=PROPERTIES,
    draw_config=_draw_config,
    machine=RoutedExpertsMachine,
    draw_operation=_propose,
)
