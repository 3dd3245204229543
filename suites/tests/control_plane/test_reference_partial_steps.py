"""Hits that end inside a block: copied before they are written, held while copied from (T6)."""

from __future__ import annotations

import pytest

from kvproof.reference.cache.request_state import Admission, Refusal, Usage
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import Span
from kvproof.suites.tests.engine.reference_kit import (
    full,
    go_on,
    open_manager,
    range_of,
    serve,
    start,
    state,
)


def partial(num_blocks=64, **options):
    return open_manager(num_blocks, cache_partial_blocks=True, **options)


def admit(manager, name, tokens, **wishes):
    """Admit in a step of its own; returns (step, answer)."""
    step = manager.begin_step()
    return step, manager.admit(name, tokens, **wishes)


def test_a_hit_ends_inside_a_block_and_goes_on_in_a_copy():
    manager = partial()
    first = serve(manager, "a", [1, 1, 1, 1, 2, 2, 2])
    _, answer = admit(manager, "b", [1, 1, 1, 1, 2, 2, 3, 3, 3])
    assert (answer.hit, answer.start, answer.stop) == (6, 6, 9)
    assert answer.copies == ((first.table[1], answer.table[1]),)
    assert answer.table[0] == first.table[0]
    assert answer.table[1] != first.table[1]


def test_the_last_token_is_computed():
    manager = partial()
    serve(manager, "a", [1] * 6)
    assert manager.lookup([1] * 6) == 5
    _, answer = admit(manager, "b", [1] * 6)
    assert (answer.hit, answer.stop) == (5, 6)


def test_a_prompt_shorter_than_a_block_is_hit():
    manager = partial()
    serve(manager, "a", [1, 2, 3])
    assert manager.usage().cached == 1
    assert manager.lookup([1, 2, 3, 4, 5]) == 3
    assert manager.lookup([2, 2, 3, 4, 5]) == 0


def test_every_group_copies_the_blocks_that_hold_what_is_hit():
    manager = partial(groups=(full(4), full(2)))
    first = serve(manager, "a", [1, 2, 3])
    assert len(first.table) == 3
    _, answer = admit(manager, "b", [1, 2, 9, 9])
    assert answer.hit == 2
    assert answer.copies == ((first.table[0], answer.table[0]), (first.table[1], answer.table[1]))


def test_what_is_copied_from_is_held_until_the_step_has_ended():
    manager = partial(4)
    serve(manager, "a", [1, 2, 3])
    step, answer = admit(manager, "b", [1, 2, 3, 4])
    [(source, _)] = answer.copies
    assert list(manager.evict(9)) == []
    assert manager.usage() == (1, 2, 0)
    manager.release("b")
    assert source not in manager.pool.free_ids()
    manager.end_step(step)
    assert manager.usage() == (2, 0, 1)
    assert list(manager.evict(9)) == [source]


def test_a_tail_that_is_replaced_while_it_is_copied_comes_back_after_the_step():
    manager = partial()
    serve(manager, "a", [1, 2])
    first, _ = admit(manager, "b", [1, 2, 3], access=decide(enabled=True, read=False))
    second, answer = admit(manager, "c", [1, 2, 4])
    [(source, _)] = answer.copies
    manager.end_step(first)
    manager.release("b")
    assert manager.lookup([1, 2, 3, 4]) == 3
    assert source not in manager.pool.free_ids()
    manager.end_step(second)
    assert source in manager.pool.free_ids()


def test_a_tail_that_a_reset_forgets_comes_back_after_the_step():
    manager = partial()
    serve(manager, "a", [1, 2])
    step, answer = admit(manager, "b", [1, 2, 4])
    [(source, _)] = answer.copies
    manager.reset()
    assert source not in manager.pool.free_ids()
    manager.end_step(step)
    assert source in manager.pool.free_ids()


def test_room_for_the_copy_is_counted_and_a_refusal_changes_nothing():
    manager = partial(4)
    serve(manager, "a", [1, 2, 3])
    admit(manager, "b", [9] * 8)
    before = state(manager)
    _, answer = admit(manager, "c", [1, 2, 3, 4] * 2)
    assert isinstance(answer, Refusal)
    assert state(manager) == before


def test_a_hit_is_given_up_where_its_own_source_takes_the_last_room():
    manager = partial(3)
    serve(manager, "a", [1, 2, 3])
    _, answer = admit(manager, "b", [1, 2, 3, 4] * 2)
    assert (answer.hit, answer.copies) == (0, ())
    assert manager.statistics.cumulative.hits == 0


def test_where_the_tail_is_given_up_the_last_token_is_computed_still():
    manager, prompt = partial(4), [1, 1, 1, 1, 2, 2, 2, 2]
    start(manager, "a", prompt)
    serve(manager, "b", prompt[:7])
    assert manager.lookup(prompt) == 7
    _, answer = admit(manager, "c", prompt)  # no room for a copy beside its source
    assert (answer.hit, answer.stop, answer.copies) == (4, 8, ())


def test_tails_leave_before_full_blocks_and_the_oldest_first():
    manager = partial()
    first = serve(manager, "a", [1] * 7)
    second = serve(manager, "b", [2] * 7)
    third = serve(manager, "c", [1] * 4 + [1, 9])
    order = list(manager.evict(9))
    assert order[:3] == [second.table[1], first.table[1], third.table[1]]
    assert order[3:] == [second.table[0], first.table[0]]
    assert manager.usage().cached == 0


def test_a_longer_tail_takes_the_place_of_its_beginning():
    manager = partial()
    serve(manager, "a", [1, 2])
    serve(manager, "b", [1, 2, 3])
    serve(manager, "c", [1, 2])
    assert manager.usage().cached == 1
    assert manager.lookup([1, 2, 3, 4]) == 3


def test_a_request_that_may_not_store_leaves_no_tail():
    manager = partial()
    serve(manager, "a", [1] * 7, access=decide(enabled=True, store=False))
    assert manager.usage().cached == 0


def test_a_request_that_leaves_in_flight_leaves_no_tail():
    manager = partial()
    step, _ = admit(manager, "a", [1] * 7)
    manager.release("a")
    manager.end_step(step)
    assert manager.usage().cached == 0


def test_a_tail_of_an_earlier_epoch_is_never_hit():
    manager = partial()
    step, _ = admit(manager, "a", [1] * 3)
    manager.end_step(step)
    serve(manager, "b", [2] * 3)
    manager.reset()
    manager.release("a")
    assert manager.usage() == (63, 0, 0)
    assert manager.lookup([1] * 4) == manager.lookup([2] * 4) == 0


def test_rejected_drafts_are_in_no_tail():
    manager = partial()
    step, _ = admit(manager, "a", [1, 2])
    manager.end_step(step)
    step = manager.begin_step()
    manager.extend("a", [3], drafts=[4])
    manager.end_step(step, accepted={"a": 0})
    manager.release("a")
    assert manager.lookup([1, 2, 3, 4, 5]) == 3


def test_a_tail_behind_a_span_is_hit_though_the_block_border_lies_inside_it():
    manager = partial()
    spans, tokens = (Span("image", 2, 4, "h"),), list(range_of(7))
    serve(manager, "a", tokens, spans=spans)
    assert manager.lookup([*tokens[:6], 9], spans=spans) == 6
    assert manager.lookup([*tokens[:5], 9, 9], spans=spans) == 0
    pinned = manager.pin("p", tokens, spans=spans)
    assert pinned == 0


def test_pins_hold_whole_units():
    manager = partial()
    serve(manager, "a", [1] * 7)
    assert manager.pin("p", [1] * 7) == 4
    manager.evict(9)
    assert manager.lookup([1] * 7) == 4
    assert len(manager.unpin("p")) == 1
    assert manager.lookup([1] * 7) == 4, "it leaves no tail of its own"


def test_tokens_are_counted_exactly():
    manager = partial()
    serve(manager, "a", [1] * 7)
    serve(manager, "b", [1] * 9)
    counts = manager.statistics.cumulative
    assert (counts.queries, counts.hits) == (16, 7)


def test_events_tell_nothing_of_partial_blocks():
    manager = partial(record_events=True)
    serve(manager, "a", [1] * 7)
    assert len(manager.drain_events()) == 1
    serve(manager, "b", [1] * 6 + [2])
    manager.evict(2)
    assert manager.drain_events() == []


def test_a_tail_that_is_evicted_is_told_by_its_block():
    manager = partial()
    answer = serve(manager, "a", [1] * 7)
    reported = []
    manager.eviction.on_evicted.append(lambda group, ids: reported.append((group, ids.tolist())))
    assert manager.evict(1).tolist() == [answer.table[1]]
    assert reported == [(0, [answer.table[1]])]


@pytest.mark.parametrize(("length", "hit", "units"), [(16, 11, 4), (20, 8, 5)])
def test_blocks_and_tail_of_a_hit_are_no_room_for_the_request_that_takes_them(length, hit, units):
    manager = partial(6)
    serve(manager, "a", [1] * 11)
    assert manager.usage() == Usage(free=2, held=0, cached=3)
    _, answer = admit(manager, "b", [1] * 11 + [2] * (length - 11))
    assert (answer.hit, len(answer.table)) == (hit, units)


def test_a_tail_without_expert_rows_has_them_missing():
    manager = partial(return_routed_experts=True, experts=(8, 1, 1))
    serve(manager, "a", [1] * 7)
    step, _ = admit(manager, "b", [1] * 9)
    manager.end_step(step, experts={"b": [[[5]]] * 2})
    recorded = manager.expert_rows("b")
    assert recorded.missing == ((0, 7),)
    assert recorded.rows.tolist()[7] == [[5]]


def test_a_copy_is_the_requests_own_to_extend():
    manager = partial()
    serve(manager, "a", [1, 2, 3])
    step, first = admit(manager, "b", [1, 2, 3, 4])
    manager.end_step(step)
    table = list(first.table)
    answer = go_on(manager, "b", [5])
    assert isinstance(answer, Admission)
    assert (answer.start, answer.copies, list(answer.table[:1])) == (4, (), table)


@pytest.mark.parametrize("compute", [0, 1, 2])
def test_a_step_of_a_few_tokens_goes_on_in_the_copy(compute):
    manager = partial()
    serve(manager, "a", [1, 2, 3])
    _, answer = admit(manager, "b", [1, 2, 3, 4, 5, 6], compute=compute)
    assert (answer.hit, answer.stop) == (3, 3 + compute)
    assert len(answer.copies) == 1
