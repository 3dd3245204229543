"""Eviction order over everything in the pool (B1-B3, B5).

A block is free and uncached (in the pool), evictable (in the index and unused), or held. Evictable
blocks are in one of three orders: leaves of the trie, runs of windows and chunks, and checkpoints
in the shared pool. All are stamped by one logical clock and the oldest goes first; at a tie the
leaf, because its windows and checkpoints go with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Protocol

from kvproof.reference.cache.cache_events import EventLog
from kvproof.reference.cache.routed_experts import ExpertFormat, ExpertIndex
from kvproof.reference.core.attention_groups import BlockClass
from kvproof.reference.core.block_pool import BlockPool, Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.prefix.partial_blocks import PartialBlockIndex
from kvproof.reference.prefix.trie import Attached, Match, Node, PrefixTrie, WindowRun
from kvproof.reference.prefix.window_blocks import WindowBlocks
from kvproof.reference.states.checkpoint_index import CheckpointIndex
from kvproof.reference.states.state_cache import StateCache
from kvproof.reference.states.state_slots import SharedBlocks, SlotPool


class EvictionListener(Protocol):
    """Notified before content loses its place; it is whole until the call returns."""

    def before_evict_units(self, leaf: Node, left: int) -> None:
        """Units of a leaf from number `left` on, with all that hangs on them."""

    def before_evict_window(self, index: int, run: WindowRun, count: int) -> None:
        """About `count` blocks from the front of a run of class `index`."""

    def before_evict_state(self, checkpoint: Checkpoint) -> None:
        """A checkpoint, still on its node."""

    def clear(self) -> None:
        """Nothing computed so far is reused (H6)."""


class EvictionPolicy:
    """Pool and index of one cache, and the order in which blocks leave."""

    def __init__(self, config: CacheConfig, events: EventLog | None) -> None:
        layout = config.layout
        self.unit = layout.unit
        self.pool = BlockPool(config.num_blocks)
        self.full_width = width = layout.full.width
        self.trie = PrefixTrie(self.unit, width, events.on_change if events else None)
        self.windows = tuple(
            WindowBlocks(rule, index, self.trie) for index, rule in enumerate(layout.local)
        )
        self.row_width = width + sum(rule.width for rule in layout.local)
        self.state_blocks = layout.state_blocks if config.state_pool == "shared" else 0
        self.states = self._make_states(config) if layout.states else None
        self.checkpoints = CheckpointIndex(self.states, self.unit) if self.states else None
        form = ExpertFormat(*config.experts, self.unit)
        self.experts = ExpertIndex(form) if config.return_routed_experts else None
        self.partial = self._make_partial(config) if config.cache_partial_blocks else None
        others: list[Attached | None] = [*self.windows, self.checkpoints, self.experts]
        self.trie.attached = [other for other in others if other]
        self._alone = not self.windows and not self.states
        self._layout = layout
        self.listener: EvictionListener | None = None
        """Notified before the content of evicted blocks is lost, unless it is None."""
        self.on_evicted: list[Callable[[int, Ids], None]] = []
        """Called with (group, blocks or slots) that lose their content, except by a reset."""

    def _make_states(self, config: CacheConfig) -> StateCache:
        rows = config.max_requests + config.prefix_cache_state_budget
        shared = config.state_pool == "shared"
        return StateCache(
            self._blocks() if shared else SlotPool(rows),
            most_running=0 if shared else config.max_requests,
            on_evict=self._detach,
            clock=partial(getattr, self.trie, "clock"),
        )

    def _make_partial(self, config: CacheConfig) -> PartialBlockIndex:
        index = PartialBlockIndex(config.layout.starts)
        index.on_evicted = self._notify_partial_block
        return index

    def _blocks(self) -> SharedBlocks:
        return SharedBlocks(
            self.state_blocks, allocate=self._spare, free=self.pool.free, room=self._room
        )

    def _room(self) -> int:
        ready = self.states.num_ready if self.states else 0
        return self.pool.num_free + self.num_evictable - ready * self.state_blocks

    def _detach(self, checkpoint: Checkpoint) -> None:
        assert self.checkpoints is not None
        if self.listener is not None:
            self.listener.before_evict_state(checkpoint)
        self._notify_state(checkpoint)
        self.prune(self.checkpoints.detach_evicted(checkpoint))

    def _spare(self, count: int) -> Ids | None:
        """Allocate blocks for a state if there are so many free or evictable ones (S9)."""
        if self.pool.num_free >= count:
            return self.pool.allocate(count)
        return self.allocate(count) if self.pool.num_free + self.num_evictable >= count else None

    @property
    def num_evictable(self) -> int:
        """Blocks that could be evicted now."""
        count = self.trie.num_evictable
        for windows in self.windows:
            count += windows.num_evictable
        if self.partial:
            count += self.partial.num_evictable
        return count + self.states.num_ready * self.state_blocks if self.states else count

    def evictable_blocks(self, match: Match, checkpoint: Checkpoint | None = None) -> int:
        """Count evictable blocks that a hit locks: they are no room for its own request (B5)."""
        count = self.trie.evictable_blocks(match)
        if match.node is not None:
            for windows in self.windows:
                count += windows.evictable_blocks(match.node, match.units)
        if match.partial and not match.partial.block.locks:
            count += match.partial.block.size
        ready = self.states is not None and checkpoint is not None and not checkpoint.restores
        return count + (self.state_blocks if ready else 0)

    def allocate(self, count: int) -> Ids:
        """Allocate uncached blocks first, then evict (B3); the caller has checked the sum."""
        missing = count - self.pool.num_free
        if missing > 0:
            self.evict(missing)
        return self.pool.allocate(count)

    def evict(self, count: int) -> Ids:
        """Evict `count` blocks or more, or all (B3); returns ids, oldest first. O(1) per block."""
        victims = array("i")
        enough = self.pool.num_free + count
        if self.partial:
            victims += self.partial.evict(count)
            self.pool.free(victims[::-1])
        while self.pool.num_free < enough:
            freed = self._evict_oldest(enough - self.pool.num_free)
            if freed is None:
                break
            victims += freed
        return victims

    def _evict_oldest(self, count: int) -> Ids | None:
        leaf = self.trie.oldest()
        if self._alone:
            return None if leaf is None else self._trim(leaf, count)
        stamp = leaf.stamp if leaf is not None else None
        source, victim = None, None
        for windows in self.windows:
            run = windows.oldest()
            if run is not None and (stamp is None or run.stamp < stamp):
                stamp, source, victim = run.stamp, windows, run
        checkpoint = self.states.oldest() if self.states and self.state_blocks else None
        if checkpoint is not None and (stamp is None or checkpoint.stamp < stamp):
            return self._drop_oldest_state()
        if source is not None and victim is not None:
            if self.listener is not None:
                self.listener.before_evict_window(self.windows.index(source), victim, count)
            freed = source.evict(count)
            if self.on_evicted:
                self._notify_blocks(source.rule, freed)
            self.pool.free(freed[::-1])
            return freed
        return None if leaf is None else self._trim(leaf, count)

    def _trim(self, leaf: Node, count: int) -> Ids:
        units = min(leaf.units, -(-count // (self.row_width or 1)))
        if self.listener is not None:
            self.listener.before_evict_units(leaf, leaf.units - units)
        if self.on_evicted:
            self._notify_units(leaf, leaf.units - units)
        freed = self.trie.trim(leaf, units)
        self.pool.free(freed[::-1])
        return freed

    def _drop_oldest_state(self) -> Ids:
        assert self.states is not None
        checkpoint = self.states.evict_one()
        assert checkpoint is not None
        return checkpoint.ids

    def _notify_units(self, leaf: Node, left: int) -> None:
        if not leaf.units:
            return
        full = self._layout.full
        self._notify_blocks(full, leaf.blocks[left * full.width :])
        for windows, run in zip(self.windows, leaf.runs, strict=True):
            self._notify_blocks(windows.rule, run.ids[max(left, run.lo) * windows.rule.width :])
        for mark, checkpoint in (leaf.states or {}).items():
            if mark > left:
                self._notify_state(checkpoint)

    def _notify_blocks(self, rule: BlockClass, ids: Ids) -> None:
        for member in rule.members:
            self._notify(member.group, rule.table(member, ids))

    def _notify_partial_block(self, ids: Ids) -> None:
        if self.on_evicted:
            for member in self._layout.full.members:
                table = self._layout.full.table(member, ids)
                self._notify(member.group, array("i", filter(None, table)))

    def _notify_state(self, checkpoint: Checkpoint) -> None:
        if self.on_evicted:
            for group, table in self._layout.state_tables(checkpoint.ids).items():
                self._notify(group, table)

    def _notify(self, group: int, ids: Ids) -> None:
        for evicted in self.on_evicted:
            evicted(group, ids)

    def prune(self, node: Node) -> None:
        """Forget tokens that led to checkpoints only, if no unit has a block (T4)."""
        while not self.row_width and self.trie.is_evictable(node) and not node.children:
            above = node.parent
            left = max(node.states, default=0) if node.states else 0
            self.trie.trim(node, node.units - left)
            if left:
                return
            node = above

    def clear(self) -> None:
        """Forget everything cached (H6); held blocks return when they are released."""
        if self.listener is not None:
            self.listener.clear()
        self.pool.free(self.trie.clear())
        if self.partial:
            self.pool.free(self.partial.clear())
        for windows in self.windows:
            self.pool.free(windows.clear())
        if self.states:
            self.states.clear()
        if self.experts:
            self.experts.store.clear()
