"""The suite `tiers` passes on the reference, and each property finds a fault of its kind."""

from __future__ import annotations

import pytest

from kvproof.suites.framework.component_suite import run
from kvproof.suites.reference.tiers.strategies import SUITE
from kvproof.suites.tests.fast_share import one_in
from kvproof.suites.tests.framework.suite_faults import Planted, catalogued, falls, sees_everything

FAULTS = (
    *catalogued("tiers"),
    Planted(
        "bytes are kept by reference to what the next eviction overwrites",
        "objects_come_back_as_they_were_stored",
        "tiers.host_tier",
        "        copy[:] = source\n",
        "        copy[: len(copy) // 2] = source[: len(copy) // 2]\n",
    ),
    Planted(
        "what was found on the disk is not counted as found",
        "objects_come_back_as_they_were_stored",
        "tiers.host_tier",
        "if key in pinned else below.get(key)",
        "if key in pinned else None",
    ),
    Planted(
        "a checksum is made and not compared",
        "torn_or_damaged_files_are_never_served",
        "stores.object_format",
        "return payload if zlib.crc32(payload) == checksum else None",
        "return payload if zlib.crc32(payload) + checksum else None",
    ),
    Planted(
        "what is dropped while it is read is there for the next process",
        "what_is_forgotten_is_not_found",
        "tiers.disk_tier",
        "            self.used -= file.size\n        self._remove(key.hex(), file.size)\n",
        "            self.used -= file.size\n            self._remove(key.hex(), file.size)\n",
    ),
    Planted(
        "a file is written under its final name (torn by a kill)",
        "torn_or_damaged_files_are_never_served",
        "tiers.disk_tier",
        'TEMPORARY = ".tmp"',
        'TEMPORARY = ""',
    ),
    Planted(
        "the key in the header is not compared",
        "torn_or_damaged_files_are_never_served",
        "stores.object_format",
        "magic == MAGIC and found == key and",
        "magic == MAGIC and len(found) == len(key) and",
    ),
    Planted(
        "what an earlier process was writing stays for ever",
        "what_was_whole_survives_the_process",
        "tiers.disk_tier",
        "            if name.endswith(TEMPORARY) or not self._promises(key, name, size):\n"
        "                self._remove(name, size)\n",
        "            if name.endswith(TEMPORARY) or not self._promises(key, name, size):\n",
    ),
    Planted(
        "a new process begins with the newest file as its next victim",
        "what_was_whole_survives_the_process",
        "tiers.disk_tier",
        "for name, size in self.files.names():",
        "for name, size in reversed(self.files.names()):",
    ),
    Planted(
        "files of others are removed",
        "what_was_whole_survives_the_process",
        "tiers.disk_tier",
        "                continue  # not ours\n",
        "                self.files.remove(name)\n                continue\n",
    ),
    Planted(
        "headers are not counted",
        "tiers_stay_within_their_bytes",
        "tiers.disk_tier",
        "return self.used + size <= self.capacity",
        "return True",
    ),
    Planted(
        "the bytes of forgotten objects that are still read are given away",
        "tiers_stay_within_their_bytes",
        "tiers.host_tier",
        "missing = self._used + size - self.capacity",
        "missing = self._used + size - self.capacity - 1",
    ),
    Planted(
        "a new object takes the memory of one that is read",
        "what_is_read_stays_as_it_is",
        "tiers.host_tier",
        "        gone = self._objects.pop(key)\n",
        "        gone = self._objects.pop(key)\n        gone.data[:1] = b'?'\n",
    ),
    Planted(
        "an object without room is said to be kept",
        "a_store_says_what_it_keeps",
        "tiers.host_tier",
        "        return frozenset(kept)\n",
        "        return frozenset(objects)\n",
    ),
    Planted(
        "a failed read is not counted",
        "failures_of_the_disk_are_counted_and_harm_nobody",
        "tiers.disk_tier",
        '            self._failed("read", key.hex(), why)\n',
        '            self.counts.errors += why == "it is not whole"\n',
    ),
    Planted(
        "a full disk is a failure of the request",
        "failures_of_the_disk_are_counted_and_harm_nobody",
        "tiers.disk_tier",
        '            self._failed("write", name, error)\n',
        '            self._failed("write", name, error)\n            raise\n',
    ),
    Planted(
        "what is dropped in host memory comes back from the disk",
        "what_is_forgotten_is_not_found",
        "tiers.host_tier",
        "        self.below.drop([*dropped])\n",
        "",
    ),
    Planted(
        "the links of the first chain are kept and given to everybody",
        "keys_differ_where_content_may",
        "tiers.object_key",
        "        return keys.keys\n",
        "        self._kept = getattr(self, '_kept', keys.keys)\n        return self._kept\n",
    ),
    Planted(
        "a key does not depend on media",
        "keys_differ_where_content_may",
        "core.identity",
        "encode(parent, little_endian(tokens), *fields)",
        "encode(parent, little_endian(tokens))",
    ),
    Planted(
        "a key does not depend on the sizes of windows",
        "keys_differ_where_content_may",
        "tiers.object_key",
        "encode(g.kind, g.block_size, g.size, g.kernel_size,",
        "encode(g.kind, g.block_size, g.kernel_size,",
    ),
)


@pytest.mark.slow(reason="explores until every situation occurs")
def test_the_reference_passes_and_everything_is_seen():
    sees_everything(SUITE)


@pytest.mark.parametrize(
    "fault",
    one_in(4, FAULTS, reason="finds planted faults by exploration"),
    ids=lambda fault: fault.story,
)
def test_a_planted_fault_falls_to_its_property(fault):
    falls(SUITE, FAULTS.index(fault), fault)


def test_every_property_has_its_fault():
    assert {fault.property for fault in FAULTS} == {prop.name for prop in SUITE.properties}


def test_what_is_evicted_while_it_is_read_is_removed_once():
    """A fuzz run drew it: another file of that name had come and gone before the reader ended."""
    history = run(
        SUITE,
        {"sizes": [1, 1, 40, 8, 8, 1, 40, 1, 40], "host": 17, "disk": 210},
        [
            ("store", {"numbers": [1, 8, 3]}),
            ("read", {"numbers": [1, 8]}),
            ("spoil", {"number": 8, "how": "empty"}),
            ("read", {"numbers": [8]}),
            ("store", {"numbers": [4, 8]}),
            ("store", {"numbers": [2]}),
            ("end", {"reading": 1}),
        ],
    )
    assert [each.answer for each in history.operations][:3] == ["[1, 3, 8]", "[1, 8]", "empty"]


def test_a_file_that_could_not_be_removed_counts_until_another_has_its_name():
    """A fuzz run drew it: the model of the part counted such a file and the next one."""
    history = run(
        SUITE,
        {"sizes": [40, 1, 40, 40, 40, 1, 1, 40, 1], "host": 141, "disk": 251},
        [
            ("read", {"numbers": [0]}),
            ("store", {"numbers": [0, 6, 3, 2]}),
            ("store", {"numbers": [0, 0, 4]}),
            ("read", {"numbers": [6, 6, 6, 6]}),
            ("read", {"numbers": [6]}),
            ("read", {"numbers": [3, 6, 3, 3]}),
            ("read", {"numbers": [3]}),
            ("trouble", {"how": "full", "after": 3, "cut": 100}),
            ("end", {"reading": 4}),
            ("end", {"reading": 2}),
            ("store", {"numbers": [7, 7, 2, 4]}),
            ("drop", {"numbers": [5, 5, 3, 0]}),
            ("read", {"numbers": [4, 6, 4, 4]}),
            ("store", {"numbers": [8, 7, 3]}),
        ],
    )
    assert len(history.operations) == 14
