"""Rows of levels: exclusions hold in each, and a covering array has every pair that is left."""

from __future__ import annotations

import random

import pytest

from kvproof.harness.contract.factors import Row, never
from kvproof.suites.framework.rows import DeadEnd, Factors, pairs_of

LEVELS = {"tier": ("none", "host", "disk", "peer"), **dict.fromkeys("abcdefgh", ("off", "on"))}
FACTORS = Factors(
    LEVELS,
    [
        never("no disk beside a", {"tier": "disk", "a": "on"}),
        never("all three are too much", {"b": "on", "c": "on", "d": "on"}),
        never("a peer needs e", {"tier": "peer", "e": "off"}),
        never("e needs no f", {"e": "on", "f": "on"}),
    ],
)


def _possible() -> list[Row]:
    rows: list[Row] = [{}]
    for factor, levels in LEVELS.items():
        rows = [{**row, factor: level} for row in rows for level in levels]
    return [row for row in rows if not FACTORS.why_not(row)]


def test_a_covering_array_has_every_pair_that_some_row_can_have_and_few_rows() -> None:
    every = {pair for row in _possible() for pair in pairs_of(row)}
    assert FACTORS.pairs == every
    assert (("tier", "peer"), ("f", "on")) not in every  # it follows from two exclusions
    assert not any(FACTORS.why_not(row) for row in FACTORS.covering)
    assert len(FACTORS.covering) <= 14  # 8 rows have the pairs of the largest two factors


def test_rows_that_are_drawn_are_legal_and_have_what_is_given() -> None:
    source = random.Random(1)
    drawn = [FACTORS.draw(source.choice, {"tier": ["disk", "peer"], "b": "on"}) for _ in range(200)]
    assert not any(FACTORS.why_not(row) for row in drawn)
    assert {row["tier"] for row in drawn} == {"disk", "peer"}
    assert {row["b"] for row in drawn} == {"on"}
    assert {row["h"] for row in drawn} == {"off", "on"}
    assert list(drawn[0]) == list(LEVELS)


def test_what_excludes_itself_is_no_row() -> None:
    with pytest.raises(DeadEnd, match="leaves no level of e"):
        FACTORS.draw(random.Random(1).choice, {"tier": "peer", "f": "on"})


def test_an_exclusion_of_what_is_no_factor_is_a_typo() -> None:
    with pytest.raises(ValueError, match=r"'teir' of .* is no factor"):
        Factors(LEVELS, [never("none", {"teir": "disk"})])


def test_a_factor_with_one_level_is_no_part_of_rows_and_its_exclusions_hold() -> None:
    table = Factors(
        {"tier": ["disk"], "a": ["off", "on"], "b": ["off", "on"]},
        [
            never("no disk beside a", {"tier": "disk", "a": "on"}),
            never("no host beside b", {"tier": "host", "b": "on"}),
        ],
    )
    assert table.fixed == {"tier": "disk"}
    assert {tuple(row.items()) for row in table.covering} == {
        (("a", "off"), ("b", "off")),
        (("a", "off"), ("b", "on")),
    }


def test_a_table_within_given_levels_has_no_others() -> None:
    table = FACTORS.within({"tier": ("disk", "peer"), "a": "on"})
    assert table.fixed == {"a": "on"}
    assert table.levels["tier"] == ("disk", "peer")
    assert {row["tier"] for row in table.covering} == {"peer"}  # no disk beside a


def test_a_level_that_leads_nowhere_is_dropped() -> None:
    never_both = [
        never("x", {"a": "on", "b": ("off", "on"), "c": "on"}),
        never("y", {"a": "on", "c": "off"}),
    ]
    table = Factors(dict.fromkeys("abc", ("on", "off")), never_both)
    assert table.draw(lambda able: able[0])["a"] == "off"
