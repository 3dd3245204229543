"""Windows and chunks: what goes early, what a hit needs, and what fills the holes (X1, X4)."""

from __future__ import annotations

from itertools import count

import pytest

from kvproof.reference.cache.request_state import Refusal, Usage
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import Span
from kvproof.suites.tests.engine.reference_kit import (
    SIZE,
    chunk,
    full,
    open_manager,
    range_of,
    recurrent,
    serve,
    spell,
    start,
    window,
)

RULES = [
    *(window(size) for size in (1, 2, 4, 5, 8, 9, 50)),
    *(chunk(size) for size in (1, 3, 4, 6, 8, 10, 50)),
    window(5, 2),
    chunk(6, 8),
]
NO_READ = decide(enabled=True, read=False)
NO_STORE = decide(enabled=True, store=False)
each_rule = pytest.mark.parametrize("group", RULES, ids=spell)


def nulls(table):
    """Count the nulls in front of a table, which has none behind."""
    absent = [block == 0 for block in table.tolist()]
    assert absent == sorted(absent, reverse=True)
    return sum(absent)


def unseen(group, unit, tokens):
    """Count the units that no position from `tokens` on sees, one position at a time."""
    if group.kind == "window":
        lowest = max(0, tokens - group.size + 1)
    else:
        lowest = next(p for p in count() if p // group.size == tokens // group.size)
    return next(i for i in count() if (i + 1) * unit > lowest)


# --- X4: returned early, but never too early ---


@each_rule
@pytest.mark.parametrize("access", [NO_READ, NO_STORE], ids=["stored", "not stored"])
def test_a_unit_goes_at_the_end_of_the_step_after_which_nothing_sees_it(group, access):
    manager = open_manager(199, groups=(full(), group))
    unit = manager.config.layout.unit
    ratio = unit // group.block_size
    step = manager.begin_step()
    manager.admit("a", [7], access=access)
    for tokens in range(1, 40):
        before = manager.tables("a")[1].tolist()
        manager.end_step(step)
        mine, table = manager.tables("a")
        gone = unseen(group, unit, tokens)
        assert nulls(table) == gone * ratio
        assert table.tolist()[gone * ratio :] == before[gone * ratio :]
        held = len(mine) + len(table) - gone * ratio
        cached = gone * ratio if access.write else 0
        assert manager.usage() == Usage(198 - held - cached, held, cached)
        step = manager.begin_step()
        manager.extend("a", [7])


@each_rule
def test_blocks_behind_a_window_stay_while_a_step_that_sees_them_is_in_flight(group):
    manager = open_manager(199, groups=(full(), group))
    unit = manager.config.layout.unit
    manager.begin_step()
    manager.admit("a", range_of(40), compute=8)
    for _ in range(4):
        manager.begin_step()
        manager.extend("a", compute=8)
    for step in (1, 2, 3, 4, 5):
        manager.end_step(step)
        expected = unseen(group, unit, 8 * step)
        assert nulls(manager.tables("a")[1]) == expected * unit // group.block_size


def test_returned_scratch_is_handed_out_again_only_after_the_step():
    manager = open_manager(9, groups=(full(), window(1)))
    step = manager.begin_step()
    manager.admit("a", range_of(12), access=NO_STORE)
    left = manager.tables("a")[1].tolist()
    assert isinstance(manager.admit("b", [1] * 8), Refusal)
    manager.end_step(step)
    manager.begin_step()
    manager.admit("b", [1] * 8)
    assert set(left) >= set(manager.tables("b")[0].tolist()[1:])


# --- X1: what a hit needs ---


def make_holes(manager, units, index=0):
    """Evict the front of what one class has cached of the only path in the index."""
    local = manager.eviction.windows[index]
    freed = local.evict(units * local.rule.width)
    assert len(freed) == units * local.rule.width
    manager.pool.free(freed)


@each_rule
@pytest.mark.parametrize("holes", [0, 1, 2, 4, 5])
def test_a_hit_needs_what_its_first_token_sees_and_no_more(group, holes):
    manager = open_manager(199, groups=(full(), group))
    unit = manager.config.layout.unit
    serve(manager, "a", range_of(5 * unit + 1))
    if holes:
        make_holes(manager, holes)
    valid = [n for n in range(6) if n == 0 or unseen(group, unit, n * unit) >= min(holes, n)]
    for tokens in range(1, 5 * unit + 2):
        longest = max(n for n in valid if n * unit < tokens)
        assert manager.lookup(range_of(tokens)) == longest * unit
    answer = start(manager, "b", range_of(5 * unit + 1))
    assert answer.hit == max(valid) * unit
    assert nulls(manager.tables("b")[1]) * group.block_size == (
        unseen(group, unit, 5 * unit + 1) * unit
    )


@pytest.mark.parametrize(
    ("group", "hit"),
    [
        (window(1), 12),
        (window(2), 0),
        (chunk(3), 12),
        (chunk(4), 12),
        (chunk(5), 0),
        (chunk(6), 12),
        (chunk(8), 8),
        (chunk(12), 12),
        (chunk(16), 0),
    ],
    ids=lambda item: spell(item) if hasattr(item, "kind") else item,
)
def test_a_window_of_one_and_the_border_of_a_chunk_need_nothing(group, hit):
    manager = open_manager(groups=(full(), group))
    serve(manager, "a", range_of(12))
    make_holes(manager, 3)
    assert manager.lookup(range_of(13)) == hit
    answer = start(manager, "b", range_of(13))
    assert answer.hit == hit
    assert all(manager.tables("b")[1][-1:]), "the block that is computed now"


@pytest.mark.parametrize("second", range(5))
@pytest.mark.parametrize("first", range(5))
def test_each_class_has_holes_of_its_own(first, second):
    groups = (window(5), full(), window(9))
    manager = open_manager(groups=groups)
    serve(manager, "a", range_of(20))
    for index, holes in enumerate((first, second)):
        if holes:
            make_holes(manager, holes, index)
    valid = [0]
    for units in range(1, 6):
        seen = [unseen(group, SIZE, units * SIZE) for group in (groups[0], groups[2])]
        if seen[0] >= min(first, units) and seen[1] >= min(second, units):
            valid.append(units)
    for tokens in range(1, 22):
        assert manager.lookup(range_of(tokens)) == max(n for n in valid if n * 4 < tokens) * SIZE


def test_a_hit_shares_the_blocks_it_sees_and_none_it_does_not():
    manager = open_manager(groups=(full(), window(5)))
    start(manager, "a", range_of(20))
    mine = manager.tables("a")
    start(manager, "b", range_of(21))
    shared = manager.tables("b")
    assert mine[0].tolist() == shared[0].tolist()[:5]
    assert shared[1].tolist()[4:5] == mine[1].tolist()[4:5]
    assert nulls(shared[1]) == 4


# --- T2: duplicates, and holes that are filled ---


@pytest.mark.parametrize("holes", [1, 3, 4])
@pytest.mark.parametrize("group", [window(9), chunk(16), window(3, 2)], ids=spell)
def test_computing_units_again_fills_their_holes(group, holes):
    manager = open_manager(groups=(full(), group))
    serve(manager, "a", range_of(16))
    whole = manager.usage()
    make_holes(manager, holes)
    assert manager.usage().cached < whole.cached
    serve(manager, "b", range_of(16), access=NO_READ)
    assert manager.usage() == whole, "the rest was shared, not kept twice"
    for tokens in range(1, 18):
        assert manager.lookup(range_of(tokens)) == (tokens - 1) // SIZE * SIZE


def test_a_request_whose_hit_is_cut_by_holes_fills_them_itself():
    manager = open_manager(groups=(full(), window(9)))
    serve(manager, "a", range_of(17))
    make_holes(manager, 3)
    assert serve(manager, "b", range_of(13)).hit == 0
    assert manager.lookup(range_of(13)) == 12
    assert manager.lookup(range_of(17)) == 16
    assert manager.usage().cached == 8


@pytest.mark.parametrize("group", [window(50), chunk(64), window(20, 2)], ids=spell)
def test_duplicates_are_shared_in_every_class_and_freed_after_the_steps_that_read_them(group):
    manager = open_manager(groups=(full(), group))
    for name in "ab":
        manager.begin_step()
        manager.admit(name, range_of(13))
    manager.begin_step()
    manager.extend("b", [5])
    each = sum(map(len, manager.tables("a")))
    for step in (1, 2):
        manager.end_step(step)
        assert manager.usage().held == 2 * each, "step 3 reads what b has computed itself"
    manager.end_step(3)
    full_units = each - each // 4
    assert manager.usage().held == 2 * each - full_units
    first, second = manager.tables("a"), manager.tables("b")
    for one, other in zip(first, second, strict=True):
        cut = len(one) // 4 * 3
        assert one[:cut].tolist() == other[:cut].tolist()
        assert not set(one[cut:].tolist()) & set(other[cut:].tolist())


# --- B8: what never fits ---


def admitted(manager, tokens):
    return not isinstance(start(manager, "a", range_of(tokens), compute=1), Refusal)


@pytest.mark.parametrize(
    "groups",
    [
        (chunk(8), full()),
        (chunk(8), full(2)),
        (chunk(10, 2), full(2)),
        (chunk(8, 2), chunk(12, 2)),
        (chunk(4, 2), chunk(12, 4)),
        (chunk(6, 2), window(8, 2)),
        (chunk(9), full()),
        (chunk(7, 2), full(2)),
        (chunk(5, 1), full(1)),
        (chunk(40), full()),
        (window(8), window(5, 2)),
        (recurrent(4), chunk(8)),
    ],
    ids=lambda groups: " ".join(map(spell, groups)),
)
def test_the_blocks_a_request_needs_are_as_many_as_its_greatest_step_holds(groups):
    """Token by token, as it may be computed: in so few nothing is free once, in fewer never."""
    for tokens in range(1, 50):
        room = next(n for n in count(2) if admitted(open_manager(n, groups=groups), tokens))
        manager = open_manager(room, groups=groups)
        start(manager, "a", range_of(tokens), compute=1)
        most = manager.usage().held
        while manager.live["a"].computed < tokens:
            manager.begin_step()
            assert not isinstance(manager.extend("a", compute=1), Refusal)
            most = max(most, manager.usage().held)
            manager.end_step(manager.live["a"].last_step)
        assert most == room - 1, tokens
        if room > 2:
            tight = open_manager(room - 1, groups=groups)
            assert start(tight, "a", range_of(tokens)) == Refusal("never_fits", room - 1, room - 2)


def test_a_span_that_no_pool_of_this_size_holds_at_once_never_fits():
    manager = open_manager(5, groups=(window(8),))
    spans = [Span("image", 2, 30, "7f3c")]
    start(manager, "plain", range_of(40), compute=4)
    assert start(manager, "a", range_of(40), spans=spans, compute=1) == Refusal("never_fits", 8, 4)


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_state_that_no_pool_of_this_size_holds_never_fits(tokens):
    groups = (recurrent(4, state_blocks=3),)
    answer = start(open_manager(3, groups=groups), "a", range_of(tokens))
    assert answer == Refusal("never_fits", 3, 2)
    assert not isinstance(start(open_manager(4, groups=groups), "a", range_of(tokens)), Refusal)
