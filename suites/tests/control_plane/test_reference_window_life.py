"""Windows and chunks over time: eviction, splits, pins, resets, and everything back at the end."""

from __future__ import annotations

import pytest

from kvproof.reference.cache.request_state import Admission, Refusal, Usage
from kvproof.suites.tests.engine.reference_kit import (
    SIZE,
    chunk,
    full,
    go_on,
    open_manager,
    range_of,
    serve,
    spell,
    start,
    window,
)

kinds = pytest.mark.parametrize("group", [window(6), chunk(8), window(6, 2)], ids=spell)


# --- B3: eviction ---


def test_what_left_a_window_is_evicted_from_its_front_before_what_was_released_later():
    manager = open_manager(groups=(full(), window(5)))
    start(manager, "a", range_of(16), compute=12)
    front = manager.tables("a")[1].tolist()
    assert front == [0, 0, front[2]]
    go_on(manager, "a")
    serve(manager, "b", [7] * 4)
    assert manager.lookup(range_of(9)) == 8
    gone = [manager.evict(1).tolist() for _ in range(3)]
    assert [len(ids) for ids in gone] == [1, 1, 1]
    assert gone[2] == front[2:]
    assert [manager.lookup(range_of(n)) for n in (5, 9, 13)] == [0, 0, 0]
    assert (manager.lookup(range_of(17)), manager.lookup([7] * 5)) == (16, 4)
    manager.evict(1)
    assert manager.lookup([7] * 5) == 0


def test_a_run_that_is_left_again_goes_behind_what_was_left_before():
    manager = open_manager(groups=(full(), window(5)))
    start(manager, "a", range_of(20), compute=12)
    go_on(manager, "a")
    assert len(serve(manager, "other", [7] * 4).table) == 1
    start(manager, "b", [8, *range_of(19)])
    left = manager.usage().cached
    manager.release("a")
    manager.evict(2)
    assert manager.lookup([7] * 5) == 0
    manager.evict(4)  # what b has left while it goes on
    assert [manager.lookup(range_of(n)) for n in (5, 9, 13, 21)] == [4, 8, 12, 20]
    assert left == 2 + 4 + 4
    manager.release("b")
    assert manager.lookup([8, *range_of(12)]) == 0


@kinds
def test_a_leaf_leaves_with_its_blocks_of_every_class(group):
    manager = open_manager(groups=(full(), group))
    serve(manager, "a", range_of(20))
    free = manager.pool.num_free
    width = 1 + manager.eviction.windows[0].rule.width
    manager.eviction.windows[0]._idle.clear()  # only the leaf is there to take
    assert len(manager.evict(1)) == width
    assert manager.pool.num_free == free + width
    assert manager.lookup(range_of(21)) == 16


@kinds
@pytest.mark.parametrize("count", [1, 2, 3, 5, 99])
def test_what_is_evicted_is_free_and_never_held(group, count):
    manager = open_manager(groups=(full(), group))
    serve(manager, "a", range_of(40))
    start(manager, "b", range_of(28))
    held = {block for table in manager.tables("b") for block in table.tolist()}
    before = manager.usage()
    gone = manager.evict(count)
    after = manager.usage()
    assert not held & set(gone)
    assert len(set(gone)) == len(gone) == before.cached - after.cached == after.free - before.free
    assert len(gone) >= min(count, before.cached)
    assert set(gone) <= set(manager.pool.free_ids())
    assert manager.lookup(range_of(29)) == 28, "b still holds what it sees"


def test_a_hit_of_a_window_is_not_evicted_for_the_request_that_hits_it():
    manager = open_manager(13, groups=(full(), window(5)))
    serve(manager, "a", range_of(16))
    assert manager.usage() == Usage(4, 0, 8)
    step = manager.begin_step()
    # 4 full units and 1 of the window are hit; 3 of the window can go
    assert manager.admit("b", range_of(32)) == Refusal("no_space", 8, 7)
    answer = manager.admit("b", range_of(28))
    assert (answer.hit, manager.usage()) == (16, Usage(0, 11, 1))
    tables = [table.tolist() for table in manager.tables("b")]
    seen = [block for table in tables for block in table if block]
    assert len(set(seen)) == len(seen) == 7 + 4
    manager.end_step(step)


@pytest.mark.parametrize("group", [window(13), chunk(32), window(13, 2)], ids=spell)
def test_a_hit_over_several_runs_takes_as_many_idle_blocks_as_it_says(group):
    manager = open_manager(200, groups=(full(), group))
    for name, cut in (("a", 40), ("b", 20), ("c", 28)):
        serve(manager, name, [*range_of(40)[:cut], 0])
    (local,) = manager.eviction.windows
    (node,) = (each for each in manager.trie.nodes() if each.start + each.units == 28 // SIZE)
    said, idle = local.evictable_blocks(node, 28 // SIZE), local.num_evictable
    local.lock(node)
    assert said == idle - local.num_evictable > 2


# --- runs that are split and trimmed ---


@kinds
@pytest.mark.parametrize("fork", range(1, 10))
def test_a_fork_splits_what_is_held_and_what_is_cached(group, fork):
    manager = open_manager(200, groups=(full(), group))
    cut = range_of(40)[: fork * SIZE]
    serve(manager, "a", range_of(40))
    start(manager, "holder", range_of(40))
    held = [table.tolist() for table in manager.tables("holder")]
    usage = manager.usage()
    answer = start(manager, "b", [*cut, 0])
    assert answer.hit == len(cut)
    assert [table.tolist() for table in manager.tables("holder")] == held
    go_on(manager, "b", [0] * 8)
    manager.release("b")
    go_on(manager, "holder", [9] * 9)
    manager.release("holder")
    manager.evict(2)
    for name, tokens in (("c", range_of(40)), ("d", [*cut, 0])):
        serve(manager, name, tokens)
    assert manager.lookup([*range_of(40), 0]) == 40
    assert manager.usage().held == 0
    assert usage.held > 0
    assert sum(manager.usage()) == 199


@kinds
def test_two_readers_of_one_run_leave_it_one_after_the_other(group):
    manager = open_manager(200, groups=(full(), group))
    start(manager, "ahead", range_of(24))
    start(manager, "behind", range_of(13))
    behind = manager.tables("behind")[1].tolist()
    go_on(manager, "ahead", [0] * 16)
    assert manager.tables("behind")[1].tolist() == behind
    manager.evict(99)
    manager.begin_step()
    assert [*manager.tables("behind")[1]] == behind
    assert not {*behind} - {0} & {*manager.pool.free_ids()}
    assert isinstance(manager.extend("behind", [0]), Admission)


@pytest.mark.parametrize("group", [window(10), window(13, 2)], ids=spell)
@pytest.mark.parametrize("first", ["ahead", "behind"])
def test_a_run_that_is_split_keeps_count_of_readers_at_unlike_places(group, first):
    manager = open_manager(200, groups=(full(), group))
    serve(manager, "a", range_of(40))
    for name in ("ahead", "behind"):
        start(manager, name, range_of(40))
    go_on(manager, "ahead", [0] * 4)
    assert start(manager, "fork", [*range_of(32), 0]).hit == 32
    last = "behind" if first == "ahead" else "ahead"
    held = {*manager.tables(last)[1]} - {0}
    manager.release(first)
    manager.evict(99)
    assert not held & {*manager.pool.free_ids()}
    for name in (last, "fork"):
        manager.release(name)
    assert manager.usage().held == 0


# --- B2: pins ---


@kinds
def test_a_pin_holds_what_a_hit_would_see_in_every_group(group):
    manager = open_manager(groups=(full(), group))
    serve(manager, "a", range_of(21))
    assert manager.pin("p", range_of(20)) == 20
    held = {block for table in manager.tables("p") for block in table.tolist()} - {0}
    manager.evict(99)
    assert manager.usage() == Usage(63 - len(held), len(held), 0)
    assert manager.lookup(range_of(21)) == 20
    assert manager.lookup(range_of(20)) == (16 if group.kind == "chunk" else 0)
    answer = start(manager, "b", range_of(21))
    assert answer.hit == 20
    manager.release("b")
    assert manager.unpin("p").tolist() == answer.table[:5].tolist()
    manager.evict(99)
    assert manager.usage() == Usage(63, 0, 0)


# --- H6: reset under way ---


@kinds
@pytest.mark.parametrize("in_flight", [0, 1])
def test_a_request_from_before_a_reset_returns_what_it_leaves_and_caches_nothing(group, in_flight):
    manager = open_manager(groups=(full(), group))
    serve(manager, "old", range_of(9))
    step = manager.begin_step()
    manager.admit("a", range_of(17))
    if not in_flight:
        manager.end_step(step)
    manager.reset()
    if in_flight:
        manager.end_step(step)
    for _ in range(12):
        go_on(manager, "a", [5])
        usage = manager.usage()
        visible = sum(int(block != 0) for table in manager.tables("a") for block in table)
        assert (usage.held, usage.cached) == (visible, 0)
    assert manager.lookup(range_of(17)) == 0
    manager.release("a")
    assert manager.usage() == Usage(63, 0, 0)
    assert sorted(manager.pool.free_ids()) == list(range(1, 64))


@kinds
def test_two_orphans_of_one_path_free_each_block_once(group):
    manager = open_manager(groups=(full(), group))
    start(manager, "a", range_of(17))
    start(manager, "b", range_of(14))
    manager.pin("p", range_of(12))
    manager.reset()
    serve(manager, "new", range_of(17))
    go_on(manager, "b", [3] * 8)
    for name in "ab":
        manager.release(name)
    manager.unpin("p")
    manager.evict(99)
    assert sorted(manager.pool.free_ids()) == list(range(1, 64))


# --- models without full attention ---


@pytest.mark.parametrize(
    "groups", [(window(6),), (window(6, 2), chunk(8)), (chunk(5),)], ids=["w", "w+c", "c"]
)
def test_a_model_without_full_attention_hits_and_gives_everything_back(groups):
    manager = open_manager(40, groups=groups)
    for turn in range(20):
        name, tokens = f"r{turn}", [turn % 4, *range(1, 18)]
        assert isinstance(serve(manager, name, tokens), Admission)
        assert manager.lookup(tokens) == 16
    manager.evict(99)
    assert manager.usage() == Usage(39, 0, 0)
    assert list(manager.trie.nodes()) == []
