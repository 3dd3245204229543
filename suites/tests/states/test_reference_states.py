"""Recurrent states by example: rows, checkpoints, copies, where to save."""

from __future__ import annotations

from array import array
from itertools import count

import pytest

from kvproof.reference.cache.state_steps import saved_after
from kvproof.reference.core.checkpoint import CHECKPOINT_LIFE, Checkpoint
from kvproof.reference.core.identity import Span
from kvproof.reference.core.lifecycle import IllegalMove, Transitions
from kvproof.reference.states.batch_copies import (
    Run,
    StateBatch,
    StepCopies,
    merge_runs,
    step_copies,
)
from kvproof.reference.states.state_cache import StateCache
from kvproof.reference.states.state_slots import SharedBlocks, SlotPool


def saved(cache, request, tokens, **options):
    checkpoint = cache.reserve(request, tokens, **options)
    cache.publish(checkpoint, (request, tokens))
    cache.unpin_save(checkpoint)
    return checkpoint


# --- life cycles ---

DOOR = Transitions("door", {("open", "close"): "closed", ("closed", "open"): "open"})


def test_a_legal_move_leads_to_the_next_state():
    assert DOOR.start == "open"
    assert DOOR.move("open", "close") == "closed"
    assert DOOR.states() == ["open", "closed"]


def test_an_illegal_move_names_both_states_and_what_is_allowed():
    with pytest.raises(IllegalMove) as error:
        DOOR.move("closed", "close")
    assert str(error.value) == (
        "door: 'close' leads to closed and is not allowed in state closed; "
        "allowed there: open (to open)"
    )


def test_the_moves_of_one_event_are_those_of_the_table():
    close = DOOR.moves("close")
    assert (close["open"], dict(close)) == ("closed", {"open": "closed"})
    with pytest.raises(IllegalMove, match="'close' leads to closed and is not allowed in state"):
        close["closed"]


def test_an_unknown_event_leads_nowhere():
    with pytest.raises(IllegalMove, match="'lock' leads to no state"):
        DOOR.move("open", "lock")


def test_an_illegal_move_tells_of_all_targets_and_of_all_that_is_allowed():
    lamp = Transitions(
        "lamp", {("off", "on"): "lit", ("off", "drop"): "gone", ("lit", "drop"): "broken"}
    )
    assert str(lamp.illegal("gone", "drop")) == (
        "lamp: 'drop' leads to broken or gone and is not allowed in state gone; "
        "allowed there: nothing"
    )
    assert str(lamp.illegal("off", "dim")).endswith("allowed there: on (to lit), drop (to gone)")


def test_a_table_cannot_be_changed():
    with pytest.raises(TypeError):
        DOOR.table["open", "lock"] = "locked"


def test_every_state_of_a_checkpoint_is_reached_and_left():
    sources = {state for state, _ in CHECKPOINT_LIFE.table}
    assert sources == set(CHECKPOINT_LIFE.table.values()) == set(CHECKPOINT_LIFE.states())


@pytest.mark.parametrize("event", ["publish", "discard"])
def test_a_ready_checkpoint_is_no_reservation(event):
    cache = StateCache(SlotPool(2))
    cache.acquire("a")
    checkpoint = saved(cache, "a", 64)
    with pytest.raises(IllegalMove, match=f"checkpoint: '{event}' leads to .* in state ready"):
        cache.publish(checkpoint, 0) if event == "publish" else cache.discard(checkpoint)
    assert checkpoint.status == "ready"
    assert checkpoint.owner == ("a", 64)


def test_pins_are_not_dropped_twice():
    cache = StateCache(SlotPool(2))
    cache.acquire("a")
    checkpoint = saved(cache, "a", 64)
    with pytest.raises(IllegalMove, match=r"'unpin' leads to .* in state ready"):
        cache.unpin_save(checkpoint)
    with pytest.raises(IllegalMove, match="'a' restores from no checkpoint"):
        cache.unpin_restore("a")


# --- rows ---


def test_row_0_is_never_used():
    rows = SlotPool(3)
    assert sorted(rows.allocate()[0] for _ in range(3)) == [1, 2, 3]
    assert rows.allocate() is None


def test_without_budget_checkpoints_borrow_idle_rows_and_give_them_back():
    cache = StateCache(SlotPool(2), most_running=2)
    cache.acquire("a")
    checkpoint = saved(cache, "a", 64)
    assert cache.acquire("b") == checkpoint.ids
    assert checkpoint.status == "absent"


def test_a_request_waits_if_only_pinned_checkpoints_are_left():
    cache = StateCache(SlotPool(2), most_running=2)
    cache.acquire("a")
    checkpoint = saved(cache, "a", 64)
    cache.pin_restore(checkpoint, "a")
    assert cache.acquire("b") is None
    cache.unpin_restore("a")
    assert cache.acquire("b") is not None


def test_a_running_request_never_needs_a_second_row():
    cache = StateCache(SlotPool(2), most_running=1)
    assert cache.acquire("a") == cache.acquire("a")
    assert cache.home.num_free == 1
    assert cache.acquire("b") is None


@pytest.mark.parametrize("shared", [False, True])
def test_a_request_begins_with_all_its_rows_or_with_none(shared):
    free = [3, 2, 1]

    def take(count):
        return array("i", [free.pop() for _ in range(count)]) if count <= len(free) else None

    blocks = SharedBlocks(1, allocate=take, free=free.extend, room=lambda: len(free))
    cache = StateCache(blocks if shared else SlotPool(3), most_running=1)
    assert cache.begin("a", [64, 128, 192]) is None
    assert (cache.running.get("a"), cache.home.num_free) == (None, 3)
    saves = cache.begin("a", [64, 128])
    assert [save.tokens for save in saves] == [64, 128]
    rows = [cache.running.get("a"), *(save.ids for save in saves)]
    assert sorted(row for (row,) in rows) == [1, 2, 3] == sorted(cache.holders())
    cache.publish(saves[0], "here", saved=True)
    cache.release("a")
    assert (cache.home.num_free, cache.num_ready, saves[1].status) == (2, 1, "absent")


def test_the_limit_of_running_requests_holds_for_those_that_begin():
    cache = StateCache(SlotPool(3), most_running=1)
    assert cache.begin("a", []) == []
    assert cache.begin("b", []) is None
    assert cache.home.num_free == 2


def test_a_later_reservation_is_no_part_of_an_earlier_step():
    cache = StateCache(SlotPool(4))
    first = cache.begin("a", [64, 128])
    cache.reserve("a", 192)
    assert [save.tokens for save in first] == [64, 128]


def test_the_shared_pool_gives_blocks_with_any_ids():
    free = [3, 9, 4, 7]

    def take(count):
        taken, free[:count] = array("i", free[:count]), []
        return taken if len(taken) == count else None

    home = SharedBlocks(2, allocate=take, free=free.extend, room=lambda: len(free))
    cache = StateCache(home)
    assert list(cache.acquire("a")) == [3, 9]
    assert list(saved(cache, "a", 64).ids) == [4, 7]
    assert list(cache.acquire("b")) == [4, 7]
    cache.release("a")
    assert free == [3, 9]


def test_an_eviction_is_told_with_the_place_in_the_index():
    places = []
    cache = StateCache(SlotPool(2), on_evict=lambda checkpoint: places.append(checkpoint.owner))
    cache.acquire("a")
    checkpoint = saved(cache, "a", 64)
    cache.acquire("b")
    assert places == [("a", 64)]
    assert checkpoint.owner is None


def test_the_accepted_draft_state_runs_on():
    cache = StateCache(SlotPool(4))
    cache.acquire("a")
    drafts = cache.acquire_drafts("a", 2)
    assert cache.keep_draft("a", 2) == drafts[1]
    assert cache.running.get("a") == drafts[1]
    assert cache.home.num_free == 3


def test_a_decode_checkpoint_replaces_the_last_one():
    cache = StateCache(SlotPool(3))
    cache.acquire("a")
    old, new = saved(cache, "a", 64, replaceable=True), saved(cache, "a", 128, replaceable=True)
    assert (old.status, new.status) == ("absent", "ready")


def test_the_old_decode_checkpoint_stays_until_the_new_one_is_published():
    cache = StateCache(SlotPool(3))
    cache.acquire("a")
    old = saved(cache, "a", 64, replaceable=True)
    cache.discard(cache.reserve("a", 128, replaceable=True))
    assert old.status == "ready"


def test_a_pool_that_evicts_by_itself_spares_the_old_decode_checkpoint_too():
    free = [1, 2]

    def take(count):
        if len(free) < count:
            cache.evict_one()
        return array("i", [free.pop()]) if free else None

    cache = StateCache(SharedBlocks(1, allocate=take, free=free.extend, room=lambda: len(free)))
    cache.acquire("a")
    old = saved(cache, "a", 64, replaceable=True)
    assert cache.num_ready == 1
    assert cache.reserve("a", 128, replaceable=True) is None
    assert old.status == "ready"


def test_a_checkpoint_that_is_saved_already_is_ready_at_once():
    cache = StateCache(SlotPool(2), clock=lambda: 7)
    cache.acquire("a")
    checkpoint = cache.reserve("a", 64)
    cache.publish(checkpoint, "here", saved=True)
    assert (checkpoint.status, checkpoint.stamp, cache.num_ready) == ("ready", 7, 1)


def test_a_request_leaves_nothing_but_what_others_may_use():
    cache = StateCache(SlotPool(4))
    cache.acquire("a")
    kept, reserved = saved(cache, "a", 64), cache.reserve("a", 128)
    cache.pin_restore(kept, "a")
    cache.release("a")
    cache.release("a")
    assert (kept.status, reserved.status) == ("ready", "absent")
    assert cache.home.num_free == 3


def test_both_pins_of_a_checkpoint_hold_it():
    cache = StateCache(SlotPool(4))
    for name in "ab":
        cache.acquire(name)
    checkpoint = cache.reserve("a", 64)
    cache.publish(checkpoint, "node")
    cache.pin_restore(checkpoint, "b")
    assert [*cache.holders()].count(checkpoint.ids[0]) == 2
    with pytest.raises(IllegalMove, match="'b' restores from"):
        cache.pin_restore(checkpoint, "b")


def test_a_touched_checkpoint_has_the_time_of_its_touch():
    cache = StateCache(SlotPool(4), clock=count().__next__)
    cache.acquire("a")
    old, new = saved(cache, "a", 64), saved(cache, "a", 128)
    assert old.stamp < new.stamp
    cache.touch(old)
    assert new.stamp < old.stamp


def test_nobody_reserves_who_does_not_run():
    with pytest.raises(IllegalMove, match="'a' has no running state to save"):
        StateCache(SlotPool(4)).reserve("a", 64)


def test_a_summary_tells_who_runs_what_is_reserved_and_nothing_that_was():
    cache = StateCache(SlotPool(4))
    idle = cache.summary()
    cache.acquire("a")
    before = cache.summary()
    assert before != idle
    reserved = cache.reserve("a", 64)
    assert cache.summary() != before
    cache.discard(reserved)
    assert cache.summary() == before


def test_a_new_epoch_waits_for_pinned_rows_only():
    cache = StateCache(SlotPool(3))
    cache.acquire("a")
    pinned, ready = saved(cache, "a", 64), saved(cache, "a", 128)
    cache.pin_restore(pinned, "a")
    cache.clear()
    assert (pinned.status, ready.status) == ("detached", "absent")
    cache.unpin_restore("a")
    assert (pinned.status, cache.home.num_free) == ("absent", 2)


def test_a_checkpoint_describes_itself():
    checkpoint = Checkpoint("a", 64, array("i", [5]), replaceable=False)
    assert repr(checkpoint) == "Checkpoint(reserved, 64 tokens, 'a', [5])"


# --- copies ---


def test_pairs_are_merged_into_runs():
    pairs = zip((4, 1, 5, 8, 6, 9), (20, 11, 21, 10, 22, 30), strict=True)
    assert merge_runs(pairs, rows=31) == [
        Run(1, 11, 1),
        Run(4, 20, 3),
        Run(8, 10, 1),
        Run(9, 30, 1),
    ]
    assert merge_runs([], rows=1) == []


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(1, 5), (2, 5), (3, 6)], r"rows \[5\] are the destination of more than one copy"),
        ([(1, 2), (2, 3)], r"rows \[2\] are both read and written"),
        ([(1, 8)], r"rows \[8\] are not in 1 .. 7"),
        ([(0, 3)], r"rows \[0\] are not in 1 .. 7"),
    ],
)
def test_unfit_copies_are_refused_with_the_rows(pairs, message):
    with pytest.raises(ValueError, match=message):
        merge_runs(pairs, rows=8)


def test_states_of_unequal_size_are_refused():
    with pytest.raises(ValueError, match="shorter"):
        step_copies([((1, 2), (3,))], [], rows=8)


def test_a_batch_keeps_rows_with_their_requests():
    a, b, c = (array("i", [row]) for row in (1, 2, 3))
    batch = StateBatch.of([(a, None, c), (b, array("i", [7]), None)])
    turned = batch.take([1, 0])
    assert turned.running.tolist() == [[2], [1]]
    assert turned.take([0]).merge(batch.take([0])).restore.tolist() == [[7], [0]]
    assert {offsets.dtype.name for offsets in batch} == {"int32"}
    assert turned.copies(rows=8) == StepCopies([Run(7, 2, 1)], [Run(1, 3, 1)])


def test_an_empty_batch_merges_with_any():
    empty = StateBatch.of([])
    batch = StateBatch.of([(array("i", [1, 2]), None, None)])
    assert empty.merge(batch) is batch
    assert batch.merge(empty) is batch


# --- where to save ---


def test_a_prompt_is_saved_at_its_junction_and_at_the_last_border_it_can_hit():
    assert saved_after(0, 300, prompt=300, unit=64, divergence=128) == [128, 256]
    assert saved_after(128, 300, prompt=300, unit=64, divergence=128) == [256]
    assert saved_after(0, 300, prompt=300, unit=64, divergence=256) == [256]


def test_a_prompt_that_ends_on_a_border_is_saved_there_and_one_unit_before():
    assert saved_after(0, 256, prompt=256, unit=64) == [192, 256]
    assert saved_after(192, 256, prompt=256, unit=64) == [256]
    assert saved_after(0, 257, prompt=257, unit=64) == [256]


def test_each_chunk_is_saved_at_its_last_border():
    assert saved_after(0, 200, prompt=1000, unit=64) == [192]
    assert saved_after(200, 250, prompt=1000, unit=64) == []
    assert saved_after(250, 256, prompt=1000, unit=64) == [256]


def test_decoding_is_saved_at_the_last_multiple_of_the_interval():
    sizes = {"prompt": 100, "unit": 64, "interval": 128}
    assert saved_after(120, 128, **sizes) == [128]
    assert saved_after(120, 400, **sizes) == [384]
    assert saved_after(128, 140, **sizes) == []
    assert saved_after(120, 400, prompt=100, unit=64) == []
    assert saved_after(0, 400, **sizes) == [64, 384]


@pytest.mark.parametrize(
    ("start", "stop", "expected"), [(0, 15, [4]), (4, 15, []), (0, 17, [16]), (6, 39, [36])]
)
def test_no_state_is_saved_inside_a_span(start, stop, expected):
    spans = (Span("image", 6, 10, "x"),)
    assert saved_after(start, stop, prompt=40, unit=4, spans=spans) == expected
