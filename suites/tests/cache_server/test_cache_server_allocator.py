"""Extents never overlap, best fit is exact, and memory does not fall apart."""

from __future__ import annotations

import random
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.reference.cache_server.allocator import GRANULE, Allocator, rounded
from kvproof.reference.cache_server.object_index import ObjectIndex, Space
from kvproof.suites.reference.cache_server.model import key


def gaps(allocator):
    """Free extents by brute force: offset and bytes."""
    end, found = 0, []
    for start, size in sorted(allocator.taken.items()):
        assert start >= end, "two extents overlap"
        found += [(end, start - end)] if start > end else []
        end = start + size
    return found + ([(end, allocator.size - end)] if end < allocator.size else [])


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20 * GRANULE)), max_size=60))
def test_a_take_gets_the_smallest_extent_that_fits(steps):
    allocator = Allocator(64 * GRANULE + 1)
    for take, number in steps:
        free = gaps(allocator)
        assert allocator.largest == max((size for _, size in free), default=0)
        if take:
            fitting = [size for _, size in free if size >= rounded(number)]
            start = allocator.take(number)
            assert (start is None) == (not fitting)
            assert start is None or (start, min(fitting)) in free
        elif allocator.taken:
            allocator.give(sorted(allocator.taken)[number % len(allocator.taken)])
        assert allocator.used == sum(allocator.taken.values())
    for start in list(allocator.taken):
        allocator.give(start)
    assert (allocator.largest, allocator.used) == (allocator.size, 0)


def test_what_was_not_taken_cannot_be_given():
    allocator = Allocator(640)
    with pytest.raises(KeyError):
        allocator.give(0)


@pytest.mark.parametrize("least", [1 << 20, 64 << 10, 4 << 10])
def test_memory_does_not_fall_apart(least):
    """Mixed sizes, the longest unused evicted until there is room: 97 % stay in use."""
    draw, allocator, kept = random.Random(least), Allocator(1 << 28), OrderedDict()
    payload, seen = 0, []
    for _ in range(8_000):
        size = int(least * ((1 << 22) / least) ** draw.random())
        while (start := allocator.take(size)) is None:
            victim, old = kept.popitem(last=False)
            allocator.give(victim)
            payload -= old
        kept[start] = size
        payload += size
        seen.append(payload / allocator.size)
    steady = seen[2_000:]
    assert sum(steady) / len(steady) > 0.97


def test_an_object_that_fits_the_arena_finds_room_however_full_it_is():
    objects, space = ObjectIndex(1 << 20), Space("")
    for number in range(1_000):
        entry = objects.reserve(space, key(number), 2_000)
        objects.publish(entry, None)
    large = objects.reserve(space, key(1_000), 1 << 20)
    assert large is not None
    assert (objects.counts["evicted"], space.readable) == (1_000, 0)
