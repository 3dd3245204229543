"""What the prefix index keeps alive (T4), and what serving and evicting cost (T5)."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref
from array import array
from collections import Counter

import numpy as np
import pytest

from kvproof.reference.core.identity import Span
from kvproof.suites.tests.engine.reference_kit import SIZE, open_manager, serve

# --- T4: the index keeps no request alive ---


IDS = list(range(100, 100 + 3 * SIZE + 1))
FORMS = {
    "bytes": lambda: array("i", IDS).tobytes(),
    "bytearray": lambda: bytearray(array("i", IDS).tobytes()),
    "array": lambda: array("i", IDS),
    "list": lambda: list(IDS),
    "tuple": lambda: (*IDS,),
    "numpy": lambda: memoryview(np.array(IDS, np.int32)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_released_requests_prompt_is_referred_to_by_nobody(form):
    manager, tokens = open_manager(record_events=True), FORMS[form]()
    before = sys.getrefcount(tokens)
    spans = [Span("image", 1, 6, "7f3c")]
    answer = serve(manager, "a", tokens, spans=spans)
    manager.pin("p", tokens, spans=spans)
    manager.lookup(tokens, spans=spans)
    del answer
    gc.collect()
    assert sys.getrefcount(tokens) == before
    assert manager.usage().held == 3, "the pin holds what it matched"


def test_a_buffer_is_free_to_change_as_soon_as_it_was_admitted():
    manager = open_manager()
    tokens = array("i", [1] * 9)
    manager.begin_step()
    manager.admit("a", tokens)
    tokens[:] = array("i", [2] * 9)
    tokens.append(3)  # raises BufferError while anybody has it exported
    manager.end_step(1)
    assert (manager.lookup([1] * 9), manager.lookup([2] * 9)) == (8, 0)


def test_a_numpy_prompt_dies_with_its_owner():
    manager = open_manager()
    tokens = np.arange(9, dtype=np.int32)
    serve(manager, "a", memoryview(tokens))
    gone = weakref.ref(tokens)
    del tokens
    assert gone() is None


def test_a_request_is_forgotten_once_its_step_is_done():
    manager = open_manager()
    step = manager.begin_step()
    manager.admit("a", [1] * 9)
    request = manager.live["a"]
    manager.release("a")
    assert manager.allocator.releasing == [request]
    manager.end_step(step)
    assert manager.allocator.releasing == []
    assert [holder for holder in gc.get_referrers(request) if holder is not globals()] == []


# --- T5: cost ---


def cost_of(work):
    """Count the calls, of Python and C functions, and the lines that `work` runs."""
    cost = Counter()

    def calls(frame, event, argument):
        cost["calls"] += event in ("call", "c_call")

    def lines(frame, event, argument):
        cost["lines"] += event == "line"
        return lines

    before = sys.gettrace()
    sys.settrace(lines)
    sys.setprofile(calls)
    try:
        work()
    finally:
        sys.setprofile(None)
        sys.settrace(before)
    return cost


def memory_of(work):
    """Return the most bytes that `work` has allocated at a time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def filled(blocks):
    """Cache `blocks` unrelated blocks, two a request."""
    manager = open_manager(blocks + 64)
    for index in range(blocks // 2):
        serve(manager, "r", array("i", [2 * index + 7] * SIZE + [2 * index + 8] * SIZE))
    assert manager.usage().cached == blocks
    return manager


SMALL, LARGE = 10, 10_000


@pytest.fixture(scope="module")
def managers():
    return filled(SMALL), filled(LARGE)


@pytest.mark.parametrize("blocks", [1, 5, 20])
def test_serving_costs_the_same_whatever_else_is_cached(managers, blocks):
    prompt = array("i", range(-blocks * SIZE - 1, 0))
    work = [lambda m=manager: serve(m, "a", prompt) for manager in managers]
    assert cost_of(work[0]) == cost_of(work[1]), "first, into the cache"
    assert cost_of(work[0]) == cost_of(work[1]), "again, from the cache"


def test_serving_costs_no_call_per_block():
    cost = []
    for blocks in (2, 40):
        manager, prompt = filled(SMALL), array("i", range(-blocks * SIZE - 1, 0))
        cost.append([cost_of(lambda m=manager, p=prompt: serve(m, "a", p)) for _ in range(2)])
    assert cost[0] == cost[1]


def test_eviction_costs_the_same_per_block_whatever_is_cached():
    small, large = filled(200), filled(LARGE)
    few, many = (cost_of(lambda m=manager: m.evict(100)) for manager in (small, large))
    assert few == many
    more = cost_of(lambda: large.evict(1000))
    assert all(more[kind] < 11 * few[kind] for kind in few)
    assert few["calls"] < 10 * 100, "ten calls a block"


def test_nothing_is_listed_to_serve_or_to_evict():
    memory = []
    for blocks in (200, LARGE):
        manager = filled(blocks)
        manager.evict(2)
        memory.append(
            [
                memory_of(lambda m=manager: m.evict(1)),
                memory_of(lambda m=manager: serve(m, "a", range_of(80))),
                memory_of(lambda m=manager: m.lookup(range_of(80))),
                memory_of(lambda m=manager: m.usage()),
            ]
        )
    assert all(many < few + 1000 for few, many in zip(*memory, strict=True)), memory


def test_making_room_costs_the_same_per_block_whatever_is_cached():
    cost = []
    for blocks in (200, LARGE):
        manager = filled(blocks)
        serve(manager, "fill", [1] * SIZE * manager.pool.num_free)
        assert manager.pool.num_free == 0
        cost.append(cost_of(lambda m=manager: serve(m, "a", range_of(80))))
    assert cost[0] == cost[1]


def range_of(count):
    return array("i", range(-count - 1, -1))
