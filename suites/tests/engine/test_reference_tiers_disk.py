"""The disk tier on a real disk: killed, full, spoilt and foreign files; and its metrics."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys

import pytest

from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.engine.engine import Engine
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.model.symbolic import SymbolicModel
from kvproof.reference.stores.object_format import HEADER_BYTES
from kvproof.reference.tiers.disk_tier import DiskTier
from kvproof.reference.tiers.files import Folder
from kvproof.reference.tiers.host_tier import HostTier
from kvproof.suites.tests.patience import LONG, until

WRITER = """
import sys
from pathlib import Path
from kvproof.reference.tiers.disk_tier import DiskTier
from kvproof.reference.tiers.files import Folder
tier = DiskTier(Folder(Path(sys.argv[1])), 2_000_000)
for number in range(10**9):
    tier.store({number.to_bytes(32, "big"): number.to_bytes(4, "big") * 25_000})
"""
"""Stores objects of 100 kB, evicting as it goes, until it is killed."""

READER = """
import resource
import sys
from pathlib import Path
from kvproof.reference.tiers.disk_tier import DiskTier
from kvproof.reference.tiers.files import Folder
tier = DiskTier(Folder(Path(sys.argv[1])), 2_000_000)
objects = {number.to_bytes(32, "big"): bytes(100) for number in range(200)}
tier.store(objects)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
with tier.acquire(list(objects)) as lease:
    read = sum(view is not None for view in lease.views)
print(read, tier.counts.errors, len(tier.keys()))
"""
"""Reads 200 objects at once in a process that may have 64 files open."""


def key(number):
    return number.to_bytes(32, "big")


def content(number):
    return number.to_bytes(4, "big") * 25_000


@pytest.mark.parametrize("written", [3, 25, 60])
def test_a_process_killed_while_it_stores_leaves_whole_objects_only(tmp_path, written):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
    try:
        last = tmp_path / key(written).hex()
        until(lambda: last.exists() or process.poll() is not None)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    tier = DiskTier(Folder(tmp_path), 2_000_000)
    numbers = [int.from_bytes(each, "big") for each in tier.keys()]  # noqa: SIM118 - a list
    with tier.acquire([key(number) for number in numbers]) as lease:
        served = [bytes(view) if view is not None else None for view in lease.views]
    assert served == [content(number) for number in numbers]
    assert numbers[-1] >= written
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert files.pop("lock") == 0
    assert sorted(files) == sorted(key(number).hex() for number in numbers)
    assert sum(files.values()) <= 2_000_000


def store(folder, *numbers):
    tier = DiskTier(Folder(folder), 2_000_000)
    tier.store({key(number): content(number) for number in numbers})
    tier.files.close()


def reopened(folder):
    tier = DiskTier(Folder(folder), 2_000_000)
    with tier.acquire([key(1)]) as lease:
        return lease.views[0] is not None, tier


@pytest.mark.parametrize("at", [0, 8, 40, 48, 52, 60, HEADER_BYTES, -1])
def test_one_wrong_bit_anywhere_is_found(tmp_path, at):
    store(tmp_path, 1)
    path = tmp_path / key(1).hex()
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    found, tier = reopened(tmp_path)
    assert (found, tier.counts.errors, path.exists()) == (False, 1, False)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 100_063])
def test_a_file_cut_anywhere_is_not_served(tmp_path, size):
    store(tmp_path, 1)
    os.truncate(tmp_path / key(1).hex(), size)
    assert not reopened(tmp_path)[0]


def test_a_file_of_another_object_is_not_served_under_this_name(tmp_path):
    store(tmp_path, 2)
    (tmp_path / key(2).hex()).rename(tmp_path / key(1).hex())
    assert not reopened(tmp_path)[0]


def test_files_of_others_stay_and_unfinished_ones_go(tmp_path):
    store(tmp_path, 1)
    names = ["README", "ab", "ABCD" * 16, key(3).hex()[:-1]]
    for name in [*names, f"{key(3).hex()}.tmp"]:
        (tmp_path / name).write_bytes(b"mine")
    assert reopened(tmp_path)[0]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*names, "lock", key(1).hex()}


def test_what_cannot_be_read_is_computed_and_counted(tmp_path):
    store(tmp_path, 1)
    tier = DiskTier(Folder(tmp_path), 2_000_000)
    path = tmp_path / key(1).hex()
    path.unlink()
    path.mkdir()
    host = HostTier(1_000_000, below={"disk": tier})
    with host.acquire([key(1)]) as lease:
        assert lease.views == (None,)
    assert tier.counts.errors >= 1
    assert host.lookup([key(1)]) == [False]


def test_more_objects_are_read_at_once_than_a_process_may_open_files(tmp_path):
    # In a process of its own: how many files this one has open is the other tests' business.
    reader = [sys.executable, "-c", READER, str(tmp_path)]
    done = subprocess.run(reader, capture_output=True, text=True, timeout=LONG)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "200 0 200\n")


@pytest.mark.parametrize("trouble", [OSError(errno.EMFILE, "too many open files"), MemoryError()])
def test_what_the_process_is_short_of_removes_no_file(tmp_path, monkeypatch, trouble):
    def short(*_):
        raise trouble

    store(tmp_path, 1)
    tier = DiskTier(Folder(tmp_path), 2_000_000)
    with monkeypatch.context() as patch:
        patch.setattr(Folder, "view", short)
        with tier.acquire([key(1)]) as lease:
            assert (lease.views, tier.counts.errors) == ((None,), 1)
    with tier.acquire([key(1)]) as lease:
        assert bytes(lease.views[0]) == content(1)


def test_a_file_that_cannot_be_removed_counts_until_it_is_written_over(tmp_path, monkeypatch):
    def stuck(*_):
        raise PermissionError(errno.EPERM, "not permitted")

    tier = DiskTier(Folder(tmp_path), 2_000_000)
    size = HEADER_BYTES + len(content(1))
    for _ in range(3):
        assert tier.store({key(1): content(1)})
        with monkeypatch.context() as patch:
            patch.setattr(Folder, "remove", stuck)
            tier.drop([key(1)])
        assert tier.used == size
    tier.store({key(1): content(1)})
    tier.drop([key(1)])
    assert tier.used == 0


def test_a_view_outlives_the_removal_of_its_file(tmp_path):
    tier = DiskTier(Folder(tmp_path), 100_000 + HEADER_BYTES)
    tier.store({key(1): content(1)})
    lease = tier.acquire([key(1)])
    assert tier.drop([key(1)]) == 1
    assert not (tmp_path / key(1).hex()).exists(), "a process that comes now must not find it"
    assert tier.store({key(2): content(2)}) == frozenset(), "what is read takes room"
    assert bytes(lease.views[0]) == content(1)
    lease.release()
    assert tier.store({key(2): content(2)}) == {key(2)}


def test_metrics_of_all_tiers_are_read_when_asked(tmp_path):
    prometheus = pytest.importorskip("prometheus_client", reason="the extra metrics")
    from kvproof.reference.tiers.metrics import TierCollector  # needs the extra

    cache = CacheConfig(12, 4)
    options = EngineConfig(cache, host_tier=64, disk_tier=(tmp_path, "1MiB"), weights="w")
    engine = Engine(options, SymbolicModel(cache))
    registry = prometheus.CollectorRegistry()
    registry.register(TierCollector(engine.tiers))
    tokens = list(range(3)) * 7
    for _ in range(2):
        engine.generate([tokens], max_new_tokens=2)
        engine.cache.evict(100)

    def read(name, tier, **labels):
        return registry.get_sample_value(f"kvproof_tier_{name}", {"tier": tier, **labels})

    hits = [read("hit_tokens_total", tier, request="new") for tier in ("host", "disk")]
    assert sum(hits) == engine.cache.statistics.cumulative.hits == 20
    assert (read("resident_capacity", "host"), read("resident_bytes", "host")) == (64, 64)
    assert read("stored_total", "disk") == read("resident_objects", "disk") > 0
    assert read("hits_total", "disk") == engine.tiers.disk.counts.hits > 0
    assert read("errors_total", "disk") == read("resident_pinned", "disk") == 0
    assert registry.get_sample_value("kvproof_tier_loading_requests") == 0
    assert registry.get_sample_value("kvproof_tier_abandoned_loads_total") == 0
    engine.close()
