"""Random histories over any groups, against a plain model and against what nodes must look like."""

from __future__ import annotations

import random

import pytest

from kvproof.reference.core.attention_groups import Layout
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.identity import Span
from kvproof.suites.tests.engine.manager_model import CheckedManager
from kvproof.suites.tests.engine.reference_kit import chunk, full, recurrent, window

MODELS = {
    "full": (full(2),),
    "window": (full(2), window(5, 2)),
    "narrow window": (full(2), window(1, 2), window(3, 1)),
    "chunk": (full(1), chunk(6, 4)),
    "many": (full(2), window(4, 2), chunk(7, 2), window(9, 4)),
    "states": (full(2), recurrent(2, state_blocks=2)),
    "two states": (recurrent(2), full(2), recurrent(4, state_blocks=2)),
    "everything": (full(2), window(6, 2), recurrent(4), chunk(5, 1)),
    "drafts": (full(2), window(5, 2), full(2, draft=True), window(3, 2, draft=True)),
    "drafts and states": (full(2), recurrent(2), window(3, 2, draft=True)),
}


class Player:
    """Draws what happens next."""

    def __init__(self, seed, groups, **options):
        self.rng = random.Random(seed)
        self.checked = CheckedManager(CacheConfig(groups=groups, **options))
        self.manager = self.checked.manager
        self.prompts = []

    def some(self, most, least=1):
        return [self.rng.randint(0, 1) for _ in range(self.rng.randint(least, most))]

    def prompt(self):
        if not self.prompts or self.rng.random() < 0.3:
            return self.some(18, 9), ()
        tokens, spans = self.rng.choice(self.prompts)
        cut = self.rng.choice([len(tokens), self.rng.randint(len(tokens) // 2, len(tokens))])
        tokens = tokens[:cut] + self.some(4)
        if self.rng.random() < 0.2 and len(tokens) > 6:
            start = self.rng.randint(0, 3)
            spans = (Span("image", start, self.rng.randint(1, 3), self.rng.choice("ab")),)
        return tokens, tuple(s for s in spans if s.start + s.length <= len(tokens))

    def act(self, index):
        chance, checked = self.rng.random(), self.checked
        idle = [name for name, request in self.manager.live.items() if not request.drafts]
        if chance < 0.28:
            self.prompts.append(self.prompt())
            checked.admit(f"r{index}", *self.prompts[-1], self.rng.choice([None, None, 3, 8]))
        elif chance < 0.48 and idle:
            self.extend(self.rng.choice(idle))
        elif chance < 0.75 and checked.steps:
            drafts = checked.steps[0].drafts
            checked.end(self.rng.randint(0, drafts) if drafts else None)
        elif chance < 0.93 and self.manager.live:
            checked.release(self.rng.choice(list(self.manager.live)))
        elif chance < 0.98:
            self.less_often(index)

    def extend(self, name):
        whole = len(self.manager.live[name].tokens) // 4 == self.manager.live[name].computed
        if whole and self.rng.random() < 0.4:
            self.checked.extend(name, self.some(1), self.some(5))
        else:
            self.checked.extend(name, self.some(3), (), self.rng.choice([None, 2, 5]))

    def less_often(self, index):
        manager, choice = self.manager, self.rng.random()
        if choice < 0.45:
            manager.evict(self.rng.randint(1, 5))
        elif choice < 0.75 and self.prompts:
            tokens, spans = self.rng.choice(self.prompts)
            manager.pin(f"p{index}", tokens, spans=spans)
        elif choice < 0.95 and manager.pins:
            manager.unpin(next(iter(manager.pins)))
        else:
            self.checked.reset()
        self.checked.settle()

    def look(self):
        for _ in range(2):
            tokens, spans = self.prompt()
            found = self.manager.lookup(tokens, spans=spans)
            assert found == self.checked.longest_hit(tokens, spans)

    def finish(self):
        for _ in [*self.checked.steps]:
            self.checked.end()
        for name in [*self.manager.live]:
            self.manager.release(name)
        for name in [*self.manager.pins]:
            self.manager.unpin(name)


def check_shape(manager):
    """What is resident in a node is a suffix, what is held a suffix of that, and counts agree."""
    eviction = manager.eviction
    idle = [0] * len(eviction.windows)
    for node in manager.trie.nodes():
        above = node.parent
        assert node.start == (above.start + above.units if above.parent else 0)
        for index, (local, run) in enumerate(zip(eviction.windows, node.runs, strict=False)):
            width = local.rule.width
            assert len(run.ids) == node.units * width
            assert not any(run.ids[: run.lo * width])
            assert all(run.ids[run.lo * width :])
            assert run.lo <= run.held == min(run.starts, default=node.units)
            assert (run in local._idle) == (run.lo < run.held)
            idle[index] += (run.held - run.lo) * width
    assert idle == [local.num_evictable for local in eviction.windows]


def check_everything_is_back(manager):
    assert manager.usage().held == 0
    manager.evict(10**6)
    assert manager.usage() == (manager.pool.num_blocks - 1, 0, 0)
    assert sorted(manager.pool.free_ids()) == list(range(1, manager.pool.num_blocks))
    states = manager.eviction.states
    if states and not manager.eviction.state_blocks:
        assert states.home.num_free + states.num_ready == states.home.count
    assert not [*manager.trie.nodes()]


def play(player, operations):
    for index in range(operations):
        player.act(index)
        check_shape(player.manager)
        player.look()
    player.finish()
    check_shape(player.manager)
    check_everything_is_back(player.manager)
    return player.checked


CASES = [
    (model, pool)
    for model, groups in MODELS.items()
    for pool in ("shared", "separate")
    if pool == "shared" or any(group.kind == "state" for group in groups)
]


@pytest.mark.parametrize(("model", "pool"), CASES)
def test_hits_contents_and_owners_equal_the_plain_model(model, pool):
    hits = cut = refusals = 0
    for seed in range(6):
        options = {"state_pool": pool, "max_requests": 4, "prefix_cache_state_budget": 3 * seed}
        checked = play(Player(seed, MODELS[model], num_blocks=20 + 15 * seed, **options), 110)
        hits, cut, refusals = hits + checked.hits, cut + checked.cut, refusals + checked.refusals
    assert hits >= 20, "hardly anything could be reused"
    assert cut >= 5 or model == "full", "full attention alone decided"
    assert refusals >= 5, "hardly anything was scarce"


def drawn_group(rng):
    draft, block = rng.random() < 0.2, rng.choice([1, 2, 2, 4])
    return rng.choice(
        [
            full(block, draft=draft),
            window(rng.randint(1, 9), block, draft=draft),
            chunk(rng.randint(1, 9), block, draft=draft),
            recurrent(block, state_blocks=rng.randint(1, 3)),
        ]
    )


@pytest.mark.parametrize("seed", range(24))
def test_any_mix_of_groups_keeps_its_shape_and_gives_everything_back(seed):
    rng = random.Random(seed)
    groups = tuple(drawn_group(rng) for _ in range(rng.randint(1, 4)))
    player = Player(
        seed,
        groups,
        num_blocks=rng.randint(8, 60),
        state_pool=rng.choice(["shared", "separate"]),
        max_requests=rng.randint(1, 4),
        prefix_cache_state_budget=rng.randint(0, 3),
        prefix_cache_decode_state_interval=rng.randint(0, 2) * Layout(groups).unit,
        record_events=any(group.kind == "full" for group in groups),
    )
    play(player, 60)


def test_tokens_leave_with_the_last_state_that_they_led_to():
    """T4: in a model of states alone no block is ever needed for which they would be evicted."""
    options = {"state_pool": "separate", "max_requests": 2, "prefix_cache_state_budget": 6}
    checked = CheckedManager(CacheConfig(4, groups=(recurrent(4),), **options))
    for index, end in enumerate(([], [2] * 8, [3] * 8, [2] * 4 + [4] * 8)):
        checked.admit(str(index), [1] * 8 + end)
        checked.end()
        checked.release(str(index))
    nodes = checked.manager.trie.nodes
    assert len([*nodes()]) > 3
    while checked.manager.eviction.states.evict_one():
        pass
    assert not [*nodes()]
