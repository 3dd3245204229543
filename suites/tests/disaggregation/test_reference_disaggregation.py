"""The reference's plan of moves, by hand; the suite `disaggregation` draws the rest."""

from __future__ import annotations

from collections import Counter

import pytest

from kvproof.harness.contract.disaggregation_sides import PARTS, Side, Tables, words
from kvproof.reference.disaggregation.lease import Arrivals, Leases
from kvproof.reference.disaggregation.plan import Kind, Plan, readers
from kvproof.reference.disaggregation.workers import (
    LAYOUTS,
    StateWorkers,
    WindowWorkers,
    Workers,
    cache,
    stage_of,
)
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
    [
        ((3, 4, 4), "3 workers"),
        ((2, 2, 4, 2), "latent"),
        ((4, 0, 4, 2), "1 or all"),
        ((2, 0, 4, 2, 3), "turns of 3"),
    ],
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
        (Workers(1, 0, 4), Workers(4, 0, 4, context=4, interleave=1)),
    ],
)
def test_every_slot_is_taken_once(prefill: Workers, decode: Workers) -> None:
    plan = Plan({"f": Kind(prefill, decode, [0])}, (1, 1))
    for rank in range(decode.count):
        taken: Counter[tuple[int, int]] = Counter()
        table = [*range(30)]
        for piece in plan.pieces(rank, {"f": (table, table)}, 5, 21):
            for offset in range(piece.tokens):
                block, first = piece.target_at
                taken[piece.heads[1], block * decode.block_size + first + offset] += 1
        mine = sum(decode.holds(rank, position) for position in range(5, 21))
        assert set(taken.values()) == {1}
        assert len(taken) == mine * len(decode.heads_of(rank))


def test_stages_send_their_own_layers() -> None:
    plan = Plan({"f": Kind(Workers(2, 2, 4), Workers(1, 2, 4), range(3))}, (2, 1))
    pieces = {0: [*plan.pieces(0, {"f": ([1], [1])}, 0, 4)]}
    assert {(each.layer, each.source) for each in pieces[0]} == {
        (0, 0), (0, 1), (1, 2), (1, 3), (2, 2), (2, 3),
    }  # fmt: skip
    assert [readers(pieces, source) for source in range(4)] == [{0}] * 4
    assert [stage_of(layer, 5, 2) for layer in range(5)] == [0, 0, 1, 1, 1]
    with pytest.raises(ValueError, match="2 stages need as many layers"):
        Plan({"f": Kind(Workers(1, 2, 4), Workers(1, 2, 4), [0])}, (2, 1))


def test_a_window_and_a_state_need_their_end() -> None:
    assert WindowWorkers(1, 2, 4, window=3).needed(0, 10) == range(8, 10)
    assert WindowWorkers(1, 2, 4, window=3).needed(9, 10) == range(9, 10)
    states = StateWorkers(2, PARTS)
    assert states.needed(3, 10) == range(10, 11)
    assert states.heads_of(1)[:5] == [4, 5, 6, 7, 12]
    with pytest.raises(ValueError, match="3 workers cannot share states"):
        StateWorkers(3, PARTS)


def test_a_receiver_has_all_once() -> None:
    arrivals = Arrivals()
    arrivals.expect(1, {0, 2})
    assert [arrivals.came(1, sender) for sender in (0, 0, 2, 2)] == [False, False, True, False]
    assert arrivals.came(7, 0) is False


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
    every = words(1, range(3), range(4), range(50)).reshape(-1, 2).tolist()
    assert len({tuple(each) for each in every}) == 600
    assert words(2, [0], [0], [0]).tolist() != words(1, [0], [0], [0]).tolist()


def test_calls_connect_and_move() -> None:
    prompt = {"number": 1, "tokens": 6, "cached": 0, "prefill": [1, 2], "decode": [3, 4]}
    traits, opened, moved = ask(
        ("traits", {}), ("open", {"planner": "", "prefill": SIDE, "decode": SIDE}),
        ("move", {**prompt, "order": [0, 1]}),
    )  # fmt: skip
    assert [*traits["taken"]["lacks"]] == ["kernel"]
    assert (traits["sent"]["pushes"], traits["sent"]["interleave"]) == (True, 2)
    assert opened is None
    assert moved["error"] == ""
    assert (moved["read"], moved["freed"]) == ([[0], [1]], [[0], [1]])
    odd = {**SIDE, "ranks": 3}
    (refused,) = ask(("open", {"planner": "", "prefill": odd, "decode": SIDE}))
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


def test_a_prompt_that_is_sent_comes_from_all_workers() -> None:
    sides = {"prefill": {**SIDE, "ranks": 2, "stages": 1}, "decode": {**SIDE, "ranks": 1}}
    prompt = {"number": 1, "tokens": 6, "cached": 0, "prefill": [1, 2], "decode": [3, 4]}
    _, moved = ask(("open", {"planner": "sent", **sides}), ("move", {**prompt, "order": [1, 0]}))
    assert (moved["read"], moved["freed"]) == ([[1], [0]], [[1], [0]])
    assert (moved["written"], moved["arrived"]) == ([[0], [0]], [[], [0]])


def test_tokens_go_round_the_context_ranks() -> None:
    side = Side(2, 4, 9, 1, 1, "LBHNC", context=2, latent=True, interleave=1)
    positions = side.held(1, 10)
    blocks, offsets = side.slots([5, 6], positions)
    assert positions == [1, 3, 5, 7, 9]
    assert (blocks.tolist(), offsets.tolist()) == ([5, 5, 5, 5, 6], [0, 1, 2, 3, 0])
    assert [side.position(1, 0, each) for each in range(4)] == [1, 3, 5, 7]


def test_a_window_has_no_blocks_before_it() -> None:
    side = Side(1, 4, 9, 1, 2, "LBHNC", kinds="fw", window=3)
    tables = Tables([1, 2, 3], side.windowed([4, 5, 6], 11), 2)
    assert tables.window == [0, 0, 6]
    assert side.filled(0, 1, tables, (1, 11), 11).positions == [9, 10]
    states = Side(2, 4, 9, 2, 2, "LBHNC", kinds="sf")
    filled = states.filled(1, 0, tables, (1, 11), 11)
    assert (filled.blocks.tolist(), filled.positions, len(filled.words)) == ([2], [11], 20)
    assert states.filled(1, 0, tables, (1, 11), 8).positions == []
