"""Configurations that no cache could be built from are refused in a sentence (K1, section O)."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig, ConfigError, check_kernel_block_size
from kvproof.suites.reference.config import options

draws = settings(derandomize=True, database=None, deadline=None, max_examples=100)


@pytest.mark.parametrize(
    ("name", "value", "rule", "example"),
    [
        ("num_blocks", 1, "at least 2", "1024"),
        ("num_blocks", -5, "at least 2", "1024"),
        ("num_blocks", 2.5, "whole number", "1024"),
        ("num_blocks", "8", "whole number", "1024"),
        ("num_blocks", None, "whole number", "1024"),
        ("block_size", 0, "at least 1", "64"),
        ("block_size", -64, "at least 1", "64"),
        ("block_size", 16.0, "whole number", "64"),
        ("kernel_block_size", -1, "divide block_size 12", "1, 2, 3, 4, 6, 12"),
        ("kernel_block_size", 5, "divide block_size 12", "1, 2, 3, 4, 6, 12"),
        ("kernel_block_size", 24, "divide block_size 12", "1, 2, 3, 4, 6, 12"),
        ("kernel_block_size", 1.5, "divide block_size 12", "1, 2, 3, 4, 6, 12"),
        ("enable_prefix_caching", "no", "true or false", "True"),
        ("hash_algorithm", "md5", "one of sha256, blake2b", "'sha256'"),
        ("hash_algorithm", "", "one of sha256, blake2b", "'sha256'"),
        ("hash_algorithm", None, "one of sha256, blake2b", "'sha256'"),
        ("hit_rate_window", 0, "at least 1", "1000"),
        ("hit_rate_window", 0.5, "at least 1", "1000"),
        ("record_events", 1, "true or false", "False"),
        ("state_pool", "rows", "one of shared, separate", "'shared'"),
        ("state_pool", None, "one of shared, separate", "'shared'"),
        ("max_requests", 0, "at least 1", "256"),
        ("max_requests", 1.5, "whole number", "256"),
        ("prefix_cache_state_budget", -1, "at least 0", "16"),
        ("prefix_cache_state_budget", "2", "whole number", "16"),
        ("prefix_cache_decode_state_interval", 18, "0 or a multiple of the block size 12", "96"),
        ("prefix_cache_decode_state_interval", -12, "at least 0", "96"),
        ("return_routed_experts", "yes", "true or false", "False"),
        ("require_cached_experts", 1, "true or false", "False"),
        ("require_cached_experts", True, "false unless return_routed_experts is true", "false"),
        ("cache_partial_blocks", 1, "true or false", "False"),
        ("experts", (1, 2), "three whole numbers, at least 1", "(128, 48, 8)"),
        ("experts", None, "three whole numbers, at least 1", "(128, 48, 8)"),
        ("groups", ("full",), "a tuple of groups", "GroupConfig("),
        ("groups", 5, "a tuple of groups", "GroupConfig("),
    ],
)
def test_invalid_value_is_refused_with_value_rule_and_example(name, value, rule, example):
    with pytest.raises(ConfigError) as refused:
        CacheConfig(**{"num_blocks": 8, "block_size": 12, name: value})
    message = str(refused.value)
    assert message.startswith(f"{name} {value!r} must be ") or name == "kernel_block_size"
    assert f"{name} {value!r}" in message
    assert rule in message
    assert example in message


@pytest.mark.parametrize(
    ("field", "value", "rule", "example"),
    [
        ("kind", "sliding", "one of full, window, chunk, state", "'full'"),
        ("kind", None, "one of full, window, chunk, state", "'full'"),
        ("block_size", 0, "at least 1", "64"),
        ("block_size", "4", "whole number", "64"),
        ("block_size", 3.0, "whole number", "64"),
        ("size", 0, "at least 1", "1024"),
        ("size", 2.5, "whole number", "1024"),
        ("kernel_block_size", 5, "divide block_size 12", "1, 2, 3, 4, 6, 12"),
        ("draft", "no", "true or false", "False"),
        ("state_blocks", 0, "at least 1", "1"),
        ("state_blocks", 1.5, "whole number", "1"),
        ("ratio", 0, "at least 1", "1"),
        ("ratio", 5, "a divisor of the tokens of a kernel block, 12", "1"),
        ("beside", "1", "whole number", "0"),
        ("beside", 2, "another group with tokens, alike", "0"),
        ("beside", 1, "another group with tokens, alike", "0"),
    ],
)
@pytest.mark.parametrize("index", [0, 1])
def test_invalid_group_is_refused_by_its_number_with_value_rule_and_example(
    index, field, value, rule, example
):
    groups = [GroupConfig("full", 12), GroupConfig("full", 12)]
    groups[index] = GroupConfig(**{"kind": "window", "block_size": 12, "size": 9, field: value})
    with pytest.raises(ConfigError) as refused:
        CacheConfig(8, groups=tuple(groups))
    message = str(refused.value)
    assert message.startswith(f"groups[{index}].{field} {value!r} must ")
    assert rule in message
    assert example in message


@pytest.mark.parametrize("experts", [(0, 48, 8), (128, 48, 0), (128, 48, 1.5), (128, 48)])
def test_experts_of_no_model_are_refused_if_their_rows_are_wanted(experts):
    with pytest.raises(ConfigError, match=r"experts .* must be three whole numbers") as refused:
        CacheConfig(8, return_routed_experts=True, experts=experts)
    assert str(experts) in str(refused.value)
    assert "(128, 48, 8)" in str(refused.value)


@draws
@given(st.integers(1, 300), st.integers(-3, 300))
def test_kernel_block_size_is_accepted_exactly_if_it_divides(block_size, kernel_block_size):
    divisors = [n for n in range(1, block_size + 1) if block_size % n == 0]
    if kernel_block_size in divisors:
        check_kernel_block_size(block_size, kernel_block_size)
        return
    with pytest.raises(ConfigError) as refused:
        check_kernel_block_size(block_size, kernel_block_size)
    assert f"kernel_block_size {kernel_block_size} " in str(refused.value)
    assert f"block_size {block_size};" in str(refused.value)
    assert str(refused.value).endswith(f"legal choices: {', '.join(map(str, divisors))}")


def test_a_pool_whose_kernel_blocks_overflow_their_int32_ids_is_refused():
    CacheConfig(2**31 // 64, block_size=64, kernel_block_size=1)
    with pytest.raises(ConfigError, match="num_blocks 33554433 must be at most 33554432"):
        CacheConfig(2**31 // 64 + 1, block_size=64, kernel_block_size=1)
    groups = (GroupConfig("full", 32), GroupConfig("window", 64, 8, kernel_block_size=1))
    CacheConfig(2**31 // 64, groups=groups)
    with pytest.raises(ConfigError, match="num_blocks 33554433 must be at most 33554432"):
        CacheConfig(2**31 // 64 + 1, groups=groups)


def test_a_configuration_never_changes():
    config = CacheConfig(8)
    for field in dataclasses.fields(config):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field.name, getattr(config, field.name))


def test_default_kernel_block_is_the_block():
    config = CacheConfig(8, block_size=48)
    assert (config.kernel_size, config.kernel_ratio) == (48, 1)


@pytest.mark.parametrize(
    ("others", "reason"),
    [
        ({"groups": (GroupConfig("full", 4), GroupConfig("window", 4, 8))}, "with a window group"),
        ({"groups": (GroupConfig("chunk", 4, 8),)}, "with a chunk group"),
        ({"groups": (GroupConfig("full", 4), GroupConfig("state", 4))}, "with a state group"),
        ({"groups": (GroupConfig("full", 4), GroupConfig("full", 4, draft=True))}, "draft group"),
        (
            {"return_routed_experts": True, "experts": (8, 1, 1), "require_cached_experts": True},
            "partial blocks keep no expert rows",
        ),
    ],
)
def test_partial_blocks_are_refused_where_hits_need_whole_units(others, reason):
    with pytest.raises(ConfigError, match=reason) as refused:
        CacheConfig(8, cache_partial_blocks=True, **others)
    assert str(refused.value).startswith("cache_partial_blocks True must be false ")
    assert CacheConfig(8, **others).cache_partial_blocks is False


def test_every_option_has_a_range_or_a_reason():
    assert options.without_a_range() == options.LEFT_OUT.keys()
