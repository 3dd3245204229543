"""Pairs that a run has reached: what counts, what is excluded, and what a passing property says."""

from __future__ import annotations

from collections import Counter

from kvproof.harness.contract.factors import never
from kvproof.reports.values.pairs import level_rows, pairs_line
from kvproof.suites.framework.pairs import Space, coverage, half_unseen, reached
from kvproof.suites.framework.property import Property
from kvproof.suites.framework.rows import Factors

FACTORS = Factors(
    {"tier": ("none", "host"), "reset": ("off", "on"), "policy": ("fcfs", "priority")},
    [never("no reset beside a tier", {"tier": "host", "reset": "on"})],
)
STORED, ENDED = "blocks are stored", "a request ends"
SPACE = Space(FACTORS, {STORED: {"tier": ["host"]}})
PROPERTY = Property("it_holds", ("W1",), "it holds", (STORED, ENDED))
ROWS = (
    ({"tier": "none", "reset": "on", "policy": "fcfs"}, [ENDED]),
    ({"tier": "host", "reset": "off", "policy": "fcfs"}, [ENDED, STORED]),
)


def _seen(*rows: int) -> Counter[str]:
    return Counter(pair for at in rows for pair in reached(*ROWS[at]))


def test_pairs_are_reached_missing_or_excluded() -> None:
    found = coverage(SPACE, [PROPERTY], _seen(0, 1))
    assert (found.features, found.excluded_pairs) == (11, 1)
    assert found.excluded == {"tier host, reset on": "no reset beside a tier"}
    assert found.missing_features == [
        "reset off + policy priority",
        "reset on + policy priority",
        "tier host + policy priority",
        "tier none + policy priority",
        "tier none + reset off",
    ]
    # stored: host, off, fcfs, priority; ended: all six levels
    assert found.situations == 10
    assert found.missing_situations == [
        "policy priority | a request ends",
        "policy priority | blocks are stored",
    ]
    assert pairs_line(found) == (
        "pairs of features: 6 of 11 reached (54.5 %), 1 excluded; "
        "of a feature and a situation: 8 of 10 (80.0 %)"
    )
    rows = {(row.factor, row.level): row.missing for row in level_rows(found)}
    assert rows["policy", "priority"] == 6
    assert rows["tier", "host"] == 1


def test_a_property_that_passes_with_half_of_its_pairs_unseen_says_so() -> None:
    assert half_unseen(SPACE, PROPERTY, _seen(0)) == (
        "reached 3 of its 10 pairs of a feature and a situation"
    )
    assert half_unseen(SPACE, PROPERTY, _seen(0, 1)) == ""
    assert half_unseen(SPACE, PROPERTY._replace(situations=()), _seen()) == ""
