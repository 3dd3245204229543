"""The reference's plan of moves, by hand; the suite `disaggregation` draws the rest."""

from __future__ import annotations

from collections import Counter

import pytest

from kvproof.harness.contract.disaggregation import Side, words
from kvproof.reference.disaggregation.lease import Leases
from kvproof.reference.disaggregation.plan import Plan
from kvproof.reference.disaggregation.workers import LAYOUTS, Workers, cache
from kvproof.suites.reference.disaggregation.local import ask

SIDE = {"ranks": 2, "block_size": 4, "blocks": 5, "heads": 2, "layers": 1, "layout": "LBHNC"}


def test_more_workers_than_heads_hold_copies() -> None:
    workers = Workers(4, 2, 4)
    assert [[*workers.heads_of(rank)] for rank in range(4)] == [[0], [0], [1], [1]]


def test_blocks_go_round_the_context_ranks() -> None:
    workers = Workers(2, 0, 4, context=2)
    assert [workers.holds(1, position) for position in (0, 3, 4, 7, 8)] == [
        False, False, True, True, False,
    ]  # fmt: skip
    assert workers.slot([7, 9], 13) == (9, 1)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [((3, 4, 4), "3 workers"), ((2, 2, 4, 2), "latent"), ((4, 0, 4, 2), "1 or all")],
)
def test_sizes_that_leave_a_head_without_a_place_are_refused(
    sizes: tuple[int, ...], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        Workers(*sizes)


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [
        (Workers(2, 4, 4), Workers(4, 4, 8)),
        (Workers(8, 2, 8), Workers(1, 2, 4)),
        (Workers(4, 0, 4, context=4), Workers(2, 0, 8, context=2)),
    ],
)
def test_every_slot_is_taken_once(prefill: Workers, decode: Workers) -> None:
    plan = Plan(prefill, decode)
    for rank in range(decode.count):
        taken: Counter[tuple[int, int]] = Counter()
        table = [*range(30)]
        for piece in plan.pieces(rank, (table, table), 5, 21):
            for offset in range(piece.tokens):
                block, first = piece.target_at
                taken[piece.heads[1], block * decode.block_size + first + offset] += 1
        mine = sum(decode.holds(rank, position) for position in range(5, 21))
        assert set(taken.values()) == {1}
        assert len(taken) == mine * len(decode.heads_of(rank))


def test_a_sender_lets_go_once() -> None:
    lease = Leases()
    lease.keep(1, {0, 2})
    assert [lease.done(1, reader) for reader in (0, 0, 2, 2)] == [False, False, True, False]
    assert lease.done(7, 0) is False
    with pytest.raises(ValueError, match="nobody reads prompt 2"):
        lease.keep(2, ())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_an_order_in_memory(layout: str) -> None:
    pages = cache(layout, 2, 3, 4, 5, 2)
    assert pages.shape == (2, 3, 4, 5, 2)
    strides = dict(zip("LBHN", pages.strides, strict=False))
    assert sorted("LBHN", key=lambda axis: -strides[axis]) == [*layout[:-1]]


def test_slots_have_words_of_their_own() -> None:
    every = words(1, 3, range(4), range(50)).reshape(-1, 2).tolist()
    assert len({tuple(each) for each in every}) == 600
    assert words(2, 1, [0], [0]).tolist() != words(1, 1, [0], [0]).tolist()


def test_calls_connect_and_move() -> None:
    prompt = {"number": 1, "tokens": 6, "cached": 0, "prefill": [1, 2], "decode": [3, 4]}
    traits, opened, moved = ask(
        ("traits", {}), ("open", {"prefill": SIDE, "decode": SIDE}),
        ("move", {**prompt, "order": [0, 1]}),
    )  # fmt: skip
    assert [*traits["lacks"]] == ["kernel"]
    assert opened is None
    assert moved["error"] == ""
    assert (moved["read"], moved["freed"]) == ([[0], [1]], [[0], [1]])
    (refused,) = ask(("open", {"prefill": {**SIDE, "ranks": 3}, "decode": SIDE}))
    assert refused == {"why": "3 workers cannot share 2 heads evenly", "alone": True}


def test_a_side_knows_the_position_of_its_slots() -> None:
    side = Side(2, 4, 9, 1, 1, "LBHNC", context=2, latent=True)
    positions = side.held(1, 14)
    blocks, offsets = side.slots([5, 6], positions)
    found = [
        side.position(1, [5, 6].index(block), offset)
        for block, offset in zip(blocks.tolist(), offsets.tolist(), strict=True)
    ]
    assert found == positions == [4, 5, 6, 7, 12, 13]
    assert side.position(0, -1, 3) == -1
