"""Steps in flight and resets: nothing is handed out or cached too early, nothing is lost."""

from __future__ import annotations

import random

import pytest

from kvproof.reference.cache.request_state import Refusal, Usage
from kvproof.suites.tests.engine.reference_kit import SIZE, open_manager, prompt, serve


def test_blocks_of_a_released_request_wait_for_its_step():
    manager = open_manager(5)
    step = manager.begin_step()
    table = manager.admit("a", [1] * 3 * SIZE).table.tolist()
    assert manager.release("a").tolist() == table
    assert manager.usage() == Usage(free=1, held=3, cached=0)
    manager.begin_step()
    assert isinstance(manager.admit("b", [2] * 2 * SIZE), Refusal)
    manager.end_step(step)
    assert set(manager.admit("b", [2] * 2 * SIZE).table) <= {*table, 4}


def test_blocks_wait_for_every_step_of_their_request():
    manager = open_manager(8)
    manager.begin_step()
    manager.admit("a", [1] * 4 * SIZE, compute=SIZE)
    for _ in range(2):
        manager.begin_step()
        manager.extend("a", compute=SIZE)
    manager.release("a")
    for step in (1, 2, 3):
        assert manager.usage() == Usage(free=4, held=3, cached=0)
        manager.end_step(step)
    assert manager.usage() == Usage(free=7, held=0, cached=0)


def test_blocks_replaced_by_equal_ones_wait_for_every_step_that_reads_them():
    manager = open_manager(10)
    manager.begin_step()
    first = manager.admit("a", prompt(1, 2)).table.tolist()
    manager.begin_step()
    own = manager.admit("b", prompt(1, 2)).table.tolist()
    manager.begin_step()
    manager.extend("b", [0] * (SIZE - 1))
    for step in (1, 2, 3):
        assert manager.pool.num_free == 9 - len(first) - len(own)
        manager.end_step(step)
    assert manager.pool.num_free == 9 - len(first) - len(own) + 2
    assert manager.live["a"].table[:2] == manager.live["b"].table[:2]


def test_blocks_are_cached_once_everything_before_them_is_computed():
    manager = open_manager(16)
    tokens = prompt(1, 2, 3)
    manager.begin_step()
    manager.admit("a", tokens, compute=SIZE)
    for _ in range(2):
        manager.begin_step()
        manager.extend("a", compute=SIZE)
    for step in (1, 2, 3):
        manager.end_step(step)
        assert manager.lookup(tokens) == step * SIZE


def test_a_step_ends_after_all_older_ones_unless_it_is_empty():
    manager = open_manager(16)
    manager.begin_step()
    manager.admit("a", prompt(1))
    manager.begin_step()
    manager.admit("b", prompt(2))
    with pytest.raises(RuntimeError, match="step 2 cannot end: the oldest in flight is 1"):
        manager.end_step(2)
    manager.end_step(manager.begin_step())
    manager.end_step(1)
    manager.end_step(2)
    with pytest.raises(RuntimeError, match="step 2 cannot end"):
        manager.end_step(2)


def test_nothing_is_scheduled_while_no_step_is_open():
    manager = open_manager(5)
    with pytest.raises(RuntimeError, match=r"^step 0 has ended; call begin_step first$"):
        manager.admit("a", [1])
    assert manager.live == {}
    step = manager.begin_step()
    manager.admit("a", [1])
    manager.end_step(step)
    for schedule, name in ((manager.admit, "b"), (manager.extend, "a")):
        with pytest.raises(RuntimeError, match=r"^step 1 has ended; call begin_step first$"):
            schedule(name, [2])
    assert list(manager.live) == ["a"]


def test_the_newest_step_stays_open_when_an_older_one_ends():
    manager = open_manager(5)
    manager.begin_step()
    manager.begin_step()
    manager.end_step(1)
    assert manager.admit("a", [1]).stop == 1


def test_results_for_a_step_that_is_not_in_flight_are_refused_like_the_step():
    manager = open_manager(5)
    with pytest.raises(RuntimeError, match=r"^step 7 cannot end: the oldest in flight is None$"):
        manager.end_step(7, accepted={"a": 1})


class World:
    """What is really in the blocks, and which of them steps in flight may touch."""

    def __init__(self, rng, num_blocks):
        self.rng = rng
        self.manager = open_manager(num_blocks)
        self.content = {}
        """Block -> epoch and tokens up to its end, once its step has ended."""
        self.steps = {}
        """Step in flight -> its request, the blocks it may touch, and what it will have written."""
        self.requests = {}
        """Name -> epoch and tokens."""
        self.hits = 0

    def draw(self, most):
        count = self.rng.randrange(1, most)
        return [self.rng.random() < 0.05 for _ in range(count)]

    def admit(self, index):
        name, tokens, step = f"r{index}", self.draw(3 * SIZE), self.manager.begin_step()
        answer = self.manager.admit(name, tokens, compute=self.rng.choice([None, SIZE]))
        self.requests[name] = self.manager.epoch, tokens
        self.hits += getattr(answer, "hit", 0) > 0
        self.schedule(step, name, answer)

    def extend(self):
        name, more = self.rng.choice(sorted(self.manager.live)), self.draw(SIZE)
        epoch, tokens = self.requests[name]
        step = self.manager.begin_step()
        answer = self.manager.extend(name, more)
        if not isinstance(answer, Refusal):
            self.requests[name] = epoch, tokens + more
        self.schedule(step, name, answer)

    def schedule(self, step, name, answer):
        if isinstance(answer, Refusal):
            self.steps[step] = name, set(), {}
            return
        first, full = answer.start // SIZE, answer.stop // SIZE
        self.check_writes(name, set(answer.table[first:]))
        if not any(name == who for who, _, _ in self.steps.values()):
            self.check_reads(name, answer.table[:first])
        written = {answer.table[i]: self.truth(name, i) for i in range(first, full)}
        self.steps[step] = name, set(answer.table), written

    def truth(self, name, index):
        epoch, tokens = self.requests[name]
        return epoch, tokens[: (index + 1) * SIZE]

    def check_writes(self, name, blocks):
        for who, touched, _ in self.steps.values():
            assert who == name or not touched & blocks, f"{name} writes under a step of {who}"

    def check_reads(self, name, blocks):
        for index, block in enumerate(blocks):
            found = self.content.get(block)
            assert found == self.truth(name, index), f"{name} reads block {block}"

    def end(self):
        step = min(self.steps)
        _, _, written = self.steps.pop(step)
        self.content.update(written)
        self.manager.end_step(step)

    def act(self, index):
        live = self.manager.live
        choice = self.rng.random()
        if len(self.steps) > 3 or (choice < 0.3 and self.steps):
            self.end()
        elif choice < 0.55:
            self.admit(index)
        elif choice < 0.75 and live:
            self.extend()
        elif choice < 0.98 and live:
            self.manager.release(self.rng.choice(sorted(live)))
        elif choice > 0.98:
            self.manager.reset()


@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_reused_under_a_step_in_flight(seed):
    world = World(random.Random(seed), 6 + seed)
    manager = world.manager
    for index in range(300):
        world.act(index)
    assert world.hits >= 5, "hardly anything was ever reused"
    for name in list(manager.live):
        manager.release(name)
    while world.steps:
        world.end()
    usage = manager.usage()
    assert (usage.held, usage.free + usage.cached) == (0, manager.pool.num_blocks - 1)


def test_a_request_from_before_a_reset_finishes_cleanly_and_leaves_nothing_behind():
    manager = open_manager(10)
    serve(manager, "old", prompt(1, 2))
    first = manager.begin_step()
    manager.admit("a", prompt(1, 2, 3, 4))
    manager.reset()
    assert manager.usage() == Usage(free=4, held=5, cached=0)
    manager.end_step(first)
    second = manager.begin_step()
    assert manager.extend("a", [9] * SIZE).table[:4] == manager.live["a"].table[:4]
    manager.end_step(second)
    assert manager.lookup(prompt(1, 2, 3, 4)) == 0, "computed before the reset"
    manager.release("a")
    assert manager.usage() == Usage(free=9, held=0, cached=0)


def test_a_reset_between_release_and_the_end_of_its_step_loses_no_block():
    manager = open_manager(10)
    serve(manager, "old", prompt(1, 2))
    step = manager.begin_step()
    manager.admit("a", prompt(1, 2, 3))
    manager.release("a")
    manager.reset()
    assert manager.usage() == Usage(free=5, held=4, cached=0)
    manager.end_step(step)
    assert manager.usage() == Usage(free=9, held=0, cached=0)
    assert sorted(manager.pool.free_ids()) == list(range(1, 10))
