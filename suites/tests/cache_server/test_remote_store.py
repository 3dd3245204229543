"""The objects of two hosts in a real Redis or Valkey server (H6, G7)."""

from __future__ import annotations

import logging
import struct
import zlib

import pytest

from kvproof.reference.stores import object_format
from kvproof.reference.stores.object_format import HEADER_BYTES, header
from kvproof.reference.stores.remote_config import RemoteConfig
from kvproof.reference.stores.remote_store import RemoteStore, connect
from kvproof.suites.tests.cache_server.remote_kit import (
    content,
    host,
    key,
    name,
    needs_server,
    put,
    read,
    serving,
)

pytestmark = needs_server


@pytest.fixture(scope="module")
def running():
    with serving() as server:
        yield server


@pytest.fixture
def server(running):
    with running.client() as client:
        client.flushall()
    return running


@pytest.fixture
def store(server):
    with host(server) as store:
        yield store


def test_objects_come_back_as_they_were_stored(store):
    objects = {key(n): content(n, size) for n, size in enumerate((0, 1, 63, 64, 65, 1 << 20))}
    assert store.store(objects) == frozenset(objects)
    assert store.lookup([*objects, key(99)]) == [True] * 6 + [False]
    with store.acquire([*objects, key(99)]) as lease:
        *views, absent = lease.views
        assert absent is None
        assert [bytes(view) for view in views] == [*objects.values()]
        assert all(view.readonly for view in views)
    assert (store.counts.hits, store.counts.misses, store.counts.stored) == (6, 1, 6)


def test_any_flat_bytes_can_be_stored(store):
    numbers = memoryview(struct.pack("100i", *range(100))).cast("i")
    given = {key(1): bytearray(b"abc"), key(2): numbers, key(3): memoryview(b"0123456789")[2:5]}
    assert store.store(given) == frozenset(given)
    assert read(store, 1, 2, 3) == [b"abc", numbers.tobytes(), b"234"]


def test_two_hosts_share_what_either_stored(server, store):
    with host(server) as other:
        put(store, 1, 2)
        assert other.lookup([key(1), key(2), key(3)]) == [True, True, False]
        assert put(other, 2, 3) == {key(2), key(3)}
        assert read(store, 1, 2, 3) == [content(1), content(2), content(3)]
        assert other.counts.stored == 1, "what is there is not sent again"


def test_a_reset_leaves_other_hosts_entries_alone_and_says_so(server, store, caplog):
    caplog.set_level(logging.INFO, "kvproof.reference")
    with host(server) as other:
        put(store, 1, 2)
        put(other, 3)
        assert store.clear() == 3
        assert "left epoch 0 with 3 objects, which stay for other hosts" in caplog.text
        assert store.lookup([key(1), key(2), key(3)]) == [False] * 3
        assert read(other, 1, 2, 3) == [content(1), content(2), content(3)]
        put(store, 1)
        assert (store.status().objects, other.status().objects) == (1, 3)
        with host(server, epoch=store.epoch) as third:
            assert read(third, 1, 2) == [content(1), None]


def test_two_resets_lead_to_different_epochs(server, store):
    with host(server) as other:
        store.clear()
        other.clear()
        put(store, 1)
        assert read(other, 1) == [None]


def test_prefixes_and_epochs_do_not_see_each_other(server):
    with host(server, prefix="a", epoch="*") as one, host(server, prefix="a", epoch="b") as two:
        put(one, 1)
        put(two, 2, 3)
        assert (one.status().objects, two.status().objects) == (1, 2)
        assert (read(one, 2), read(two, 1)) == ([None], [None])


def test_a_lease_keeps_its_copies_whatever_happens(server, store):
    put(store, 1, 2)
    lease = store.acquire([key(1), key(2), key(1)])
    again = store.acquire([key(1)])
    assert store.status().pinned == 2
    assert store.drop([key(1), key(7)]) == 1
    with server.client() as client:
        client.flushall()
    assert [bytes(view) for view in lease.views] == [content(1), content(2), content(1)]
    lease.release()
    lease.release()
    assert store.status().pinned == 1
    again.release()
    assert store.status().pinned == 0
    with pytest.raises(ValueError, match="released"):
        bytes(lease.views[0])


def damaged(number: int) -> dict[str, bytes]:
    """Values that may be under a name and are not its object."""
    payload = content(number)
    whole = header(key(number), payload) + payload
    flipped = bytearray(whole)
    flipped[HEADER_BYTES + 500] ^= 1
    fields = struct.pack("<8s32sQI", b"kvproof0", key(number), len(payload), zlib.crc32(payload))
    old = (fields + struct.pack("<I", zlib.crc32(fields))).ljust(HEADER_BYTES, b"\0") + payload
    return {
        "truncated": whole[:-1],
        "only a header": whole[:HEADER_BYTES],
        "half a header": whole[:20],
        "empty": b"",
        "longer": whole + b"\0",
        "flipped": bytes(flipped),
        "flipped header": whole[:40] + bytes([whole[40] ^ 1]) + whole[41:],
        "foreign": b"something else entirely" * 40,
        "another object's": header(key(number + 1), payload) + payload,
        "another version": old,
    }


@pytest.mark.parametrize("kind", damaged(1))
def test_what_is_not_the_whole_object_is_a_miss_and_removed(server, store, kind):
    with server.client() as client:
        client.set(name(1), damaged(1)[kind])
        put(store, 2)
        assert read(store, 1, 2) == [None, content(2)]
        assert store.counts.dropped == 1
        assert client.exists(name(1)) == 0
    assert put(store, 1) == {key(1)}
    assert read(store, 1) == [content(1)]


def test_the_values_that_must_be_refused_differ_from_the_one_that_is_served(server, store):
    put(store, 1)
    with server.client() as client:
        whole = client.get(name(1))
    assert whole == header(key(1), content(1)) + content(1)
    assert whole not in damaged(1).values()
    assert whole[:8] == object_format.MAGIC != b"kvproof0"


def test_a_value_of_another_type_is_removed_like_a_torn_one(server, store):
    with server.client() as client:
        client.rpush(name(1), "a", "list")
        assert read(store, 1) == [None]
        assert client.exists(name(1)) == 0
    assert store.counts.dropped == 1


def test_an_object_that_is_there_is_never_written_over(server, store):
    put(store, 1)
    with server.client() as client:
        client.set(name(2), b"whose is this")
        before = client.get(name(1))
        assert store.store({key(1): b"other bytes", key(2): b"mine"}) == {key(1), key(2)}
        assert (client.get(name(1)), client.get(name(2))) == (before, b"whose is this")


def test_two_hosts_that_store_at_once_do_not_write_over_each_other(server, store):
    """Both saw that the name was free; the second one to send is the later one."""
    with host(server) as other:
        other._backend.exists_many = lambda names, *, until: [False] * len(names)
        put(store, 1)
        assert other.store({key(1): b"later"}) == {key(1)}
        assert read(store, 1) == [content(1)]


def test_a_call_is_one_round_trip_and_one_more_for_every_batch(server):
    with host(server, batch_bytes=10_000) as store:
        trips = counted(store)
        assert len(put(store, *range(100))) == 100
        assert trips == {"exists_many": 1, "set_many": 10}
        trips.clear()
        read(store, *range(100))
        assert trips["get_many"] <= 1 + -(-100 // (10_000 // (1000 + HEADER_BYTES)))
        trips.clear()
        store.lookup([*map(key, range(1000))])
        store.drop([*map(key, range(1000))])
        assert trips == {"exists_many": 1, "delete_many": 1}


def counted(store: RemoteStore) -> dict[str, int]:
    """Count calls of the verbs of a store's engine."""
    trips: dict[str, int] = {}
    for verb in ("get_many", "set_many", "exists_many", "delete_many"):
        original = getattr(store._backend, verb)

        def call(*given, verb=verb, original=original, **more):
            trips[verb] = trips.get(verb, 0) + 1
            return original(*given, **more)

        setattr(store._backend, verb, call)
    return trips


def test_objects_above_the_limit_are_not_sent(server):
    with host(server, largest_object=999) as store:
        assert store.store({key(1): content(1), key(2): content(2, 999)}) == {key(2)}
        assert (store.counts.refused, store.counts.stored) == (1, 1)


def test_the_status_counts_payload(store):
    put(store, 1, 2, 3)
    assert store.status() == (3, 3000, 0, 0)


def test_a_scan_names_every_object_once(store):
    put(store, *range(5000))
    assert store.status().objects == 5000
    assert store.clear() == 5000


def test_nothing_asked_is_nothing_done(store):
    assert store.store({}) == frozenset()
    assert store.lookup([]) == []
    assert store.acquire([]).views == ()
    assert store.drop([]) == 0


def test_a_store_of_the_default_options_works(server):
    assert (RemoteConfig().timeout_s, RemoteConfig().failures) == (1.0, 3)
    with connect(server.url) as store:
        assert put(store, 1) == {key(1)}
