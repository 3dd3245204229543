"""The suite `sessions`: its operations and their frequencies."""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.sessions.machine import SessionMachine
from kvproof.suites.reference.sessions.properties import PROPERTIES

_WEIGHTS = {
    "open": 5, "turn": 10, "answer": 3, "end": 10, "abort": 2, "fork": 2, "close_session": 1,
    "wait": 7, "serve": 8, "finish": 6, "evict": 2, "reset": 1,
}  # fmt: skip
_VERBS = st.sampled_from([verb for verb, weight in _WEIGHTS.items() for _ in range(weight)])
_MOST = 4
"""Sessions that are open: with more of them few have a second turn."""
_WHICH = st.integers(0, 4)
_TEXT = st.lists(st.sampled_from(("aaaa", "aab", "b", "cc", "dac")), min_size=1, max_size=5).map(
    "".join
)
_SECONDS = st.sampled_from((0.5, 0.5, 0.5, 1.0, 1.0, 4.0, 5.0, 40.0))


def draw_config(draw: Draw) -> Config:
    """Draw a pool of few blocks, for full attention or with windows."""
    return {
        "blocks": draw(st.integers(3, 20)),
        "block": draw(st.integers(1, 3)),
        "window": draw(st.sampled_from((0, 0, 0, 2, 3, 5))),
    }


def draw_operation(machine: SessionMachine, draw: Draw) -> tuple[str, Arguments]:
    """Draw the next operation: texts of few letters, which begin alike."""
    verb = draw(_VERBS) if machine.talks else "open"
    if verb in ("open", "fork") and len(machine.talks) >= _MOST:
        verb = "turn"
    if verb == "open":
        held = draw(st.sampled_from((True, True, True, False)))
        return verb, {"held": held, "idle": draw(st.sampled_from((5.0, 10.0, 60.0, 60.0)))}
    if verb in ("turn", "answer"):
        return verb, {"which": draw(_WHICH), "text": draw(_TEXT)}
    if verb == "serve":
        return verb, {"text": draw(_TEXT) * draw(st.integers(1, 3)), "stays": draw(st.booleans())}
    if verb == "end":
        return verb, {"which": draw(_WHICH), "after": draw(st.sampled_from((0.0, 0.5, 0.5)))}
    if verb == "wait":
        return verb, {"seconds": draw(_SECONDS)}
    if verb == "evict":
        return verb, {"blocks": draw(st.integers(1, 8))}
    return verb, {} if verb == "reset" else {"which": draw(_WHICH)}


SUITE = ComponentSuite("sessions", PROPERTIES, draw_config, SessionMachine, draw_operation)
