"""Suite `metrics`: small hybrid caches with something to count in every step."""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.metrics.machine import MetricsMachine
from kvproof.suites.reference.metrics.properties import PROPERTIES

_FULL, _STATE = ("full", 2), ("state", 2)
LAYOUTS = ((_FULL,), (_FULL, _STATE), (_STATE,), (_FULL, ("window", 2, 4), _STATE))
NAMES = ("a", "b", "c", "d")
VERBS = ("admit", "admit", "admit", "end", "end", "end", "extend", "release", "release", "rare")


def draw_config(draw: Draw) -> Config:
    """Draw groups and a pool of a few prompts."""
    return {
        "groups": draw(st.sampled_from(LAYOUTS)),
        "num_blocks": draw(st.integers(6, 24)),
        "state_pool": draw(st.sampled_from(("shared", "separate"))),
        "interval": draw(st.sampled_from((0, 2))),
    }


def draw_operation(machine: MetricsMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw an operation."""
    verb = draw(st.sampled_from(VERBS))
    if verb in ("extend", "release") and machine.live:
        name = draw(st.sampled_from(machine.live))
        if verb == "extend":
            return verb, {"name": name, "tokens": _tokens(draw, 1)}
        return verb, {"name": name, "preempt": draw(st.booleans())}
    if verb == "rare":
        if draw(st.integers(0, 3)):
            return "evict", {"count": draw(st.integers(1, 4))}
        return "reset", {}
    if verb == "end":
        return verb, {}
    if machine.preempted and draw(st.booleans()):
        name = draw(st.sampled_from(sorted(machine.preempted)))
        return "admit", {"name": name, "tokens": machine.preempted[name], "resumed": True}
    return "admit", {"name": draw(st.sampled_from(NAMES)), **_prompt(machine, draw)}


def _prompt(machine: MetricsMachine, draw: Draw) -> Arguments:
    """A prompt that mostly begins like an earlier one."""
    head = draw(st.sampled_from(machine.prompts[-3:])) if machine.prompts else []
    if not draw(st.integers(0, 3)):
        head = head[: len(head) // 2]
    return {"tokens": [*head, *_tokens(draw, 4)][:14], "resumed": False}


def _tokens(draw: Draw, most: int) -> list[int]:
    tokens: list[int] = draw(st.lists(st.integers(0, 1), min_size=1, max_size=most))
    return tokens


SUITE = ComponentSuite("metrics", PROPERTIES, draw_config, MetricsMachine, draw_operation)
