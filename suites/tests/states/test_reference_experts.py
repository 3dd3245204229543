"""Routed experts by example."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from kvproof.reference.cache.routed_experts import ExpertFormat, ExpertHistory, ExpertStore
from kvproof.suites.tests.engine.reference_kit import open_manager, range_of, start

FORM = ExpertFormat(experts=64, layers=3, ranks=2, unit=4)
TRUTH = np.random.default_rng(5).integers(0, 64, (40, 3, 2))


def history(hit=0, stop=0):
    made = ExpertHistory(FORM, hit)
    made.append(hit, stop - hit, TRUTH[hit:stop])
    return made


@pytest.mark.parametrize(("experts", "size"), [(1, 1), (256, 1), (257, 2), (60_000, 2)])
def test_ids_are_as_small_as_they_can_be(experts, size):
    assert FORM._replace(experts=experts).empty(1).itemsize == size


def test_rows_of_a_hit_and_of_the_rest_come_back_without_the_last_token():
    store = ExpertStore(FORM)
    history(0, 24).index(store, "node", 0, 0, 24)
    found = history(16, 21).recorded(22, store, [("node", 6)])
    assert found.missing == ()
    assert (found.rows == TRUTH[:21]).all()
    assert found.rows.dtype == np.uint8


def test_what_nobody_recorded_is_named_and_zero():
    store, made = ExpertStore(FORM), history(8, 10)
    made.append(10, 3, None)
    made.append(13, 1, TRUTH[13:14])
    found = made.recorded(15, store, [("node", 2)])
    assert found.missing == ((0, 8), (10, 13))
    assert not found.rows[:8].any()
    assert (found.rows[13] == TRUTH[13]).all()


def test_a_request_of_one_token_has_no_rows():
    found = ExpertHistory(FORM, 0).recorded(1, ExpertStore(FORM), [])
    assert (len(found.rows), found.missing) == (0, ())


def test_units_without_rows_are_filled_and_others_stay():
    store, made = ExpertStore(FORM), history(0, 8)
    made.append(8, 4, None)
    made.append(12, 4, TRUTH[12:16])
    assert made.index(store, "node", 0, 0, 16) == 3
    assert store.first_missing([("node", 4)]) == 2
    assert history(0, 16).index(store, "node", 0, 0, 16) == 1
    assert store.first_missing([("node", 4)]) == 4


def test_units_are_filled_in_any_order_and_counted_once():
    store, of = ExpertStore(FORM), TRUTH.astype(np.uint8)
    assert store.fill("node", 3, of[12:16]) == 1
    assert store.first_missing([("node", 4)]) == 0
    assert store.fill("node", 0, of[:4]) == 1
    assert store.first_missing([("node", 4)]) == 1
    assert store.fill("node", 0, of[16:32]) == 2, "what is there stays"
    assert (store.first_missing([("node", 4)]), store.num_units) == (4, 4)
    into = FORM.empty(16)
    assert store.read([("node", 4)], into).all()
    assert (into == np.concatenate([of[:4], of[20:28], of[12:16]])).all()


def test_what_lies_behind_a_path_is_no_part_of_it():
    store, of = ExpertStore(FORM), TRUTH.astype(np.uint8)
    store.fill("front", 0, of[:12])
    store.fill("front", 4, of[16:20])
    store.fill("back", 0, of[20:24])
    assert store.first_missing([("front", 2), ("back", 2)]) == 3
    into = FORM.empty(12)
    assert store.read([("front", 2), ("back", 1)], into).all()
    assert (into[8:] == of[20:24]).all()
    assert store.read([("front", 2), ("nobody", 1)], into).tolist() == [True] * 8 + [False] * 4


def test_a_hit_that_requires_rows_ends_before_the_first_gap_of_any_node():
    store = ExpertStore(FORM)
    history(0, 8).index(store, "a", 0, 0, 8)
    history(0, 8).index(store, "c", 0, 0, 8)
    assert store.first_missing([("a", 2), ("b", 1), ("c", 2)]) == 2
    assert store.first_missing([("a", 1), ("c", 1)]) == 2


def test_a_split_and_an_eviction_keep_rows_with_their_units():
    store = ExpertStore(FORM)
    history(0, 24).index(store, "node", 0, 0, 24)
    store.move("node", "front", 2)
    store.keep("node", 3)
    into = FORM.empty(24)
    known = store.read([("front", 2), ("node", 4)], into)
    assert known.tolist() == [True] * 20 + [False] * 4
    assert (into[:20] == TRUTH[:20]).all()
    store.keep("node", 0)
    assert store.num_units == 2


def test_memory_is_given_back_with_the_units():
    store = ExpertStore(FORM)
    history(0, 24).index(store, "node", 0, 0, 24)
    store.keep("node", 0)
    assert store._stores == {}


def test_rejected_drafts_leave_no_rows():
    made = history(0, 10)
    made.append(10, 4, TRUTH[20:24])
    made.truncate(11)
    made.append(11, 2, None)
    found = made.recorded(14, ExpertStore(FORM), [])
    assert found.missing == ((11, 13),)
    assert (found.rows[10] == TRUTH[20]).all()


@pytest.mark.parametrize(
    ("start", "count", "rows", "message"),
    [
        (5, 2, TRUTH[:2], "from token 5 on do not follow token 4"),
        (4, 3, TRUTH[:2], "2 rows for 3 tokens"),
        (4, 2, TRUTH[:2, :2], r"shape \(2, 2, 2\), not \[n, 3, 2\]"),
        (4, 2, TRUTH[:2] + 60, "are not in 0 .. 63"),
        (4, 2, TRUTH[:2] - 64, "are not in 0 .. 63"),
        (4, 2, TRUTH[:2] * 0.5, "of type float64 are not whole numbers"),
    ],
)
def test_unfit_rows_are_refused_with_the_values(start, count, rows, message):
    made = history(0, 4)
    with pytest.raises(ValueError, match=message):
        made.append(start, count, rows)
    assert made.length == 4


def test_a_rollback_may_take_all_that_was_computed():
    made = history(4, 8)
    made.truncate(4)
    assert made.length == 4


@pytest.mark.parametrize("length", [3, 9])
def test_a_rollback_stays_within_what_was_computed(length):
    with pytest.raises(ValueError, match=f"length {length} is not in 4 .. 8"):
        history(4, 8).truncate(length)


@pytest.mark.parametrize("rows", [FORM.empty(5), FORM.empty(4).astype(np.uint16)])
def test_a_store_takes_whole_units_of_its_own_type(rows):
    with pytest.raises(ValueError, match="are not whole units of 4 rows"):
        ExpertStore(FORM).fill("node", 0, rows)


@pytest.mark.slow(reason="computes with torch models")
def test_a_request_that_has_left_leaves_no_history():
    def histories():
        gc.collect()
        return sum(type(thing) is ExpertHistory for thing in gc.get_objects())

    manager = open_manager(9, return_routed_experts=True, experts=(64, 3, 2))
    before = histories()
    start(manager, "a", range_of(9))
    assert histories() == before + 1
    manager.release("a")
    assert histories() == before
