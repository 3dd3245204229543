"""Who makes room for states: common order, borrowed rows, waiting, no hit (S5, S9, C2)."""

from __future__ import annotations

from kvproof.reference.cache.request_state import Admission, Refusal, Usage
from kvproof.suites.tests.engine.reference_kit import (
    range_of,
    separate,
    serve,
    shared,
    start,
    state,
)

# --- S9: the shared pool ---


def test_states_fill_ordinary_blocks_and_leave_in_the_common_order():
    manager = shared()
    answers = [serve(manager, name, [first] * 5) for name, first in (("a", 1), ("b", 2))]
    assert manager.usage() == Usage(98 - 6, 0, 6)
    expected = []
    for answer in answers:
        expected += [answer.state.saves[0][1].tolist(), answer.table[:1].tolist()]
    assert [manager.evict(1).tolist() for _ in range(4)] == expected
    assert manager.usage() == Usage(98, 0, 0)


def test_a_running_state_takes_room_from_whatever_is_oldest():
    manager = shared(8)
    old = serve(manager, "old", [1] * 5)
    assert manager.usage() == Usage(4, 0, 3)
    manager.begin_step()
    answer = manager.admit("a", [2] * 13, compute=12)
    assert (answer.stop, manager.lookup([1] * 5)) == (12, 0)
    assert set(old.state.saves[0][1]) & {*answer.table, *answer.state.writes[0][1]}
    assert answer.state.saves, "the leaf of the old request made room for the checkpoint"
    assert manager.usage() == Usage(0, 7, 0)


def test_a_request_without_room_for_its_state_is_refused_with_the_numbers():
    manager = shared(6)
    manager.begin_step()
    manager.admit("a", [1] * 3)
    before = state(manager)
    assert manager.admit("b", [2] * 3) == Refusal("no_space", 3, 2)
    assert manager.admit("c", [2] * 13) == Refusal("never_fits", 6, 5)
    assert state(manager) == before


# --- S5: the separate pool ---


def test_without_a_budget_idle_rows_are_borrowed_and_given_back():
    manager = separate(requests=3)
    serve(manager, "a", range_of(5))
    for index in range(3):
        assert manager.lookup(range_of(5)) == 4
        assert isinstance(start(manager, f"r{index}", [7, index]), Admission)
    assert manager.lookup(range_of(5)) == 0
    manager.begin_step()
    assert manager.admit("last", [9]) == Refusal("no_state_row", 1, 0)


def test_a_pinned_checkpoint_makes_a_request_wait_until_its_restore_is_done():
    manager = separate(requests=2)
    serve(manager, "a", range_of(5))
    step = manager.begin_step()
    assert manager.admit("b", range_of(6)).hit == 4
    before = state(manager)
    assert manager.admit("c", [7]) == Refusal("no_state_row", 1, 0)
    assert state(manager) == before
    manager.end_step(step)
    manager.begin_step()
    assert isinstance(manager.admit("c", [7]), Admission)


def test_a_request_tries_again_without_the_hit_whose_pin_is_what_blocks_it():
    manager = separate(requests=2)
    serve(manager, "a", range_of(5))
    start(manager, "other", [7])
    assert manager.lookup(range_of(6)) == 4
    answer = serve(manager, "b", range_of(6))
    assert (answer.hit, answer.start, answer.state.restore) == (0, 0, None)
    assert manager.statistics.cumulative.hits == 0


def test_in_a_shared_pool_too_the_hit_is_given_up_if_it_blocks_itself():
    manager = shared(6)
    serve(manager, "a", range_of(4))
    assert manager.lookup(range_of(9)) == 4
    # the hit pins 1 + 2 blocks, and a state and two units need 4 more
    answer = start(manager, "b", range_of(9))
    assert (answer.hit, answer.stop) == (0, 9)
    assert manager.usage().held == 5


def test_a_pin_keeps_the_checkpoint_of_its_prefix():
    manager = shared()
    serve(manager, "a", range_of(9))
    assert manager.pin("p", range_of(8)) == 8
    manager.evict(99)
    assert manager.usage().held == 4
    assert manager.lookup(range_of(9)) == 8
    manager.unpin("p")
    manager.evict(99)
    assert manager.usage() == Usage(98, 0, 0)
