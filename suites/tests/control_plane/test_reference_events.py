"""Cache events: their replay is the index, and their keys are the identity of the blocks."""

from __future__ import annotations

import random
from array import array

import pytest

from kvproof.reference.cache.cache_events import GROUP
from kvproof.reference.core.identity import HASH_ALGORITHMS, BlockKeys, KeyChain, Namespace, Span
from kvproof.suites.tests.engine import reference_kit
from kvproof.suites.tests.engine.reference_kit import SIZE, indexed_units


def open_manager(num_blocks=16, **options):
    return reference_kit.open_manager(num_blocks, record_events=True, **options)


class Replica:
    """What an observer of the events knows: key -> parent, and how often each came and went."""

    def __init__(self):
        self.index = {}
        self.removed = 0

    def replay(self, events):
        for event in events:
            if event.kind == "cleared":
                self.index.clear()
            elif event.kind == "stored":
                assert event.key not in self.index, "stored twice"
                assert not event.parent or event.parent in self.index, "unknown parent"
                self.index[event.key] = event
            else:
                assert event.key not in {e.parent for e in self.index.values()}, "has children"
                del self.index[event.key]
                self.removed += 1


def cached(manager):
    """Key of every block in the index, made from its path alone."""
    found = {}
    for node in manager.trie.nodes():
        path = [*node.path()][::-1]
        space = path[0].key
        tokens = b"".join(bytes(part.tokens) for part in path)
        spans = [s for part in path[1:] if isinstance(part.key, tuple) for s in part.key[1]]
        chain = BlockKeys(
            KeyChain(HASH_ALGORITHMS["sha256"], "kvproof", GROUP, manager.epoch),
            block_size=SIZE,
            namespace=space,
        )
        chain.extend(tokens, spans)
        found.update(
            zip(chain.keys[len(chain.keys) - len(node.blocks) :], node.blocks, strict=True)
        )
    return found


def draw(rng):
    tokens = [rng.random() < 0.3 for _ in range(rng.randrange(1, 26))]
    spans = []
    if rng.random() < 0.3 and len(tokens) > 6:
        spans = [Span("image", 1, 2, rng.choice("ab")), Span("audio", 5, 1, "c")]
    return tokens, spans, Namespace(rng.choice([None, "x"]), None, rng.choice([None, None, "x"]))


@pytest.mark.parametrize("seed", range(8))
def test_replayed_events_are_the_index_at_any_time(seed):
    rng, manager, replica, steps = random.Random(seed), open_manager(), Replica(), []
    for index in range(250):
        tokens, spans, space = draw(rng)
        steps.append(manager.begin_step())
        manager.admit(f"r{index}", tokens, spans=spans, namespace=space)
        while len(steps) > rng.randrange(3):
            manager.end_step(steps.pop(0))
        for name in list(manager.live)[: rng.randrange(3)]:
            manager.release(name)
        if rng.random() < 0.1:
            manager.evict(rng.randrange(4))
        if rng.random() < 0.02:
            manager.reset()
        replica.replay(manager.drain_events())
        assert set(replica.index) == set(cached(manager))
        assert len(replica.index) == indexed_units(manager)
    assert replica.removed > 20


def test_an_event_tells_everything_that_the_block_depends_on():
    manager = open_manager()
    spans = [Span("image", 5, 2, "7f3c")]
    step = manager.begin_step()
    manager.admit("a", range_of(9), spans=spans, namespace=Namespace("x", "1", "s"))
    manager.end_step(step)
    first, second = manager.drain_events()
    assert (first.kind, first.parent, first.group) == ("stored", b"", GROUP)
    assert (first.tokens, first.spans) == ((0, 1, 2, 3), ())
    assert (second.parent, second.tokens, second.spans) == (first.key, (4, 5, 6, 7), tuple(spans))
    assert first.namespace == second.namespace == Namespace("x", "1", "s")


def range_of(count):
    return array("i", range(count))


def test_a_block_shared_by_two_requests_is_stored_once_and_removed_once():
    manager = open_manager()
    for name in "ab":
        manager.begin_step()
        manager.admit(name, range_of(9))
    for step in (1, 2):
        manager.end_step(step)
    for name in "ab":
        manager.release(name)
    manager.evict(99)
    kinds = [event.kind for event in manager.drain_events()]
    assert kinds == ["stored", "stored", "removed", "removed"]


def test_blocks_removed_together_are_told_end_first():
    manager = open_manager()
    manager.begin_step()
    manager.admit("a", range_of(4 * SIZE))
    manager.end_step(1)
    stored = [event.key for event in manager.drain_events()]
    manager.release("a")
    manager.evict(3)
    assert [event.key for event in manager.drain_events()] == stored[:0:-1]


def test_the_same_prompt_has_other_keys_after_a_reset():
    manager = open_manager()
    for name in "ab":
        step = manager.begin_step()
        manager.admit(name, range_of(9))
        manager.end_step(step)
        manager.release(name)
        if name == "a":
            manager.reset()
    one, two, cleared, three, four = manager.drain_events()
    assert cleared.kind == "cleared"
    assert {one.key, two.key}.isdisjoint({three.key, four.key})
    assert one.tokens == three.tokens


def test_names_that_are_no_valid_text_are_told_like_any_other():
    manager = open_manager()
    step = manager.begin_step()
    manager.admit("a", range_of(9), namespace=Namespace("\ud800"))
    manager.end_step(step)
    assert [event.namespace.adapter for event in manager.drain_events()] == ["\ud800"] * 2
    assert manager.lookup(range_of(9), namespace=Namespace("\ud800")) == 8


def test_events_are_told_once():
    manager = open_manager()
    step = manager.begin_step()
    manager.admit("a", range_of(9))
    manager.end_step(step)
    assert len(manager.drain_events()) == 2
    assert manager.drain_events() == []
