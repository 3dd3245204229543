"""Suite `evaluation`: any fields and answers of a server, any prompts, any pairs of answers."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvproof.suites.framework.component_suite import Arguments, ComponentSuite, Config, Draw
from kvproof.suites.reference.evaluation.machine import (
    FAILED,
    INVALID,
    LETTERS,
    OUTCOMES,
    EvaluationMachine,
)
from kvproof.suites.reference.evaluation.properties import PROPERTIES

MOST_SAMPLES, MOST_REPEATS = 7, 3
_TEXTS = st.text("abcde 01", min_size=1, max_size=20)
_FIELDS = st.dictionaries(
    st.sampled_from(("max_tokens", "temperature", "seed")), st.integers(0, 3), max_size=3
)
_ANSWERS = st.sampled_from((*LETTERS[:2], INVALID, FAILED))


def draw_config(_: Draw) -> Config:
    """Return an empty configuration: every operation has its own."""
    return {}


def draw_operation(_: EvaluationMachine, draw: Draw) -> tuple[str, Arguments]:
    verb = draw(st.sampled_from(("compare", "ask", "cut")))
    if verb == "cut":
        return verb, {"text": draw(_TEXTS), "most": draw(st.integers(1, 20))}
    return verb, _request(draw) if verb == "ask" else {
        "samples": draw(_SAMPLES[draw(st.integers(1, MOST_REPEATS))])
    }


def _request(draw: Draw) -> Arguments:
    return {
        "prompt": draw(_TEXTS),
        "common": draw(_FIELDS),
        "own": draw(_FIELDS),
        "stream": draw(st.booleans()),
        "status": draw(st.sampled_from((200, 200, *OUTCOMES))),
        "text": draw(_TEXTS),
        "cached": draw(st.integers(0, 9)),
    }


def _samples(repeats: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    answers = st.lists(_ANSWERS, min_size=repeats, max_size=repeats)
    sample = st.fixed_dictionaries(
        {"expected": st.sampled_from(LETTERS[:2]), "before": answers, "after": answers}
    )
    return st.lists(sample, min_size=1, max_size=MOST_SAMPLES)


_SAMPLES = {repeats: _samples(repeats) for repeats in range(1, MOST_REPEATS + 1)}
"""Strategies take longer to make than to draw from."""

SUITE = ComponentSuite(
    "evaluation", PROPERTIES, draw_config, EvaluationMachine, draw_operation, under_test=("eval",)
)
