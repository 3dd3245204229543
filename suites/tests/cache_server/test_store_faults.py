"""The suite `store` passes on the cache server, and each property finds a fault of its kind."""

from __future__ import annotations

import pytest

from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.cache_server.strategies import SUITE
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.framework.suite_faults import Planted, catalogued, falls, sees_everything

FAULTS = (
    *catalogued("store"),
    Planted(
        "what is being written is found by its key",
        "nothing_is_found_before_its_commit",
        "cache_server.answers",
        "        return [entry if entry and entry.readable else None for entry in found]\n",
        "        return found\n",
    ),
    Planted(
        "the reservations of a dead client stay",
        "dead_clients_hold_nothing",
        "cache_server.answers",
        "        for batch in list(session.batches):\n",
        "        for batch in []:\n",
    ),
    Planted(
        "the key that a silent client was writing stays busy",
        "silent_writers_lose_keys_but_keep_memory",
        "cache_server.core",
        "        return self._verbs.do(session, request)\n",
        "        index, silent = session.space.index, {}\n"
        "        if isinstance(request, m.Reserve):\n"
        "            silent = {e.key: e for s in self.sessions.values() if s.lapsed\n"
        "                      for b in s.batches.values() for e in b.unwritten\n"
        "                      if e.space is session.space and e.key not in index}\n"
        "        index.update(silent)\n"
        "        try:\n"
        "            return self._verbs.do(session, request)\n"
        "        finally:\n"
        "            for key in silent:\n"
        "                index.pop(key, None)\n",
    ),
    Planted(
        "the most recently used go first",
        "eviction_is_lru_and_on_demand",
        "cache_server.object_index",
        "self._evict(next(iter(self.idle)))",
        "self._evict(next(reversed(self.idle)))",
    ),
    Planted(
        "reading is no use",
        "eviction_is_lru_and_on_demand",
        "cache_server.object_index",
        "        self.idle.move_to_end(entry)\n",
        "        self.idle.move_to_end(entry, last=entry.checksum is not None)\n",
    ),
    Planted(
        "room between two held objects is not looked for",
        "full_means_no_evictable_bytes",
        "cache_server.object_index",
        "            if start - end >= need:\n                return True\n",
        "",
    ),
    Planted(
        "objects are refused as long as nothing is free",
        "full_means_no_evictable_bytes",
        "cache_server.object_index",
        "        if offset is None and self._can_fit(rounded(size)):\n",
        "        if offset is None and len(self.idle) > 2 and self._can_fit(rounded(size)):\n",
    ),
    Planted(
        "what is dropped while it is written is published",
        "what_was_dropped_stays_gone",
        "cache_server.object_index",
        "        if not entry.listed:\n            self.discard(entry)\n            return False\n",
        "        if not entry.listed and entry.key not in entry.space.index:\n"
        "            entry.listed = True\n            entry.space.index[entry.key] = entry\n"
        "            self.doomed -= 1\n"
        "        if not entry.listed:\n            self.discard(entry)\n            return False\n",
    ),
    Planted(
        "a clear clears every namespace",
        "what_was_dropped_stays_gone",
        "cache_server.core",
        "        return self._verbs.do(session, request)\n",
        "        if isinstance(request, m.Clear):\n"
        "            return [self._verbs._clear(each) for each in self.spaces.values()][0]\n"
        "        return self._verbs.do(session, request)\n",
    ),
    Planted(
        "a message of another version is done",
        "malformed_messages_change_nothing",
        "cache_server.core",
        "        if call.version != m.VERSION:\n",
        "        if call.version < m.VERSION:\n",
    ),
    Planted(
        "a long message is read",
        "malformed_messages_change_nothing",
        "cache_server.answers",
        "        if len(keys) != len(sizes) or len(set(keys)) != len(keys):\n",
        "        if len(keys) != len(sizes):\n            keys = keys[: len(sizes)]\n"
        "        if len(set(keys)) != len(keys):\n",
    ),
    Planted(
        "a repeated call is done twice",
        "a_call_happens_once",
        "cache_server.core",
        "        if call.number == session.number:\n            return session.answer\n",
        "",
    ),
    Planted(
        "a reservation of the old server is committed to the new one",
        "leases_do_not_survive_a_server_restart",
        "cache_server.reservation",
        "        if isinstance(reply, m.Flags):\n",
        "        self.stored = frozenset(self.views) | self.present\n"
        "        if isinstance(reply, m.Flags):\n",
    ),
    Planted(
        "pins end with the session of their client",
        "pins_outlive_their_client",
        "cache_server.answers",
        "        for lease in list(session.leases):\n            self._end_lease(session, lease)\n",
        "        for lease in list(session.leases):\n            self._end_lease(session, lease)\n"
        "        for name in list(session.space.pins):\n"
        "            self._objects.unpin(session.space, name)\n",
    ),
    Planted(
        "pins may keep everything",
        "pins_outlive_their_client",
        "cache_server.answers",
        "<= most)",
        "<= 2 * most)",
    ),
)


@pytest.mark.slow(reason="explores until every situation occurs")
def test_the_cache_server_passes_and_everything_is_seen():
    sees_everything(SUITE)


RARE = (
    "a clear clears every namespace",
    "a reservation of the old server is committed to the new one",
)
"""7 and 6 s of CPU time until they are found."""


@pytest.mark.parametrize(
    "fault",
    one_in(4, FAULTS, reason="finds planted faults by exploration", but=RARE),
    ids=lambda fault: fault.story,
)
def test_a_planted_fault_falls_to_its_property(fault):
    falls(SUITE, FAULTS.index(fault), fault)


def test_what_an_abort_gives_back_was_used_in_the_order_in_which_it_was_asked_for():
    """The oracle once took the order in which objects were stored: a false alarm."""
    config = {"sizes": [100] * 4, "verify": False, "theme": "", "arena": 3 * 128}
    world = SUITE.machine(config, Coverage(SUITE.properties))
    world.apply("join", provable=True, space="a")
    for key in (0, 1):
        world.apply("store", keys=[key])
    world.apply("reserve", keys=[1, 0])
    world.apply("abort", room=0)
    for key in (2, 3):  # the second makes room by 1, the longest unused
        assert world.apply("store", keys=[key]) == f"1 of [{key}] are there"


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}
