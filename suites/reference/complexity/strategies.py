"""Suite `cost`: prompts in every form of buffer, short ones and long ones, and evictions."""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.complexity.machine import BLOCK, MOST_BLOCKS, ComplexityMachine
from kvproof.suites.reference.complexity.properties import FORMS, PROPERTIES

_FULL, _WINDOW = ("full", BLOCK), ("window", BLOCK, 2 * BLOCK)
_CHUNK, _STATE = ("chunk", BLOCK, 3 * BLOCK), ("state", BLOCK)
LAYOUTS = ((_FULL,), (_FULL, _WINDOW), (_FULL, _CHUNK), (_FULL, _STATE), (_WINDOW,))
VERBS = ("serve", "serve", "serve", "lookup", "pin", "evict", "compare")


def draw_config(draw: Draw) -> Config:
    """Draw the groups of a model."""
    return {"groups": draw(st.sampled_from(LAYOUTS))}


def draw_operation(machine: ComplexityMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = draw(st.sampled_from(VERBS))
    if verb == "evict":
        return verb, {"count": draw(st.integers(1, 4))}
    if verb == "compare":
        return verb, {"blocks": draw(st.integers(1, 2 * MOST_BLOCKS))}
    return verb, {"tokens": _tokens(machine, draw), "form": draw(st.sampled_from(FORMS))}


def _tokens(machine: ComplexityMachine, draw: Draw) -> list[int]:
    head: list[int] = []
    if machine.prompts and draw(st.integers(0, 3)):
        old = draw(st.sampled_from(machine.prompts[-4:]))
        head = old[: draw(st.sampled_from((len(old), len(old) // 2)))]
    more = draw(st.lists(st.integers(0, 1), min_size=2, max_size=3)) * BLOCK
    return [*head, *more][: MOST_BLOCKS * BLOCK + 1]  # two blocks: one is its own key in the index


SUITE = ComponentSuite("cost", PROPERTIES, draw_config, ComplexityMachine, draw_operation)
