"""The cache model against brute force: longest hit, order of eviction, orphans, duplicates."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.harness.contract.target import Namespace, TargetConfig
from kvproof.harness.model.fingerprints import fingerprints
from kvproof.harness.oracle.cache_model import CacheModel
from kvproof.harness.oracle.group_layout import Layout

draws = settings(derandomize=True, database=None, deadline=None, max_examples=150)

SIZE = 2
prompts = st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)


def prints(tokens):
    return fingerprints(tokens, namespace=Namespace(), spans=(), epoch=0)


class World:
    """A cache model, and a plain dictionary of the tokens that each block holds."""

    def __init__(self):
        self.model = CacheModel(Layout.of(TargetConfig(num_blocks=20, block_size=SIZE)))
        self.holds = {}

    def store(self, block, tokens, index):
        self.model.store(block, prints(tokens), index)
        self.holds.setdefault(block, tokens[: (index + 1) * SIZE])

    def drop(self, block):
        entry = self.model.drop(block)
        assert (entry is None) == (block not in self.holds)
        self.holds.pop(block, None)


@st.composite
def worlds(draw):
    world = World()
    for block in range(1, draw(st.integers(1, 10))):
        tokens = draw(prompts.filter(lambda ids: len(ids) >= SIZE))
        world.store(block, tokens, draw(st.integers(0, len(tokens) // SIZE - 1)))
    for block in draw(st.lists(st.integers(1, 12), max_size=4)):
        world.drop(block)
    return world


@draws
@given(worlds(), prompts, st.integers(0, 9))
def test_the_longest_hit_equals_brute_force(world, tokens, limit):
    held, expected = set(world.holds.values()), 0
    while expected + SIZE <= min(limit, len(tokens)) and tokens[: expected + SIZE] in held:
        expected += SIZE
    found = world.model.prefix(prints(tokens), min(limit, len(tokens)))
    assert found == expected
    chain = world.model.blocks(prints(tokens), 0, found, 0)
    assert [world.holds[block] for block in chain] == [
        tokens[:end] for end in range(SIZE, found + 1, SIZE)
    ]


@draws
@given(worlds())
def test_a_duplicate_is_found_exactly_if_two_blocks_hold_the_same(world):
    held = list(world.holds.values())
    copies = world.model.duplicates()
    assert (copies is not None) == (len(set(held)) < len(held))
    if copies:
        assert len(copies) > 1
        assert len({world.holds[block] for block in copies}) == 1
    assert len(world.model.contents()) == len(set(held))


@draws
@given(worlds())
def test_an_orphan_is_found_exactly_if_a_predecessor_is_gone(world):
    held = set(world.holds.values())
    orphans = {b for b, ids in world.holds.items() if len(ids) > SIZE and ids[:-SIZE] not in held}
    found = world.model.orphan()
    assert (found is None) == (not orphans)
    assert found is None or found in orphans


def next_victims(idle, holds):
    """Blocks that may go next: of the oldest, those that no idle one of the same age follows."""
    oldest = min(idle.values())
    same = [block for block, since in idle.items() if since == oldest]
    parents = {holds[block][:-SIZE] for block in same}
    return {block for block in same if holds[block] not in parents}


@st.composite
def idle_worlds(draw):
    """Chains without copies, released at drawn times, as `settle` sees it; some still held."""
    world, block = World(), 0
    for tokens in draw(st.lists(prompts, min_size=1, max_size=4)):
        for index in range(len(tokens) // SIZE):
            if tokens[: (index + 1) * SIZE] not in world.holds.values():
                block += 1
                world.store(block, tokens, index)
    idle = {}
    for now in range(draw(st.integers(1, 3))):
        free = draw(st.sets(st.sampled_from([*world.holds]))) if world.holds else set()
        idle.update(dict.fromkeys(free - idle.keys(), now))
        world.model.settle(set(world.holds) - set(idle), now)
    return world, idle


@draws
@given(idle_worlds(), st.data())
def test_victims_in_order_are_accepted(drawn, data):
    world, idle = drawn
    victims = {}
    for _ in range(data.draw(st.integers(0, len(idle)))):
        block = data.draw(st.sampled_from(sorted(next_victims(idle, world.holds))))
        victims[block] = world.model.drop(block)
        del idle[block]
    assert world.model.disorder(victims, ()) is None


@draws
@given(idle_worlds(), st.data())
def test_disorder_is_found_exactly_if_no_order_of_eviction_gives_these_victims(drawn, data):
    world, idle = drawn
    chosen = data.draw(st.sets(st.sampled_from([*idle]))) if idle else set()
    left, reachable = dict(idle), True
    while chosen & left.keys():
        best = next_victims(left, world.holds) & chosen
        if not best:
            reachable = False
            break
        del left[min(best)]
    victims = {block: world.model.drop(block) for block in chosen}
    found = world.model.disorder(victims, ())
    assert (found is None) == reachable
    if found:
        assert found.victim in chosen
        assert found.survivor in idle.keys() - chosen
        earlier = idle[found.survivor] < idle[found.victim]
        assert found.reason == (
            "it was released earlier" if earlier else "it follows the victim in the same chain"
        )


def test_blocks_that_the_evicting_request_hits_are_no_survivors():
    world = World()
    for block, tokens in ((1, (0, 0)), (2, (1, 1))):
        world.store(block, tokens, 0)
        world.model.settle(set(), block)
    victims = {2: world.model.drop(2)}
    assert world.model.disorder(victims, ()).survivor == 1
    assert world.model.disorder(victims, (1,)) is None


def test_a_block_held_again_starts_its_rest_anew():
    world = World()
    world.store(1, (0, 0), 0)
    world.model.settle((), 1)
    world.model.settle((), 2)
    assert world.model.cached[1].idle_since == 1
    world.model.settle((1,), 3)
    assert world.model.cached[1].idle_since is None
    world.model.settle((), 4)
    assert world.model.cached[1].idle_since == 4


def test_a_cleared_model_is_empty():
    world = World()
    world.store(1, (0, 0, 1), 0)
    world.model.clear()
    assert world.model.prefix(prints((0, 0, 1)), 2) == 0
    assert (world.model.contents(), world.model.cached) == (set(), {})
