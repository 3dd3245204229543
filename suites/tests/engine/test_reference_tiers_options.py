"""Options of tiers reach what they configure; wrong ones are refused with all that helps."""

from __future__ import annotations

import pytest

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.validation import ConfigError
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.tiers.host_tier import HostTier

CACHE = CacheConfig(12, 4)


def build(cache=CACHE, **options):
    return Engine(EngineConfig(cache, **options), SymbolicModel(cache))


@pytest.mark.parametrize(
    ("value", "size"),
    [(4096, 4096), ("512", 512), ("100B", 100), ("1.5 KiB", 1536), ("2MiB", 2 << 20),
     ("4GiB", 4 << 30), ("1TiB", 1 << 40), ("9007199254740993B", 2**53 + 1),
     ("9" * 400, 10**400 - 1)],
)  # fmt: skip
def test_host_tier_is_the_size_of_host_memory(value, size):
    assert build(host_tier=value).tiers.host.capacity == size


@pytest.mark.parametrize("value", [0, "0B", "0GiB"])
def test_without_host_tier_there_are_no_tiers(value):
    engine = build(host_tier=value)
    assert engine.tiers is None
    assert engine.cache.eviction.listener is None
    assert engine.scheduler.cache is engine.cache


@pytest.mark.parametrize("size", [5000, "1MiB"])
def test_disk_tier_is_a_folder_and_its_size(tmp_path, size):
    engine = build(host_tier=100, disk_tier=(tmp_path / "kv", size), weights="w")
    assert engine.tiers.disk.capacity == (5000 if size == 5000 else 1 << 20)
    for n in range(3):
        engine.tiers.host.store({bytes([n]) * 32: bytes(60)})
    files = sorted(path.name for path in (tmp_path / "kv").iterdir())
    assert files == [*(f"{n:02x}" * 32 for n in range(2)), "lock"]


def test_weights_name_what_a_later_process_finds(tmp_path):
    prompt = list(range(4)) * 5

    def hit(weights):
        engine = build(host_tier="1KiB", disk_tier=(tmp_path, "1MiB"), weights=weights)
        engine.generate([prompt], max_new_tokens=2)
        engine.close()
        return dict(engine.tiers.loaded)

    assert [hit(name) for name in ("one", "one", "two", "two")] == [{}, {"disk": 16}] * 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weights": "w"}, "host_tier 0 must be above 0 if there is a remote store"),
        ({"host_tier": 100}, "weights '' must be the name of the weights if there is a remote"),
    ],
)
def test_a_remote_store_needs_host_memory_and_a_name(options, words):
    with pytest.raises(ConfigError, match=words):
        Engine(EngineConfig(CACHE, **options), SymbolicModel(CACHE), remote=HostTier(100))


REFUSED = [
    ({"host_tier": -1}, ["host_tier", "-1", "bytes", "4GiB"]),
    ({"host_tier": "4 GB"}, ["host_tier", "'4 GB'", "GiB", "4GiB"]),
    ({"host_tier": True}, ["host_tier", "True", "4GiB"]),
    ({"host_tier": 1.5}, ["host_tier", "1.5", "4GiB"]),
    ({"host_tier": "much"}, ["host_tier", "'much'", "4GiB"]),
    ({"host_tier": 64, "disk_tier": "/kv"}, ["disk_tier", "'/kv'", "a folder and its size"]),
    ({"host_tier": 64, "disk_tier": ("", 5)}, ["disk_tier", "a folder and its size"]),
    ({"host_tier": 64, "disk_tier": ("kv", 0), "weights": "w"}, ["disk_tier", "above 0"]),
    ({"host_tier": 64, "disk_tier": ("kv", "x"), "weights": "w"}, ["disk_tier", "'x'", "100GiB"]),
    ({"disk_tier": ("kv", 5), "weights": "w"}, ["disk_tier", "host_tier is on", "None"]),
    ({"host_tier": 64, "disk_tier": ("kv", 5)}, ["weights", "''", "disk_tier is on"]),
    ({"host_tier": 64, "weights": 7}, ["weights", "7", "a name"]),
]


@pytest.mark.parametrize(("options", "words"), REFUSED, ids=lambda value: str(value)[:60])
def test_a_wrong_value_is_refused_with_value_rule_and_example(options, words):
    with pytest.raises(ConfigError) as raised:
        EngineConfig(CACHE, **options)
    assert all(word in str(raised.value) for word in words), raised.value


def test_tiers_need_a_cache_that_looks_things_up():
    cache = CacheConfig(12, 4, enable_prefix_caching=False)
    with pytest.raises(ConfigError, match=r"host_tier 64 must be 0 if enable_prefix_caching"):
        EngineConfig(cache, host_tier=64)
    EngineConfig(cache)


def test_keys_of_tiers_are_digests_of_256_bits():
    cache = CacheConfig(12, 4, hash_algorithm="builtin")
    with pytest.raises(ConfigError, match=r"hash_algorithm 'builtin' must be .* 256 bits"):
        EngineConfig(cache, host_tier=64)
    EngineConfig(cache)


def test_a_folder_that_cannot_be_one_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"disk_tier .*file.* must be a folder"):
        build(host_tier=64, disk_tier=(tmp_path / "file", 500), weights="w")


def test_two_engines_do_not_share_a_folder(tmp_path):
    options = {"host_tier": 64, "disk_tier": (tmp_path, 500), "weights": "w"}
    first = build(**options)
    with pytest.raises(ConfigError, match=r"in use by another process"):
        build(**options)
    first.close()
    build(**options).close()


class Immobile:
    """A model that computes and moves nothing."""


def test_a_model_that_cannot_move_blocks_is_refused():
    with pytest.raises(ValueError, match=r"host_tier 64 needs a model that moves .* Immobile"):
        Engine(EngineConfig(CACHE, host_tier=64), Immobile())
    Engine(EngineConfig(CACHE), Immobile())


def test_a_state_pool_of_its_own_is_part_of_the_key(tmp_path):
    groups = (GroupConfig("full", 4), GroupConfig("state", 4))
    found = []
    for pool in ("shared", "separate", "separate"):
        cache = CacheConfig(40, groups=groups, state_pool=pool, max_requests=2)
        engine = build(cache, host_tier=100, disk_tier=(tmp_path, "1MiB"), weights="w")
        engine.generate([[1, 2, 3] * 7], max_new_tokens=2)
        engine.close()
        found.append(sum(engine.tiers.loaded.values()))
    assert found == [0, 0, 20]
