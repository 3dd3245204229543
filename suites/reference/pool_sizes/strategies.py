"""The suite `pool`: its operations and their frequencies."""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.pool_sizes.machine import PoolMachine
from kvproof.suites.reference.pool_sizes.properties import PROPERTIES

_VERBS = ("serve", "serve", "serve", "end", "finish", "finish", "resize", "resize")
_SIZES = st.integers(2, 24)


def draw_config(draw: Draw) -> Config:
    """Draw full attention, mostly alone, or with a group of windows or states."""
    window, state = draw(st.sampled_from(((0, False), (0, False), (3, False), (0, True))))
    return {
        "blocks": draw(_SIZES),
        "block": draw(st.integers(1, 3)),
        "window": window,
        "state": state,
    }


def draw_operation(_: PoolMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw the next operation: prompts of few letters, which begin alike."""
    verb = draw(st.sampled_from(_VERBS))
    if verb == "serve":
        text = "".join(
            draw(st.lists(st.sampled_from(("aaaa", "aab", "b")), min_size=1, max_size=8))
        )
        return verb, {"text": text, "ends": draw(st.sampled_from((True, True, True, False)))}
    if verb == "finish":
        return verb, {"which": draw(st.integers(0, 5))}
    return verb, {"blocks": draw(_SIZES)} if verb == "resize" else {}


SUITE = ComponentSuite("pool", PROPERTIES, draw_config, PoolMachine, draw_operation)
