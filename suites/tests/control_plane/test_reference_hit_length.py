"""Floors and their fixpoint on small known cases; the brute force is in test_hits_oracle."""

from __future__ import annotations

from itertools import permutations

import pytest

from kvproof.reference.core.attention_groups import Kind
from kvproof.reference.core.fixpoint import (
    ahead,
    aligned,
    blocks_needed,
    checkpoints,
    first_visible,
    leading,
    longest,
    outside,
    reductions,
    resident,
)
from kvproof.reference.core.identity import Span


def image(start: int, stop: int) -> Span:
    return Span("image", start, stop - start, "7f3c")


@pytest.mark.parametrize(
    ("kind", "size", "length", "first"),
    [
        ("full", 0, 40, 0),
        ("window", 1, 40, 40),
        ("window", 2, 40, 39),
        ("window", 41, 40, 0),
        ("window", 9, 3, 0),
        ("chunk", 7, 40, 35),
        ("chunk", 7, 42, 42),
        ("state", 0, 40, 40),
    ],
)
def test_first_visible_position(kind: Kind, size: int, length: int, first: int) -> None:
    assert first_visible(kind, size, length) == first


@pytest.mark.parametrize("window", [1, 2, 4, 5, 6, 9, 10])
def test_a_window_needs_its_last_blocks(window: int) -> None:
    needed = blocks_needed("window", window, 40, block_size=4)
    assert needed == range(10 - -(-(window - 1) // 4), 10)


def test_a_chunk_border_inside_a_block_needs_that_block() -> None:
    assert blocks_needed("chunk", 6, 8, block_size=4) == range(1, 2)
    assert blocks_needed("chunk", 6, 12, block_size=4) == range(3, 3)


@pytest.mark.parametrize(
    ("present", "most"),
    [(b"\1\1\0\1", 8), (b"\1\1\0\0", 8), (b"\0\1\1\1", 0), (b"\1\1\1\1", 16), (b"", 0)],
)
def test_full_attention_stops_at_the_first_hole(present: bytes, most: int) -> None:
    floor = resident("full", present, block_size=4)
    assert [floor(length) for length in (3, 4, 8, 16, 99)] == [
        min(most, length) for length in (0, 4, 8, 16, 99)
    ]
    assert leading(most // 4, block_size=4)(15) == floor(15)


def test_a_window_looks_over_holes_it_no_longer_sees() -> None:
    floor = resident("window", b"\0\1\1\0\1\1", size=6, block_size=4)
    assert [floor(length) for length in (24, 23, 16, 12, 11, 7)] == [24, 12, 12, 12, 0, 0]


def test_a_window_of_one_needs_nothing() -> None:
    assert resident("window", bytes(6), size=1, block_size=4)(23) == 20


def test_a_chunk_forgets_what_lies_before_it() -> None:
    floor = resident("chunk", b"\1\0\1\1\0", size=6, block_size=4)
    assert [floor(length) for length in (20, 16, 15, 11, 7)] == [16, 16, 12, 4, 4]


def test_a_state_has_no_residency_by_position() -> None:
    with pytest.raises(ValueError, match="checkpoints"):
        resident("state", b"\1", block_size=4)


def test_a_state_hits_at_checkpoints_only() -> None:
    floor = checkpoints([4, 12])
    assert [floor(length) for length in (3, 4, 11, 12, 99)] == [0, 4, 4, 12, 12]


def test_lengths_inside_a_span_fall_to_its_start() -> None:
    floor = outside([image(3, 6), image(6, 9)])
    assert [floor(length) for length in range(11)] == [0, 1, 2, 3, 3, 3, 6, 6, 6, 9, 10]


def test_rounding_down_lands_in_the_span_before() -> None:
    floors = [outside([image(6, 9), image(10, 14)]), aligned(8)]
    assert longest(13, floors) == 0
    steps = [(step.which, step.before, step.after) for step in reductions(13, floors)]
    assert steps == [(0, 13, 10), (1, 10, 8), (0, 8, 6), (1, 6, 0)]


def test_a_draft_group_costs_one_unit() -> None:
    draft = ahead(leading(5, block_size=4), unit=4, limit=20)
    assert longest(20, [aligned(4), draft]) == 16
    assert longest(20, [aligned(4), draft, draft, leading(9, block_size=2)]) == 16
    assert ahead(leading(1, block_size=4), unit=4, limit=20)(20) == 0


def test_a_draft_group_costs_nothing_where_another_limits_more() -> None:
    draft = ahead(leading(5, block_size=4), unit=4, limit=20)
    assert longest(20, [draft, leading(4, block_size=4)]) == 16


def test_a_draft_window_must_be_valid_where_the_hit_ends_and_one_unit_on() -> None:
    window = resident("window", b"\0\1\1\1", size=5, block_size=4)
    draft = ahead(window, unit=4, limit=16)
    assert [draft(length) for length in (16, 12, 8, 4)] == [12, 12, 8, 0]


def test_the_order_of_floors_does_not_matter() -> None:
    floors = [
        aligned(6),
        resident("window", b"\1\0\1\1\1\0\1\1", size=7, block_size=3),
        checkpoints([6, 12, 18]),
        outside([image(14, 20)]),
    ]
    assert {longest(24, order) for order in permutations(floors)} == {12}


def test_reductions_add_up_to_what_was_lost() -> None:
    floors = [aligned(4), checkpoints([4, 9]), leading(3, block_size=4)]
    lost = sum(step.before - step.after for step in reductions(23, floors))
    assert lost == 23 - longest(23, floors) == 19


def test_no_limit_loses_nothing() -> None:
    assert longest(17, []) == 17
    assert list(reductions(17, [])) == []
