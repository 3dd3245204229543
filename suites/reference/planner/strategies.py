"""Suite `plan`: draws a model and settings, plans, and queries the plan."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import ComponentSuite, Config, Draw
from kvproof.suites.reference.planner.machine import PlannerMachine
from kvproof.suites.reference.planner.models import draw_config
from kvproof.suites.reference.planner.properties import PROPERTIES

_VERBS = ["plan"] + ["request"] * 6 + ["bytes"] * 5 + ["state"] * 3 + ["ranks"]
_RANKS = st.sampled_from([[1, 1], [2, 1], [2, 3], [3, 2], [8, 1], [8, 16]])
_ANY = st.integers(0, 10**4)


def draw_operation(_: PlannerMachine, draw: Draw) -> tuple[str, Config]:
    verb = draw(st.sampled_from(_VERBS))
    if verb == "plan":
        return verb, {"config": draw_config(draw)}
    if verb == "request":
        steps = draw(st.lists(st.integers(1, 80), min_size=1, max_size=4))
        return verb, {"length": draw(st.integers(1, 400)), "steps": steps}
    if verb == "ranks":
        return verb, {"length": draw(st.integers(1, 200)), "sizes": [draw(_RANKS), draw(_RANKS)]}
    worker = draw(st.integers(0, 2))
    if verb == "state":
        return verb, {"worker": worker, "blocks": draw(st.lists(_ANY, min_size=2, max_size=2))}
    places = draw(st.lists(st.lists(_ANY, min_size=3, max_size=3), min_size=2, max_size=2))
    return verb, {"worker": worker, "first": places[0], "second": places[1]}


PROFILES: tuple[Callable[[Draw], Config], ...] = (
    draw_config,
    *(partial(draw_config, first=kind) for kind in ("window", "chunk", "state")),
)

SUITE = ComponentSuite("plan", PROPERTIES, draw_config, PlannerMachine, draw_operation, PROFILES)
