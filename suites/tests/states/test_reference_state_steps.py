"""Recurrent states of requests: where they are saved, restored from, and who makes room (S, C2)."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kvproof.reference.cache.request_state import Usage
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import Span
from kvproof.suites.tests.engine.reference_kit import (
    compute,
    full,
    go_on,
    indexed_units,
    open_manager,
    range_of,
    recurrent,
    separate,
    serve,
    shared,
    start,
    window,
)

NO_STORE = decide(enabled=True, store=False)
POOLS = {"shared": shared, "separate": lambda **options: separate(3, 9, **options)}
pools = pytest.mark.parametrize("make", POOLS.values(), ids=POOLS)


def saved(answer):
    return [tokens for tokens, _ in answer.state.saves]


def fork(*own):
    """Three shared units, and what follows them."""
    return [*range(100, 112), *own]


# --- S1, S8: where a hit is possible ---


def test_without_a_checkpoint_cached_keys_are_no_hit():
    manager = separate(requests=2)
    serve(manager, "a", range_of(9))
    assert (manager.usage().cached, manager.lookup(range_of(9))) == (2, 8)
    for name in "bc":
        start(manager, name, [7])
    assert (manager.usage().cached, manager.lookup(range_of(9))) == (2, 0)
    assert manager.statistics.cumulative.hits == 0


@pools
def test_a_hit_stands_exactly_at_a_checkpoint(make):
    manager = make()
    serve(manager, "a", range_of(18))
    hits = [manager.lookup(range_of(count)) for count in range(1, 24)]
    assert hits == [0] * 16 + [16] * 7


@pools
def test_the_third_request_hits_where_the_second_left_the_first(make):
    manager = make()
    first = serve(manager, "a", fork(*[1] * 9))
    second = start(manager, "b", fork(*[2] * 9))
    assert (first.hit, second.hit) == (0, 0)
    assert saved(first) == [20]
    assert saved(second) == [12, 20], "b passes the divergence and saves there"
    third = serve(manager, "c", fork(*[3] * 9))
    assert (third.hit, third.start) == (12, 12)
    assert manager.lookup(fork(*[1] * 9)) == 20, "no checkpoint was lost for it"


@pools
def test_a_junction_lies_where_the_draft_groups_of_a_twin_will_let_it_hit(make):
    manager = make(groups=(full(), full(draft=True), recurrent(state_blocks=2)))
    serve(manager, "a", fork(*[1] * 9))
    assert saved(serve(manager, "b", fork(*[2] * 9))) == [8, 20], "a draft group costs a unit"
    assert serve(manager, "c", fork(*[3] * 9)).hit == 8


@pools
def test_a_junction_inside_a_span_lies_before_it(make):
    manager = make()
    spans = (Span("image", 10, 4, "x"),)
    prompts = [[*range(100, 110), 9, 9, 9, 9, *[own] * 7] for own in (1, 2, 3)]
    serve(manager, "a", prompts[0], spans=spans)
    assert saved(serve(manager, "b", prompts[1], spans=spans)) == [8, 20], "12 lies in the image"
    assert serve(manager, "c", prompts[2], spans=spans).hit == 8


@pools
def test_each_chunk_leaves_a_checkpoint_at_its_last_border(make):
    manager = make()
    step = manager.begin_step()
    answers = [manager.admit("a", range_of(22), compute=7)]
    manager.end_step(step)
    answers += compute(manager, "a", chunk=7)
    assert [answer.stop for answer in answers] == [7, 14, 21, 22]
    assert [saved(answer) for answer in answers] == [[4], [12], [20], []]
    manager.release("a")
    hits = [manager.lookup(range_of(count)) for count in (4, 5, 12, 13, 20, 21, 22)]
    assert hits == [0, 4, 4, 12, 12, 20, 20]


def test_windows_and_states_must_both_be_valid():
    manager = open_manager(99, groups=(full(), window(5), recurrent()))
    serve(manager, "a", range_of(17), chunk=8)
    assert [manager.lookup(range_of(n)) for n in (9, 13, 17)] == [8, 8, 16]
    local = manager.eviction.windows[0]
    manager.pool.free(local.evict(2))
    assert [manager.lookup(range_of(n)) for n in (9, 13, 17)] == [0, 0, 16]


def test_room_for_blocks_costs_no_checkpoint_that_has_rows_of_its_own():
    manager = separate(budget=3, groups=(full(), window(5), recurrent()))
    serve(manager, "a", range_of(17), chunk=8)
    assert [manager.lookup(range_of(n)) for n in (9, 17)] == [8, 16]
    manager.evict(1)
    assert [manager.lookup(range_of(n)) for n in (9, 17)] == [8, 8]


# --- S3, S4: copies ---


@pools
def test_a_hit_restores_into_its_own_row_and_saves_into_another(make):
    manager = make()
    one = serve(manager, "a", range_of(9)).state
    assert (len(one.read), one.restore) == (0, None), "the zero state"
    kept = one.saves[0][1]
    step = manager.begin_step()
    two = manager.admit("b", range_of(13)).state
    assert two.restore == (kept, two.read)
    assert two.writes == ((13, two.read),)
    assert [tokens for tokens, _ in two.saves] == [12]
    places = [kept, two.read, two.saves[0][1]]
    assert len({*map(tuple, places)}) == 3, "sources and destinations are apart (S3)"
    assert manager.tables("b")[1].tolist() == two.read.tolist()
    manager.end_step(step)
    three = go_on(manager, "b", [1]).state
    assert (three.read, three.restore, three.saves) == (two.read, None, ())


def test_several_state_groups_are_one_state():
    groups = (recurrent(state_blocks=2), full(2), recurrent(8, state_blocks=3))
    manager = open_manager(99, groups=groups)
    answer = serve(manager, "a", range_of(17))
    assert [(tokens, len(ids)) for tokens, ids in answer.state.saves] == [(16, 5)]
    start(manager, "b", range_of(17))
    assert manager.live["b"].computed == 17
    rows = [manager.tables("b")[group].tolist() for group in (0, 2)]
    assert [len(row) for row in rows] == [2, 3]
    assert len({*rows[0], *rows[1]}) == 5


@pools
def test_a_request_that_stores_nothing_saves_nothing(make):
    manager = make()
    assert serve(manager, "a", range_of(9), access=NO_STORE).state.saves == ()
    assert manager.lookup(range_of(9)) == 0


# --- S6: while decoding ---


def decode(manager, name, tokens, count):
    start(manager, name, tokens)
    compute(manager, name)
    for _ in range(count):
        go_on(manager, name, [1])


@pools
@pytest.mark.parametrize(("interval", "kept"), [(0, []), (4, [20]), (8, [16]), (12, [12])])
def test_a_decoding_request_keeps_its_last_checkpoint_only(make, interval, kept):
    manager = make(prefix_cache_decode_state_interval=interval)
    decode(manager, "a", [1] * 5, 17)
    hits = {manager.lookup([1] * count) for count in range(1, 24)}
    assert hits == {0, 4, *kept}
    manager.release("a")
    decode(manager, "b", [1, 1, 2], 19)
    assert {manager.lookup([1] * count) for count in range(1, 24)} == hits, "no longer replaceable"


@pools
def test_the_checkpoint_at_the_end_of_a_prompt_is_none_of_decoding(make):
    manager = make(prefix_cache_decode_state_interval=4)
    start(manager, "a", [1] * 8, compute=4)
    compute(manager, "a")
    for _ in range(9):
        go_on(manager, "a", [1])
    assert {manager.lookup([1] * count) for count in range(1, 18)} == {0, 4, 8, 16}


def test_the_old_checkpoint_stays_if_there_is_no_room_for_the_new():
    manager = separate(1, 1, prefix_cache_decode_state_interval=4)
    decode(manager, "a", [1] * 3, 11)
    assert {manager.lookup([1] * count) for count in range(1, 16)} == {0, 4}


# --- T4, H6: what goes ---


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_a_model_of_states_only_forgets_the_tokens_of_paths_without_checkpoint(budget):
    manager = separate(1, budget, groups=(recurrent(),))
    for index in range(12):
        serve(manager, "r", [index, *range(100, 108), *[5] * 9])
        assert indexed_units(manager) == 4 * manager.eviction.states.num_ready
        assert manager.eviction.states.num_ready == min(index + 1, budget)
    start(manager, "long", range_of(5))
    for _ in range(40):
        go_on(manager, "long", [3])
    manager.release("long")
    assert indexed_units(manager) == (4 * (budget - 1) + 1 if budget else 0)


@pools
@pytest.mark.parametrize("old", [4, 99], ids=["behind a hit", "from the start"])
def test_a_reset_under_way_discards_what_is_being_saved(make, old):
    manager = make()
    free = manager.eviction.states.home.num_free
    serve(manager, "old", [*range_of(4), 0] if old == 4 else [old] * 5)
    step = manager.begin_step()
    manager.admit("a", range_of(9))
    manager.reset()
    manager.end_step(step)
    compute(manager, "a")
    assert manager.lookup(range_of(9)) == 0
    manager.release("a")
    assert manager.usage() == Usage(98, 0, 0)
    assert manager.eviction.states.num_ready == 0
    assert manager.eviction.states.home.num_free == free


@pools
def test_a_request_released_while_it_saves_publishes_nothing_and_keeps_nothing(make):
    manager = make()
    free = manager.eviction.states.home.num_free
    step = manager.begin_step()
    copies = manager.admit("a", range_of(9)).state
    manager.release("a")
    other = manager.admit("b", [7]).state.writes[0][1]
    written = {block for _, ids in (*copies.writes, *copies.saves) for block in ids}
    assert not {*other} & written, "the step may still write them (B6)"
    manager.end_step(step)
    assert manager.lookup(range_of(9)) == 0
    manager.release("b")
    assert manager.usage() == Usage(98, 0, 0)
    assert manager.eviction.states.home.num_free == free


def test_stops_never_lose_a_token():
    manager = shared(200, prefix_cache_decode_state_interval=8)
    for index in range(6):
        answers = [start(manager, "r", fork(*[index] * 11), compute=9)]
        answers += compute(manager, "r", chunk=9)
        assert all(one.stop == other.start for one, other in pairwise(answers))
        assert answers[-1].stop == 23
        manager.release("r")
