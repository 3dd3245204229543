"""Differences of LMDeploy's releases under one interface. Engine environment only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvproof.harness.adapters.lmdeploy.api import UNLIMITED, engine, release

PACKAGE = (0, 16)
"""The trie became a package; nodes, cursors and checkpoints got other names."""

CHUNKS = (0, 15)
"""Others may run between the chunks of a prompt, and blocks are reserved for one chunk."""

STATES = (0, 14)
"""Checkpoints of states; spans are part of a block's identity."""


def block_of(node: Any) -> int:
    """The logical block of a node of the trie."""
    return int(node.block_id if release() >= PACKAGE else node.block)


def end_of(node: Any) -> int:
    """The tokens up to the end of a node's block."""
    return int(node.prefix_len if release() >= PACKAGE else node.num_matched)


def path(native: Any) -> list[int]:
    """Logical blocks of the trie that a sequence has got to, from the first on."""
    node, found = _cursor(native), []
    while node is not None and node.parent is not None:
        found.append(block_of(node))
        node = node.parent
    return found[::-1]


def _cursor(native: Any) -> Any:
    if release() >= PACKAGE:
        return native.prefix_cache.trie_cursor
    owner = native.prefix_cache if release() >= STATES else native.logical_blocks
    return getattr(owner, "last_shared_node", None)


def nodes(trie: Any) -> Iterator[Any]:
    """Nodes below the roots of all adapters."""
    stack = [child for root in trie._roots.values() for child in root.children.values()]
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        yield node


def chunk(native: Any, compute: int | None) -> tuple[int, bool]:
    """(tokens of the next chunk, whether it is the last) by the engine's own planner.

    Until 0.14 the chunks of a prompt run back to back: they are one.
    """
    if release() < CHUNKS:
        return int(native.num_token_ids), True
    names = engine()
    limit = names.get_long_context_chunk_limit(native, UNLIMITED if compute is None else compute)
    plan = names.plan_long_context_chunk(native, limit, include_multimodals=False)
    return plan.chunk_size, plan.chunk_start + plan.chunk_size == native.num_all_ids


def reserve(scheduler: Any, native: Any, size: int, *, last: bool) -> bool:
    """Blocks for the next `size` tokens of a running sequence; False if there are too few."""
    if release() >= CHUNKS:
        return bool(scheduler.reserve_long_context_chunk(native, size, is_last_chunk=last))
    idle = scheduler.hanging + scheduler.waiting
    if not scheduler.eviction_helper.evict_for_seq(native, idle, 0):
        return False
    scheduler.block_manager.allocate(native)
    scheduler.block_trie.allocate(native)
    return True


def stop_of(native: Any) -> int:
    """Where the step that was scheduled for a sequence ends."""
    limit = native.kv_token_limit if release() >= CHUNKS else None
    return int(native.num_all_ids if limit is None else limit)


class Checkpoints:
    """Checkpoints of recurrent states, as the input maker and the loop of the engine use them."""

    class Copies(NamedTuple):
        """Pairs (source, destination) of rows, and of logical blocks that go with them."""

        rows: tuple[tuple[int, int], ...] = ()
        blocks: tuple[tuple[int, int], ...] = ()

    def __init__(self, scheduler: Any) -> None:
        self._trie = scheduler.block_trie
        self._new = release() >= PACKAGE
        self._native = self._trie.state_checkpoints if self._new else self._trie
        self._pinned: set[int] = set()
        """Sequences whose hit the scheduler has pinned; it may still give it up for room."""
        self.uncounted = False
        """Whether a request was admitted without the hit that it had pinned: no counter has it."""

    def watch(self) -> None:
        """Note from now on which hits the scheduler gives up for room."""
        if self._new:
            self._native.pin_restore = self._noting(self._native.pin_restore)

    def _noting(self, pin: Callable[[Any], bool]) -> Callable[[Any], bool]:
        def pin_restore(native: Any) -> bool:
            self._pinned.add(native.seq_id)
            return pin(native)

        return pin_restore

    def admitted(self, native: Any) -> None:
        """Note whether a request that has just been admitted gave its hit up."""
        self.uncounted |= native.seq_id in self._pinned and not native.num_history_ids
        self._pinned.clear()

    def restore(self, native: Any) -> Copies:
        """Pin the checkpoint from which a sequence restores."""
        row = int(native.logical_state)
        if not self._new:
            self._native.acquire_state_checkpoint_restores([native])
            source = int(native.prefix_cache.restore_state)
            return self.Copies(((source, row),) if source >= 0 else ())
        self._native.pin_restores([native])
        restore = native.prefix_cache.restore
        if not restore.is_selected:
            return self.Copies()
        frozen = [(theirs, own) for own, theirs in self._frozen(native, restore.node)]
        return self.Copies(((int(restore.slot), row),), tuple(frozen))

    def save(self, native: Any, step: int) -> Copies:
        """Reserve a row, and a block if it lies inside one, for the state after `step` tokens."""
        row = int(native.logical_state)
        if not self._new:
            target = int(self._native.reserve_state_checkpoint_for_seq(native, step=step))
            return self.Copies(((row, target),) if target >= 0 else ())
        target = int(self._native.reserve_save(native, step=step))
        if target < 0:
            return self.Copies()
        frozen = self._frozen(native, native.prefix_cache.pending_save.node)
        return self.Copies(((row, target),), frozen)

    def _frozen(self, native: Any, node: Any) -> tuple[tuple[int, int], ...]:
        checkpoint = node.state_checkpoint
        if checkpoint.frozen_block_id < 0:
            return ()
        own = native.logical_blocks[checkpoint.step // self._trie.block_size]
        return ((int(own), int(checkpoint.frozen_block_id)),)

    def save_decoded(self, native: Any, interval: int, step: int) -> Copies:
        """The same while tokens are decoded: at block borders only."""
        reserve = (
            self._native.reserve_decode_save
            if self._new
            else self._native.reserve_decode_state_checkpoint_for_seq
        )
        target = int(reserve(native, interval, step=step))
        return self.Copies(((int(native.logical_state), target),) if target >= 0 else ())

    def ran(self, native: Any) -> None:
        """After a step: publish the saved states and unpin the rest."""
        if self._new:
            self._native.publish_saves([native], pin_saves=True)
            self._native.unpin_restores([native])
            self._native.unpin_saves([native])
            return
        self._native.commit_state_checkpoints([native], acquire_save_ref=True)
        self._native.release_state_checkpoint_restores([native])
        self._native.release_state_checkpoint_saves([native])

    def rows(self) -> set[int]:
        """Rows of published checkpoints."""
        if self._new:
            return {int(each.slot) for each in self._published()}
        return {int(node.state_idx) for node in nodes(self._trie) if node.state_ready}

    def frozen(self) -> list[int]:
        """Logical blocks that published checkpoints keep for themselves."""
        if not self._new:
            return []
        found = [int(each.frozen_block_id) for each in self._published()]
        return [block for block in found if block >= 0]

    def _published(self) -> list[Any]:
        """All nodes, roots included: the partial block of a short prompt has a root as parent."""
        owners = (*self._trie._roots.values(), *nodes(self._trie))
        found = [node.state_checkpoint for node in owners]
        return [each for each in found if each is not None and each.published]
