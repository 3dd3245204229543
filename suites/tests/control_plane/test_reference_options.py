"""Every option of the control plane reaches what it configures (section O)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission, Refusal
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import HASH_ALGORITHMS, BlockKeys, KeyChain
from kvproof.suites.tests.engine.reference_kit import serve


def block_size_is_the_length_of_a_block(value):
    manager = CacheManager(CacheConfig(8, block_size=value))
    assert len(serve(manager, "a", [1] * 13).table) == -(-13 // value)
    assert serve(manager, "b", [1] * 13).hit == 12 // value * value


def kernel_block_size_is_the_page_of_a_kernel(value):
    manager = CacheManager(CacheConfig(8, block_size=12, kernel_block_size=value))
    manager.begin_step()
    manager.admit("a", [1] * 13)
    ratio = 12 // value if value else 1
    assert manager.config.kernel_size == 12 // ratio
    [rows] = manager.batch(["a"])
    assert rows.tolist() == [list(range(ratio, 3 * ratio))]


def num_blocks_is_the_pool_with_its_null_block(value):
    manager = CacheManager(CacheConfig(value, block_size=4))
    assert serve(manager, "a", [1] * 4 * value) == Refusal("never_fits", value, value - 1)
    assert isinstance(serve(manager, "b", [1] * 4 * (value - 1)), Admission)


def prefix_caching_is_a_switch(value):
    manager = CacheManager(CacheConfig(8, block_size=4, enable_prefix_caching=value))
    first, second = serve(manager, "a", [1] * 9), serve(manager, "b", [1] * 9)
    assert (first.hit, second.hit) == (0, 8 if value else 0)
    assert second.access.reason == ("allowed" if value else "prefix caching is off")
    assert manager.usage().cached == (2 if value else 0)


def hash_algorithm_makes_the_keys_of_events(value):
    config = CacheConfig(8, block_size=4, hash_algorithm=value, record_events=True)
    manager = CacheManager(config)
    serve(manager, "a", [1] * 9)
    chain = BlockKeys(KeyChain(HASH_ALGORITHMS[value], "kvproof", 0, 0), block_size=4)
    chain.extend([1] * 9)
    assert [event.key for event in manager.drain_events()] == chain.keys


def hit_rate_window_counts_requests(value):
    manager = CacheManager(CacheConfig(8, block_size=4, hit_rate_window=value))
    for index in range(5):
        serve(manager, f"r{index}", [1] * (9 + index))
    assert manager.statistics.rolling.queries == sum([9, 10, 11, 12, 13][-value:])


def record_events_is_a_switch(value):
    manager = CacheManager(CacheConfig(8, block_size=4, record_events=value))
    serve(manager, "a", [1] * 9)
    assert len(manager.drain_events()) == (2 if value else 0)


def groups_have_a_table_each(value):
    manager = CacheManager(CacheConfig(32, block_size=4, groups=value))
    manager.begin_step()
    manager.admit("a", [1] * 12)
    sizes = [group.block_size for group in value] or [4]
    assert [len(table) for table in manager.tables("a")] == [12 // size for size in sizes]


STATES = (GroupConfig("full", 4), GroupConfig("state", 4, state_blocks=3))


def state_pool_is_shared_or_separate(value):
    manager = CacheManager(CacheConfig(32, groups=STATES, state_pool=value))
    manager.begin_step()
    manager.admit("a", [1] * 3)
    assert manager.usage().held == (4 if value == "shared" else 1)
    assert len(manager.tables("a")[1]) == (3 if value == "shared" else 1)


def separate(**options):
    return CacheManager(CacheConfig(64, groups=STATES, state_pool="separate", **options))


def max_requests_run_at_once_in_a_separate_state_pool(value):
    manager = separate(max_requests=value, prefix_cache_state_budget=5)
    manager.begin_step()
    for index in range(value):
        assert isinstance(manager.admit(f"r{index}", [index] * 3), Admission)
    assert manager.admit("last", [9] * 3) == Refusal("no_state_row", 1, 0)


def state_budget_is_room_for_checkpoints(value):
    manager = separate(max_requests=1, prefix_cache_state_budget=value)
    prompts = [[first] * 5 for first in range(5)]
    for index, tokens in enumerate(prompts):
        serve(manager, f"r{index}", tokens)
    assert [manager.lookup(tokens) for tokens in prompts] == [0] * (5 - value) + [4] * value


def decode_state_interval_is_the_distance_of_checkpoints(value):
    manager = separate(
        max_requests=1, prefix_cache_state_budget=9, prefix_cache_decode_state_interval=value
    )
    manager.end_step(decoded(manager, "a", [1] * 3, 11))
    assert manager.lookup([1] * 15) == (14 // value * value if value else 0)


def decoded(manager, name, tokens, count):
    """Admit a prompt and decode `count` tokens; the last step is still in flight."""
    step = manager.begin_step()
    manager.admit(name, tokens)
    for _ in range(count):
        manager.end_step(step)
        step = manager.begin_step()
        manager.extend(name, [1])
    return step


EXPERTS = {"return_routed_experts": True, "experts": (8, 2, 3)}
ROWS = np.arange(9 * 2 * 3).reshape(9, 2, 3) % 8


def routed(manager, rows):
    """Serve one prompt whose experts were `rows`."""
    step = manager.begin_step()
    manager.admit("a", [1] * 9)
    manager.end_step(step, experts={"a": rows})


def test_expert_rows_of_another_number_are_refused_and_change_nothing():
    manager = CacheManager(CacheConfig(8, block_size=4, **EXPERTS))
    step = manager.begin_step()
    manager.admit("a", [1] * 9)
    with pytest.raises(ValueError, match="8 expert rows for the 9 tokens of a step"):
        manager.end_step(step, experts={"a": ROWS[:8]})
    assert manager.lookup([1] * 9) == 0
    manager.end_step(step, experts={"a": ROWS})
    assert manager.lookup([1] * 9) == 8


def return_routed_experts_is_a_switch(value):
    manager = CacheManager(
        CacheConfig(8, block_size=4, **EXPERTS | {"return_routed_experts": value})
    )
    routed(manager, ROWS)
    if value:
        assert manager.expert_rows("a").rows.tolist() == ROWS[:8].tolist()
    else:
        with pytest.raises(AssertionError, match="return_routed_experts is off"):
            manager.expert_rows("a")


def experts_are_the_shape_and_type_of_rows(value):
    options = EXPERTS | {"experts": value}
    choices, layers, ranks = value
    routed(
        CacheManager(CacheConfig(8, block_size=4, **options)),
        np.full((9, layers, ranks), choices - 1),
    )
    for wrong in (np.full((9, layers, ranks), choices), np.zeros((9, layers + 1, ranks), int)):
        with pytest.raises(ValueError, match=r"expert ids|rows of shape"):
            routed(CacheManager(CacheConfig(8, block_size=4, **options)), wrong)


def require_cached_experts_is_a_switch(value):
    config = CacheConfig(8, block_size=4, require_cached_experts=value, **EXPERTS)
    manager = CacheManager(config)
    serve(manager, "a", [1] * 9)
    assert manager.lookup([1] * 9) == (0 if value else 8)


def cache_partial_blocks_is_a_switch(value):
    manager = CacheManager(CacheConfig(8, block_size=4, cache_partial_blocks=value))
    serve(manager, "a", [1] * 7)
    assert manager.usage().cached == (2 if value else 1)
    answer = serve(manager, "b", [1] * 9)
    assert (answer.hit, len(answer.copies)) == ((7, 1) if value else (4, 0))


OPTIONS = {
    "groups": (
        groups_have_a_table_each,
        [(), (GroupConfig("full", 2), GroupConfig("window", 6, size=12))],
    ),
    "state_pool": (state_pool_is_shared_or_separate, ["shared", "separate"]),
    "max_requests": (max_requests_run_at_once_in_a_separate_state_pool, [1, 2, 4]),
    "prefix_cache_state_budget": (state_budget_is_room_for_checkpoints, [0, 1, 3]),
    "prefix_cache_decode_state_interval": (
        decode_state_interval_is_the_distance_of_checkpoints,
        [0, 4, 8, 12],
    ),
    "return_routed_experts": (return_routed_experts_is_a_switch, [True, False]),
    "experts": (experts_are_the_shape_and_type_of_rows, [(8, 2, 3), (300, 1, 1)]),
    "require_cached_experts": (require_cached_experts_is_a_switch, [True, False]),
    "cache_partial_blocks": (cache_partial_blocks_is_a_switch, [True, False]),
    "num_blocks": (num_blocks_is_the_pool_with_its_null_block, [2, 3, 17]),
    "block_size": (block_size_is_the_length_of_a_block, [2, 3, 4, 64]),
    "kernel_block_size": (kernel_block_size_is_the_page_of_a_kernel, [0, 1, 3, 4, 12]),
    "enable_prefix_caching": (prefix_caching_is_a_switch, [True, False]),
    "hash_algorithm": (hash_algorithm_makes_the_keys_of_events, ["sha256", "blake2b", "sha3_256"]),
    "hit_rate_window": (hit_rate_window_counts_requests, [1, 2, 5]),
    "record_events": (record_events_is_a_switch, [True, False]),
}
"""Option -> what it does, with values to show it with."""


def test_every_option_is_tested():
    assert set(OPTIONS) == {field.name for field in dataclasses.fields(CacheConfig)}


@pytest.mark.parametrize(
    ("works", "value"),
    [(works, value) for works, values in OPTIONS.values() for value in values],
    ids=lambda item: getattr(item, "__name__", repr(item)),
)
def test_option_reaches_what_it_configures(works, value):
    works(value)
