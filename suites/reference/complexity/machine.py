"""Two cache managers with the same requests, one of them with much more in the cache."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Admission
from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.complexity import properties as seen

T = TypeVar("T")


def lines_of(work: Callable[[], T]) -> tuple[T, int]:
    """Return the result of `work`, and the number of Python lines that ran for it."""
    count = 0

    def line(_: FrameType, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # callbacks of the garbage collector would be counted too
    sys.settrace(line)
    try:
        done = work()
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()
    return done, count


BLOCK = 4
FEW, MANY = 20, 200
"""Other cached blocks: half as many prompts of two blocks."""
ROOM = 30_000
"""Blocks in addition to these: nothing is evicted but on request."""
MOST_BLOCKS = 6
SLACK = 60
"""Lines that a longer prompt may take beyond its length: one more checkpoint."""

_BUFFERS: dict[str, Callable[[Sequence[int]], Any]] = {
    "bytes": lambda tokens: array("i", tokens).tobytes(),
    "bytearray": lambda tokens: bytearray(array("i", tokens).tobytes()),
    "array": lambda tokens: array("i", tokens),
    "list": list,
    "tuple": lambda tokens: (*tokens, 0)[: len(tokens)],
    "numpy": lambda tokens: np.array(tokens, np.int32).data,
}


class ComplexityMachine:
    """Runs requests one after the other, with tokens of their own."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        groups = tuple(GroupConfig(*group) for group in config["groups"])
        self._managers = [_manager(groups, blocks) for blocks in (FEW, MANY)]
        self._coverage = coverage
        self._evictable = FEW
        """Other blocks that both managers still cache: the oldest ones of each."""
        self._fresh = 0
        self.prompts: list[list[int]] = []

    def apply(self, verb: str, **arguments: Any) -> object:
        """Serve, look up, pin or evict in both, or compare a short prompt with a long one."""
        return getattr(self, f"_{verb}")(**arguments)

    def _serve(self, *, tokens: list[int], form: str) -> object:
        self._coverage.event(seen.IN_FORM[form])
        self._coverage.event(
            seen.FORKED, any(0 < _shared(tokens, old) < len(old) for old in self.prompts)
        )
        self.prompts.append(tokens)
        hits = self._both(tokens, form, lambda manager, buffer: serve(manager, buffer))
        self._coverage.event(seen.HIT, hits[0] >= 2 * BLOCK)
        return f"hit {hits[0]}"

    def _lookup(self, *, tokens: list[int], form: str) -> object:
        return self._both(tokens, form, lambda manager, buffer: manager.lookup(buffer))[0]

    def _both(
        self, tokens: list[int], form: str, work: Callable[[CacheManager, Any], int]
    ) -> list[int]:
        done = []
        for manager in self._managers:
            buffer = _BUFFERS[form](tokens)
            before = sys.getrefcount(buffer)
            done.append(lines_of(lambda m=manager, b=buffer: work(m, b)))  # type: ignore[misc]
            self._forgotten(form, before, sys.getrefcount(buffer))
        (hit, few), (_, many) = done
        self._coverage.check(
            "cost_does_not_grow_with_the_cache",
            few == many,
            lambda: (
                f"{len(tokens)} tokens, of which {hit} are hit, take {few} lines in a "
                f"cache of {FEW} blocks and {many} in one of {MANY}"
            ),
        )
        return [hit for hit, _ in done]

    def _forgotten(self, form: str, before: int, after: int) -> None:
        self._coverage.check(
            "the_index_keeps_no_buffer_alive",
            after == before,
            lambda: f"{after - before} more refer to the {form} of a request that is gone",
        )

    def _pin(self, *, tokens: list[int], form: str) -> object:
        """Pin in the first manager and count references to the tokens while the pin is there."""
        manager, buffer = self._managers[0], _BUFFERS[form](tokens)
        before = sys.getrefcount(buffer)
        held = manager.pin("pin", buffer)
        self._forgotten(form, before, sys.getrefcount(buffer))
        manager.unpin("pin")
        self._managers[1].pin("pin", tokens)
        self._managers[1].unpin("pin")
        self._coverage.event(seen.PINNED, held)
        return held

    def _evict(self, *, count: int) -> object:
        count = min(count, self._evictable)
        if not count:
            return None
        self._evictable -= count
        (few_ids, few), (many_ids, many) = (
            lines_of(lambda m=manager: m.evict(count))  # type: ignore[misc]
            for manager in self._managers
        )
        self._coverage.event(seen.EVICTED, len(few_ids) > 1)
        self._coverage.check(
            "eviction_does_not_grow_with_the_cache",
            few == many and len(few_ids) == len(many_ids),
            lambda: (
                f"evicting {count} takes {few} lines for {len(few_ids)} blocks of {FEW}, "
                f"{many} for {len(many_ids)} of {MANY}"
            ),
        )
        return len(few_ids)

    def _compare(self, *, blocks: int) -> object:
        """Serve an unrelated prompt, then others of twice and four times its length."""
        prompts = [self._unknown(times * blocks) for times in (1, 2, 4)]
        one, two, four = (
            lines_of(lambda t=tokens: serve(self._managers[0], t))[1]  # type: ignore[misc]
            for tokens in prompts
        )
        for tokens in prompts:
            serve(self._managers[1], tokens)
        self._coverage.event(seen.LONG)
        self._coverage.check(
            "cost_is_linear_in_the_request",
            four - two <= 2 * max(0, two - one) + SLACK,
            lambda: (
                f"{blocks} blocks take {one} lines, twice as many {two}, four times {four}: "
                "the second step may cost twice the first"
            ),
        )
        return one, two, four

    def _unknown(self, blocks: int) -> array[int]:
        self._fresh += 1
        return array("i", [-self._fresh, *range(blocks * BLOCK)])


def serve(manager: CacheManager, tokens: Any) -> int:
    """Run one request from admission to release; returns the tokens hit."""
    step = manager.begin_step()
    answer = manager.admit("r", tokens)
    manager.end_step(step)
    assert isinstance(answer, Admission), "there is room for everything"
    hit, at, count = answer.hit, answer.stop, len(manager.live["r"].tokens) // BLOCK
    while at < count:
        step = manager.begin_step()
        further = manager.extend("r")
        assert isinstance(further, Admission), "there is room for everything"
        at = further.stop
        manager.end_step(step)
    manager.release("r")
    return hit


def _manager(groups: tuple[GroupConfig, ...], blocks: int) -> CacheManager:
    manager = CacheManager(CacheConfig(ROOM + 4 * MANY, BLOCK, groups=groups))
    for index in range(blocks // 2):
        serve(manager, array("i", [1_000 + 2 * index] * BLOCK + [1_001 + 2 * index] * BLOCK))
    return manager


def _shared(tokens: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(tokens, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(tokens), len(other)))
