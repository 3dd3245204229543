"""Hugging Face models whose pages and states sleep: no bit changes (Q6, Q8)."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.models.model_kit import open_engine, serve, text, torch


@pytest.mark.parametrize(
    ("family", "pool"), [("hy_v4", "shared"), ("falcon_h1", "shared"), ("falcon_h1", "separate")]
)
def test_a_request_that_slept_goes_on_bit_by_bit(family, pool):
    found = []
    for sleeps in (False, True):
        options = {"prefix_cache_state_budget": 4} if pool == "separate" else {}
        engine, logits = open_engine(family, state_pool=pool, **options)
        engine.add_request("a", text(40), max_new_tokens=3)
        engine.step()
        if sleeps:
            engine.sleep(keep=True)
            blocks = engine.model.memory.blocks[1:]
            assert (blocks == 0xFF).all(), "all content is away"
            engine.wake()
        answer = serve(engine, "b", text(20), new=2)
        found.append((answer, [values for name in "ab" for _, values in logits[name]]))
    assert found[0][0] == found[1][0]
    assert all(map(torch.equal, found[0][1], found[1][1]))


def test_content_that_was_dropped_is_computed_again():
    engine, _ = open_engine("hy_v4")
    answer = serve(engine, "a", text(40))
    computed = engine.model.computed
    engine.sleep(keep=False)
    engine.wake()
    assert serve(engine, "b", text(40)) == answer
    assert engine.model.computed == 2 * computed
