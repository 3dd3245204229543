"""Histories that fuzzing drew for the suite `tiers`, and the mixes of the suite `tiered`."""

from __future__ import annotations

from kvproof.suites.framework.component_suite import run
from kvproof.suites.reference.tiered_hits.properties import MIXES
from kvproof.suites.reference.tiered_hits.strategies import GROUPS
from kvproof.suites.reference.tiers.strategies import SUITE


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


def test_every_mix_has_its_groups():
    assert set(MIXES) == set(GROUPS)
