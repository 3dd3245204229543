"""`--mode invariant`: equal bits whatever the chunks, hits and neighbours; each guard is needed."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.models.model_kit import shared

from kvproof.suites.tests.lab.invariance import (  # isort: skip - the line above skips without torch
    WAYS,
    difference,
    several_requests,
    several_tokens,
)


@pytest.mark.parametrize("way", WAYS)
def test_logits_depend_on_the_tokens_alone(way: str) -> None:
    assert difference(*WAYS[way](shared("qwen3").model, "invariant")) == 0


@pytest.mark.parametrize(
    ("without", "way"), [(several_requests, "company"), (several_tokens, "chunks")]
)
def test_without_a_guard_bits_differ(without, way: str) -> None:
    with without():
        assert 0 < difference(*WAYS[way](shared("qwen3").model, "invariant")) < 1e-3
