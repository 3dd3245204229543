"""The prefix index: longest match, leaves leave first, and questions leave no trace."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.reference.core.identity import Namespace, Span
from kvproof.suites.tests.engine.reference_kit import SIZE, open_manager, serve, state

draws = settings(derandomize=True, database=None, deadline=None, max_examples=100)

# --- T1, T2: longest match, against a set of prefixes ---


def outside(spans, length):
    """Move a length out of every span, down to a block border (M2)."""
    while inside := [s.start for s in spans if s.start < length < s.start + s.length]:
        length = min(inside) // SIZE * SIZE
    return length


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
        return outside(spans, found * SIZE)

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


# --- T1: questions leave no trace ---


def shape(manager):
    return state(manager), [id(node) for node in manager.trie.evictable_nodes()]


def test_a_match_that_leads_to_nothing_leaves_no_trace():
    manager = open_manager(8)
    for first in (1, 2, 3):
        serve(manager, f"r{first}", [first] * (2 * SIZE))
    manager.begin_step()
    manager.admit("running", [7])
    before = shape(manager)
    half = [1] * SIZE + [9] * SIZE
    assert manager.lookup(half) == SIZE
    assert manager.lookup(half, namespace=Namespace("new")) == 0
    assert manager.admit("a", [1] * SIZE + [9] * SIZE * 6).reason == "no_space"
    assert manager.admit("b", [1] * SIZE * 9).reason == "never_fits"
    assert shape(manager) == before


def range_of(count):
    return array("i", range(-count - 1, -1))


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
from kvproof.harness.adapters.reference.target import state_digest
from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import Namespace, Span
rng, manager = random.Random(3), CacheManager(CacheConfig(20, block_size=4, record_events=True))
for index in range(300):
    tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 24))]
    space = Namespace(rng.choice([None, "x", "y"]), None, rng.choice([None, "x"]))
    spans = [Span("image", 0, 1, rng.choice("ab"))] if rng.random() < 0.3 else []
    step = manager.begin_step()
    answer = manager.admit(f"r{index}", tokens, namespace=space, spans=spans)
    manager.end_step(step)
    print(answer, state_digest(manager))
    if rng.random() < 0.9:
        [manager.release(name) for name in sorted(manager.live)[:2]]
    print([*manager.evict(rng.randrange(3))], [event.key.hex() for event in manager.drain_events()])
"""


def test_equal_histories_have_equal_tables_victims_and_keys_in_every_process():
    reported = [
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
    assert reported[0] == reported[1]
    assert len(set(reported[0].splitlines())) > 300, "the history does something"
