"""Everything that is in the pool: who holds it, what is idle, and what goes first (B1-B3, B5).

A block is free scratch (in the pool), idle (in the index and seen by nobody), or held. Idle blocks
are in one of three orders: leaves of the trie, runs of windows and chunks, and checkpoints in the
shared pool. Each has a stamp of the same logical clock; the oldest goes first, at a tie the leaf,
because what hangs on it goes with it.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Protocol

from kvproof.reference.cache.cache_events import EventLog
from kvproof.reference.cache.expert_history import ExpertFormat
from kvproof.reference.cache.expert_index import ExpertMarks
from kvproof.reference.core.attention_groups import BlockClass
from kvproof.reference.core.block_pool import BlockPool, Ids
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.checkpoint import Checkpoint
from kvproof.reference.prefix.node import Attached, Match, Node
from kvproof.reference.prefix.partial_blocks import PartialBlocks
from kvproof.reference.prefix.trie import PrefixTrie
from kvproof.reference.prefix.window_blocks import LocalBlocks, Run
from kvproof.reference.states.checkpoint_index import StateMarks
from kvproof.reference.states.state_cache import StateCache
from kvproof.reference.states.state_pool import Blocks, Rows


class Keeps(Protocol):
    """Hears of content that is about to lose its place; it is whole until the call returns."""

    def keep_units(self, leaf: Node, left: int) -> None:
        """Units of a leaf from number `left` on, with all that hangs on them."""

    def keep_run(self, index: int, run: Run, count: int) -> None:
        """About `count` blocks from the front of a run of class `index`."""

    def keep_state(self, checkpoint: Checkpoint) -> None:
        """A checkpoint, still on its node."""

    def clear(self) -> None:
        """Nothing computed so far is reused (H6)."""


class Residency:
    """Pool and index of one cache."""

    def __init__(self, config: CacheConfig, events: EventLog | None) -> None:
        layout = config.layout
        self.unit = layout.unit
        self.pool = BlockPool(config.num_blocks)
        self.full_width = width = layout.full.width
        """Blocks of a unit of full attention."""
        self.trie = PrefixTrie(self.unit, width, events.on_change if events else None)
        self.local = tuple(
            LocalBlocks(rule, index, self.trie) for index, rule in enumerate(layout.local)
        )
        self.row_width = width + sum(rule.width for rule in layout.local)
        """Blocks of a unit over all classes."""
        self.state_blocks = layout.state_blocks if config.state_pool == "shared" else 0
        """Blocks of the pool that a state fills."""
        self.states = self._make_states(config) if layout.states else None
        self.marks = StateMarks(self.states, self.unit) if self.states else None
        form = ExpertFormat(*config.experts, self.unit)
        self.experts = ExpertMarks(form) if config.return_routed_experts else None
        self.tails = self._make_tails(config) if config.cache_partial_blocks else None
        others: list[Attached | None] = [*self.local, self.marks, self.experts]
        self.trie.attached = [other for other in others if other]
        self._alone = not self.local and not self.states
        self._layout = layout
        self.tiers: Keeps | None = None
        """Keeps what is evicted, before anybody else gets its place; None: nobody does."""
        self.on_drop: Callable[[int, Ids], None] | None = None
        """Hears of (group, blocks or rows) that lose their identity, for any reason but a reset."""

    def _make_states(self, config: CacheConfig) -> StateCache:
        rows = config.max_requests + config.prefix_cache_state_budget
        shared = config.state_pool == "shared"
        return StateCache(
            self._blocks() if shared else Rows(rows),
            most_running=0 if shared else config.max_requests,
            on_evict=self._unhook,
            clock=partial(getattr, self.trie, "clock"),
        )

    def _make_tails(self, config: CacheConfig) -> PartialBlocks:
        tails = PartialBlocks(config.layout.starts)
        tails.on_drop = self._tell_of_tail
        return tails

    def _blocks(self) -> Blocks:
        return Blocks(self.state_blocks, take=self._spare, give=self.pool.give, room=self._room)

    def _room(self) -> int:
        """Blocks that a state could get without a checkpoint leaving."""
        ready = self.states.num_ready if self.states else 0
        return self.pool.num_free + self.num_idle - ready * self.state_blocks

    def _unhook(self, checkpoint: Checkpoint) -> None:
        assert self.marks is not None
        if self.tiers is not None:
            self.tiers.keep_state(checkpoint)
        self._tell_of_state(checkpoint)
        self.prune(self.marks.unhook(checkpoint))

    def _spare(self, count: int) -> Ids | None:
        """Room for a state: scratch, else what is idle in the order of eviction (S9)."""
        if self.pool.num_free >= count:
            return self.pool.take(count)
        return self.take(count) if self.pool.num_free + self.num_idle >= count else None

    @property
    def num_idle(self) -> int:
        """Blocks that could be evicted now."""
        idle = self.trie.num_idle
        for local in self.local:
            idle += local.num_idle
        if self.tails:
            idle += self.tails.num_idle
        return idle + self.states.num_ready * self.state_blocks if self.states else idle

    def idle_blocks(self, match: Match, checkpoint: Checkpoint | None = None) -> int:
        """Count idle blocks that a hit takes: they are no room for its own request (B5)."""
        idle = self.trie.idle_blocks(match)
        if match.node is not None:
            for local in self.local:
                idle += local.idle_blocks(match.node, match.units)
        if match.tail and not match.tail.tail.holds:
            idle += match.tail.tail.size
        ready = self.states is not None and checkpoint is not None and not checkpoint.restores
        return idle + (self.state_blocks if ready else 0)

    def take(self, count: int) -> Ids:
        """Take scratch first, then evict (B3). The caller has asked whether they exist."""
        missing = count - self.pool.num_free
        if missing > 0:
            self.evict(missing)
        return self.pool.take(count)

    def evict(self, count: int) -> Ids:
        """Give `count` idle blocks to the pool, or all (B3); returns their ids, oldest first.

        What hangs on the same unit goes with it, so more may leave. O(1) per block, amortised.
        """
        victims = array("i")
        enough = self.pool.num_free + count
        if self.tails:
            victims += self.tails.evict(count)
            self.pool.give(victims[::-1])
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
        for local in self.local:
            run = local.oldest()
            if run is not None and (stamp is None or run.stamp < stamp):
                stamp, source, victim = run.stamp, local, run
        checkpoint = self.states.oldest() if self.states and self.state_blocks else None
        if checkpoint is not None and (stamp is None or checkpoint.stamp < stamp):
            return self._drop_oldest_state()
        if source is not None and victim is not None:
            if self.tiers is not None:
                self.tiers.keep_run(self.local.index(source), victim, count)
            freed = source.evict(count)
            if self.on_drop:
                self._tell_of_blocks(source.rule, freed)
            self.pool.give(freed[::-1])
            return freed
        return None if leaf is None else self._trim(leaf, count)

    def _trim(self, leaf: Node, count: int) -> Ids:
        units = min(leaf.units, -(-count // (self.row_width or 1)))
        if self.tiers is not None:
            self.tiers.keep_units(leaf, leaf.units - units)
        if self.on_drop:
            self._tell_of_units(leaf, leaf.units - units)
        freed = self.trie.trim(leaf, units)
        self.pool.give(freed[::-1])
        return freed

    def _drop_oldest_state(self) -> Ids:
        assert self.states is not None
        checkpoint = self.states.evict_one()
        assert checkpoint is not None
        return checkpoint.ids

    def _tell_of_units(self, leaf: Node, left: int) -> None:
        if not leaf.units:
            return
        full = self._layout.full
        self._tell_of_blocks(full, leaf.blocks[left * full.width :])
        for local, run in zip(self.local, leaf.runs, strict=True):
            self._tell_of_blocks(local.rule, run.ids[max(left, run.lo) * local.rule.width :])
        for mark, checkpoint in (leaf.states or {}).items():
            if mark > left:
                self._tell_of_state(checkpoint)

    def _tell_of_blocks(self, rule: BlockClass, ids: Ids) -> None:
        assert self.on_drop is not None
        for member in rule.members:
            self.on_drop(member.group, rule.table(member, ids))

    def _tell_of_tail(self, ids: Ids) -> None:
        if self.on_drop:
            for member in self._layout.full.members:
                table = self._layout.full.table(member, ids)
                self.on_drop(member.group, array("i", filter(None, table)))

    def _tell_of_state(self, checkpoint: Checkpoint) -> None:
        if self.on_drop:
            for group, table in self._layout.state_tables(checkpoint.ids).items():
                self.on_drop(group, table)

    def prune(self, node: Node) -> None:
        """Forget tokens that led to checkpoints only, if no unit has a block (T4)."""
        while not self.row_width and self.trie.is_idle(node) and not node.children:
            above = node.parent
            left = max(node.states, default=0) if node.states else 0
            self.trie.trim(node, node.units - left)
            if left:
                return
            node = above

    def clear(self) -> None:
        """Forget everything cached (H6); what is held comes back as it is released."""
        if self.tiers is not None:
            self.tiers.clear()
        self.pool.give(self.trie.clear())
        if self.tails:
            self.pool.give(self.tails.clear())
        for local in self.local:
            self.pool.give(local.clear())
        if self.states:
            self.states.clear()
        if self.experts:
            self.experts.store.clear()
