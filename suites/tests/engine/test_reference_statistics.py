"""Hit statistics: in tokens, once per request, over all and over the last ones (V1)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.suites.tests.engine.reference_kit import SIZE, open_manager, prompt, serve

draws = settings(derandomize=True, database=None, deadline=None, max_examples=60)


def test_statistics_count_tokens_once_per_request_and_resumed_ones_apart():
    manager = open_manager(16, hit_rate_window=2)
    serve(manager, "a", prompt(1, 2))
    serve(manager, "b", prompt(1, 2))
    serve(manager, "a", prompt(1, 2), resumed=True)
    manager.begin_step()
    manager.admit("c", prompt(1, 3))
    manager.extend("c", [5] * SIZE)
    statistics = manager.statistics
    assert (statistics.cumulative.queries, statistics.cumulative.hits) == (27, 12)
    assert (statistics.rolling.queries, statistics.rolling.hits) == (18, 12)
    assert (statistics.resumed.queries, statistics.resumed.hits) == (9, 8)
    assert statistics.rolling.rate == pytest.approx(12 / 18)


def test_a_reset_clears_the_rolling_window_and_nothing_else():
    manager = open_manager(16)
    for name in "ab":
        serve(manager, name, prompt(1))
    before = manager.statistics.cumulative
    manager.reset()
    assert (manager.statistics.rolling.queries, manager.statistics.rolling.rate) == (0, 0.0)
    assert manager.statistics.cumulative == before
    serve(manager, "c", prompt(1))
    assert (manager.statistics.rolling.queries, manager.statistics.cumulative.queries) == (5, 15)


@draws
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), max_size=12))
def test_hit_rates_lie_between_none_and_all(prompts):
    manager = open_manager(6, hit_rate_window=3)
    for index, tokens in enumerate(prompts):
        serve(manager, f"r{index}", tokens)
        for counts in (manager.statistics.rolling, manager.statistics.cumulative):
            assert 0 <= counts.hits <= counts.queries
            assert 0 <= counts.rate <= 1
    recent = prompts[-3:]
    assert manager.statistics.rolling.queries == sum(map(len, recent))
