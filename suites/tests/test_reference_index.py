"""The prefix index: what it keeps alive, what it costs, and that questions leave no trace."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import tracemalloc
import weakref
from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.reference.identity import Namespace, Span
from kvproof.suites.tests.reference_kit import SIZE, open_manager, serve, state

draws = settings(derandomize=True, database=None, deadline=None, max_examples=100)

# --- T1, T2: longest match, against a set of prefixes ---


class Naive:
    """Every cached block as the tuple of everything before its end, in order of last use."""

    def __init__(self):
        self.blocks = {}
        self.clock = 0

    def identities(self, tokens, spans, salt):
        for end in range(SIZE, len(tokens) + 1, SIZE):
            begun = tuple(span for span in spans if span.start < end)
            yield salt, tuple(tokens[:end]), begun

    def hit(self, tokens, spans, salt):
        found = 0
        for identity in self.identities(tokens, spans, salt):
            if identity not in self.blocks or (found + 1) * SIZE >= len(tokens):
                break
            found += 1
        return found * SIZE

    def serve(self, tokens, spans, salt):
        self.clock += 1
        for depth, identity in enumerate(self.identities(tokens, spans, salt)):
            self.blocks[identity] = (self.clock, -depth)

    def evict(self, count):
        for identity in sorted(self.blocks, key=self.blocks.get)[:count]:
            del self.blocks[identity]


requests = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=14),
    st.lists(st.sampled_from([(0, 2, "h"), (0, 2, "g"), (2, 4, "h"), (5, 1, "h"), (9, 3, "h")])),
    st.sampled_from([None, "x"]),
)


def spans_of(marks, count):
    spans, end = [], 0
    for start, length, content in marks:
        if start >= end and start + length <= count:
            spans.append(Span("image", start, length, content))
            end = start + length
    return tuple(spans)


@draws
@given(st.lists(requests, max_size=10), st.lists(st.integers(0, 4), min_size=10, max_size=10))
def test_hits_equal_a_set_of_prefixes_with_least_recent_eviction(drawn, evictions):
    manager, naive = open_manager(), Naive()
    for index, (tokens, marks, salt) in enumerate(drawn):
        spans, space = spans_of(marks, len(tokens)), Namespace(salt=salt)
        expected = naive.hit(tokens, spans, salt)
        assert manager.lookup(tokens, spans=spans, namespace=space) == expected
        answer = serve(manager, f"r{index}", tokens, spans=spans, namespace=space)
        assert answer.hit == expected
        assert len(set(answer.table)) == len(answer.table) == -(-len(tokens) // SIZE)
        naive.serve(tokens, spans, salt)
        naive.evict(len(manager.evict(evictions[index])))
        assert manager.usage().cached == len(naive.blocks)


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
    assert manager.holdings.leaving == [request]
    manager.end_step(step)
    assert manager.holdings.leaving == []
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


# --- T1: questions leave no trace ---


def test_a_match_that_leads_to_nothing_leaves_no_trace():
    manager = open_manager(8)
    for first in (1, 2, 3):
        serve(manager, f"r{first}", [first] * (2 * SIZE))
    manager.begin_step()
    manager.admit("running", [7])
    before = state(manager)
    half = [1] * SIZE + [9] * SIZE
    assert manager.lookup(half) == SIZE
    assert manager.lookup(half, namespace=Namespace("new")) == 0
    assert manager.admit("a", [1] * SIZE + [9] * SIZE * 6).reason == "no_space"
    assert manager.admit("b", [1] * SIZE * 9).reason == "never_fits"
    assert state(manager) == before


# --- T3: leaves leave first ---


@pytest.mark.parametrize("seed", range(5))
def test_no_block_outlives_the_block_before_it(seed):
    rng, manager = random.Random(seed), open_manager(24)
    for index in range(150):
        serve(manager, f"r{index}", [rng.randrange(2) for _ in range(rng.randrange(1, 30))])
        victims = manager.evict(rng.randrange(4))
        assert len(set(victims)) == len(victims)
        nodes = list(manager.trie.nodes())
        cached = [block for node in nodes for block in node.blocks]
        assert len(set(cached)) == len(cached) == manager.usage().cached
        assert not set(cached) & set(manager.pool.free_ids())
        assert all(node.blocks or node.children for node in nodes)
        assert all(node.parent.children[node.key] is node for node in nodes)


def test_the_end_of_a_chain_leaves_first_and_is_reused_first():
    manager = open_manager(8)
    table = serve(manager, "a", range_of(4 * SIZE)).table.tolist()
    serve(manager, "b", [7] * SIZE * 2)
    assert manager.evict(3).tolist() == table[:0:-1]
    manager.begin_step()
    assert manager.admit("c", [9] * SIZE * 3).table.tolist() == table[:0:-1]


def test_blocks_that_end_a_plain_prompt_are_not_part_of_a_hit_that_stops_before_a_span():
    manager = open_manager()
    serve(manager, "plain", [1] * 4 * SIZE)
    answer = serve(manager, "a", [1] * 4 * SIZE, spans=[Span("image", 2 * SIZE, 1, "h")])
    assert answer.hit == 2 * SIZE
    assert len(answer.table) == 4


def test_a_namespace_without_blocks_is_forgotten():
    manager = open_manager()
    for index in range(100):
        serve(manager, f"r{index}", [1] * (SIZE - 1), namespace=Namespace(salt=str(index)))
    assert list(manager.trie.nodes()) == []
    serve(manager, "a", [1] * SIZE, namespace=Namespace(salt="x"))
    manager.evict(1)
    manager.evict(1)
    assert list(manager.trie.nodes()) == []


# --- C7: the same decisions in every process ---

IN_A_PROCESS = """
import random
from kvproof.harness.adapters.reference import state_digest
from kvproof.reference.identity import Namespace, Span
from kvproof.suites.tests.reference_kit import SIZE, open_manager, serve, state
rng, manager = random.Random(3), CacheManager(CacheConfig(20, block_size=4, record_events=True))
for index in range(300):
    tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 24))]
    space = Namespace(rng.choice([None, "x", "y"]), None, rng.choice([None, "x"]))
    spans = [Span("image", 0, 1, rng.choice("ab"))] if rng.random() < 0.3 else []
    step = manager.begin_step()
    answer = manager.admit(f"r{index}", tokens, namespace=space, spans=spans)
    manager.end_step(step)
    print(answer[0], [*getattr(answer, "table", ())], state_digest(manager))
    if rng.random() < 0.9:
        [manager.release(name) for name in sorted(manager.live)[:2]]
    print([*manager.evict(rng.randrange(3))], [event.key.hex() for event in manager.drain_events()])
"""


def test_equal_histories_have_equal_tables_victims_and_keys_in_every_process():
    told = [
        subprocess.run(
            [sys.executable, "-c", IN_A_PROCESS],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert len(set(told[0].splitlines())) > 300, "the history does something"
