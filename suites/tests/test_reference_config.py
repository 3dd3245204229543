"""Every option reaches what it configures, and every invalid value is refused in a sentence."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.reference.cache_manager import CacheManager
from kvproof.reference.config import CacheConfig, ConfigError, check_kernel_block_size
from kvproof.reference.identity import HASH_ALGORITHMS, BlockKeys
from kvproof.reference.requests import Admission, Refusal
from kvproof.suites.tests.reference_kit import serve

draws = settings(derandomize=True, database=None, deadline=None, max_examples=100)


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
    chain = BlockKeys(block_size=4, digest=HASH_ALGORITHMS[value])
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


OPTIONS = {
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


def test_a_configuration_never_changes():
    config = CacheConfig(8)
    for field in dataclasses.fields(config):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config, field.name, getattr(config, field.name))


def test_default_kernel_block_is_the_block():
    config = CacheConfig(8, block_size=48)
    assert (config.kernel_size, config.kernel_ratio) == (48, 1)
