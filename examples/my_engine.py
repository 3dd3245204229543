"""The smallest engine that kvproof can test: a paged cache in dictionaries, slow and correct.

Replace `MyEngine` by calls into your own cache manager and run

kvproof run --target examples.my_engine:make_target
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import (
    Completed,
    Evicted,
    Inspection,
    Refused,
    Released,
    Request,
    Scheduled,
    TargetConfig,
    Usage,
)

PROFILE = Profile(
    engine="my-engine",
    version="1.0",
    block_sizes=(1, 2, 4, 16),
    unsupported={"spans": "text only", "pins": "no API for it", "lookup": "no API for it"},
)
"""Capabilities of the engine; suites skip the rest and print these reasons."""


@dataclass
class Live:
    """A request that holds blocks."""

    request: Request
    tokens: tuple[int, ...]
    blocks: list[int]
    computed: int
    epoch: int


class MyEngine:
    """Block 0 is the null block; blocks without a holder are free or evictable."""

    profile = PROFILE

    def __init__(self, config: TargetConfig) -> None:
        self.size, self.caching = config.block_size, config.prefix_caching
        self.total = config.num_blocks - 1
        self.free = list(range(1, config.num_blocks))
        self.idle: dict[int, None] = {}  # cached and held by nobody, least recently used first
        self.cached: dict[Hashable, int] = {}  # content -> block
        self.content: dict[int, Hashable] = {}  # block -> content
        self.holders: Counter[int] = Counter()
        self.live: dict[str, Live] = {}
        self.steps: dict[int, str] = {}
        self.epoch = self.step = 0

    def admit(self, request: Request, compute: int | None = None) -> Scheduled | Refused:
        """Reuse the longest cached prefix, except for the last token."""
        hits: list[int] = []
        for index in range((len(request.tokens) - 1) // self.size if self.caching else 0):
            block = self.cached.get(self._key(request, request.tokens, index))
            if block is None:
                break
            hits.append(block)
        if refused := self._refusal(request.tokens, hits):
            return refused
        for block in hits:
            self._hold(block)
        computed = len(hits) * self.size
        live = Live(request, request.tokens, hits, computed, self.epoch)
        self.live[request.id] = live
        return self._schedule(live, hit=computed, compute=compute)

    def extend(
        self, request_id: str, tokens: tuple[int, ...] = (), compute: int | None = None
    ) -> Scheduled | Refused:
        """Append `tokens` and continue."""
        live = self.live[request_id]
        if refused := self._refusal(live.tokens + tokens, live.blocks):
            return refused
        live.tokens += tokens
        return self._schedule(live, hit=0, compute=compute)

    def complete(self, step: int) -> Completed:
        """Register full blocks for reuse; a duplicate is replaced by the cached block."""
        live = self.live.get(self.steps.pop(step))
        if live is None:
            return Completed(step)
        for index in range(live.computed // self.size):
            key = self._key(live.request, live.tokens, index)
            if not self.caching or live.epoch != self.epoch or live.blocks[index] in self.content:
                continue
            if key in self.cached:
                own, live.blocks[index] = live.blocks[index], self.cached[key]
                self._hold(live.blocks[index])
                self._drop([own])
            else:
                self.cached[key], self.content[live.blocks[index]] = live.blocks[index], key
        return Completed(step, *self._tables(live))

    def finish(self, request_id: str) -> Released:
        """Ends of chains become evictable first, so that they are evicted first."""
        live = self.live.pop(request_id, None)
        if live is None:
            return Released()
        self._drop(live.blocks[::-1])
        return Released((tuple(live.blocks),))

    cancel = preempt = finish

    def evict(self, count: int) -> Evicted:
        """Evict the least recently used blocks."""
        blocks = list(self.idle)[:count]
        self.free += map(self._forget, blocks)
        return Evicted((tuple(blocks),))

    def reset(self) -> Released:
        """Drop all contents; running requests keep their blocks."""
        self.free += self.idle
        self.idle, self.cached, self.content = {}, {}, {}
        self.epoch += 1
        return Released()

    def inspect(self) -> Inspection:
        """Count blocks by owner."""
        return Inspection(Usage(self.total, len(self.free), len(+self.holders), len(self.idle)))

    def close(self) -> None:
        """Nothing to release."""

    def _key(self, request: Request, tokens: tuple[int, ...], index: int) -> Hashable:
        return request.namespace, tokens[: (index + 1) * self.size]

    def _refusal(self, tokens: tuple[int, ...], own: list[int]) -> Refused | None:
        whole = -(-len(tokens) // self.size)
        available = len(self.free) + len(self.idle.keys() - set(own))
        if whole <= available + len(own) and whole <= self.total:
            return None
        reason = "never_fits" if whole > self.total else "no_space"
        return Refused(reason, needed=whole - len(own), available=available)

    def _schedule(self, live: Live, *, hit: int, compute: int | None) -> Scheduled:
        while len(live.blocks) * self.size < len(live.tokens):
            block = self.free.pop() if self.free else self._forget(next(iter(self.idle)))
            self._hold(block)
            live.blocks.append(block)
        start, end = live.computed, len(live.tokens)
        live.computed = end if compute is None else min(start + compute, end)
        self.step += 1
        self.steps[self.step] = live.request.id
        return Scheduled(self.step, hit, start, live.computed, *self._tables(live))

    def _tables(self, live: Live) -> tuple[tuple[tuple[int, ...]], tuple[tuple[int, ...]]]:
        return (tuple(live.blocks),), (tuple(live.blocks),)

    def _hold(self, block: int) -> None:
        self.holders[block] += 1
        self.idle.pop(block, None)

    def _drop(self, blocks: list[int]) -> None:
        for block in blocks:
            self.holders[block] -= 1
            if self.holders[block]:
                continue
            if block in self.content:
                self.idle[block] = None
            else:
                self.free.append(block)

    def _forget(self, block: int) -> int:
        del self.idle[block], self.cached[self.content.pop(block)]
        return block


def make_target(config: TargetConfig) -> MyEngine:
    """Factory for `--target examples.my_engine:make_target`."""
    return MyEngine(config)
