"""Block ids, padded tables and their kernel blocks."""

from __future__ import annotations

import sys
from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.core.block_pool import NULL_BLOCK, BlockPool
from kvproof.reference.core.block_table import expand, pad
from kvproof.reference.core.cache_config import CacheConfig

draws = settings(derandomize=True, database=None, deadline=None, max_examples=100)

tables = st.lists(st.lists(st.integers(1, 1000), max_size=5).map(lambda ids: array("i", ids)))


@draws
@given(st.integers(2, 40), st.lists(st.integers(0, 40)))
def test_a_pool_drained_and_refilled_hands_out_the_same_blocks(num_blocks, counts):
    pool = BlockPool(num_blocks)
    everything = set(range(1, num_blocks))
    for count in counts:
        taken = pool.allocate(min(count, pool.num_free))
        rest = pool.allocate(pool.num_free)
        assert pool.num_free == 0
        assert {*taken, *rest} == everything
        assert len(taken) + len(rest) == len(everything)
        pool.free(taken)
        pool.free(rest)
    assert Counter(pool.free_ids()) == Counter(everything)


@draws
@given(st.integers(2, 20), st.data())
def test_the_null_block_is_never_handed_out_and_no_block_twice(num_blocks, data):
    pool, held = BlockPool(num_blocks), array("i")
    for _ in range(data.draw(st.integers(1, 10))):
        if held and data.draw(st.booleans()):
            cut = data.draw(st.integers(0, len(held)))
            pool.free(held[cut:])
            del held[cut:]
        else:
            held += pool.allocate(data.draw(st.integers(0, pool.num_free)))
        assert NULL_BLOCK not in held
        assert len({*held, *pool.free_ids()}) == len(held) + pool.num_free == num_blocks - 1


def test_the_block_freed_last_is_handed_out_first():
    pool = BlockPool(8)
    first = pool.allocate(5)
    pool.free(first[:2])
    pool.free(first[2:])
    assert pool.allocate(5).tolist() == first[2:][::-1].tolist() + first[:2][::-1].tolist()


def test_a_new_pool_hands_out_ids_in_order():
    assert BlockPool(5).allocate(4).tolist() == [1, 2, 3, 4]


def test_what_was_handed_out_is_the_takers_own():
    pool = BlockPool(6)
    taken = pool.allocate(3)
    free = pool.free_ids()
    taken[0] = 99
    free[0] = 99
    assert 99 not in pool.free_ids()


def test_taking_more_than_there_is_is_a_bug_of_the_caller():
    with pytest.raises(AssertionError, match="allocate 2 of 1"):
        BlockPool(2).allocate(2)


def padded_naively(rows, width):
    return [[*row, *[NULL_BLOCK] * (width - len(row))] for row in rows]


def expanded_naively(rows, ratio):
    return [[block * ratio + page for block in row for page in range(ratio)] for row in rows]


@draws
@given(tables, st.integers(0, 3))
def test_padding_equals_the_naive_loop(rows, spare):
    longest = max(map(len, rows), default=0)
    width = longest + spare if spare else 0
    batch = pad(rows, width)
    assert batch.dtype == np.int32
    assert batch.shape == (len(rows), longest + spare)
    assert batch.tolist() == padded_naively(rows, longest + spare)


@draws
@given(tables, st.sampled_from([1, 2, 3, 4, 16, 64]))
def test_expansion_equals_the_naive_loop(rows, ratio):
    batch = pad(rows)
    kernel = expand(batch, ratio)
    assert kernel.dtype == np.int32
    assert kernel.shape == (len(rows), batch.shape[1] * ratio)
    assert kernel.tolist() == expanded_naively(batch.tolist(), ratio)


def test_padding_expands_to_the_null_blocks_own_pages():
    kernel = expand(pad([array("i", [7, 5]), array("i", [3])]), 4)
    assert kernel[1].tolist() == [12, 13, 14, 15, 0, 1, 2, 3]


def test_a_single_row_expands_like_a_batch():
    assert expand(np.array([2, 0], np.int32), 3).tolist() == [6, 7, 8, 0, 1, 2]


def test_kernel_blocks_equal_to_blocks_cost_no_copy():
    batch = pad([array("i", [1, 2])])
    assert expand(batch, 1) is batch


def test_a_table_longer_than_the_batch_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match="3 blocks, the batch has room for 2"):
        pad([array("i", [1]), array("i", [1, 2, 3])], width=2)


def test_a_table_may_fill_the_batch():
    assert pad([array("i", [1]), array("i", [1, 2, 3])], width=3).tolist() == [[1, 0, 0], [1, 2, 3]]


@pytest.mark.parametrize("kernel_block_size", [8, 4])
def test_a_batch_of_no_requests_is_empty(kernel_block_size):
    manager = CacheManager(CacheConfig(4, block_size=8, kernel_block_size=kernel_block_size))
    assert [rows.shape for rows in manager.batch([])] == [(0, 0)]


def calls_of(work):
    """Count the calls, of Python and C functions, that `work` makes."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def test_expansion_takes_as_many_calls_for_a_thousand_rows_as_for_one():
    one = pad([array("i", [1, 2])])
    many = pad([array("i", [1, 2])] * 1000)
    assert calls_of(lambda: expand(one, 4)) == calls_of(lambda: expand(many, 4))
