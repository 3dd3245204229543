"""The cached blocks of one worker, found by the contents of a prompt."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

Key: TypeAlias = Hashable
"""A worker's own name of a block after all that precedes it; no two of its blocks share one."""
Content: TypeAlias = Hashable
"""Tokens of a block with its namespace and media, equal for all workers."""

ROOT: Key = None
"""Parent of first blocks."""


class Stored(NamedTuple):
    """A chain of blocks entered a tier, each once more than before."""

    parent: Key
    blocks: tuple[tuple[Key, Content], ...]
    tier: int = 0


class Removed(NamedTuple):
    """One copy of each block left a tier."""

    keys: tuple[Key, ...]
    tier: int = 0


class Cleared(NamedTuple):
    """A tier was emptied, or all of them."""

    tier: int | Literal["all"] = "all"


Event: TypeAlias = Stored | Removed | Cleared


class _Block(NamedTuple):
    parent: Key
    content: Content
    copies: list[int]
    """Number of copies in each tier."""


class WorkerBlocks:
    """Blocks by key, and keys by parent and content.

    A block finds its successors by its key, so a chain closes again when a lost block returns.
    """

    def __init__(self, tiers: int) -> None:
        self._tiers = tiers
        self._blocks: dict[Key, _Block] = {}
        self._after: dict[tuple[Key, Content], Key] = {}
        """Key and the next content -> key of that block."""

    def apply(self, event: Event) -> None:
        """Follow one change of the worker's cache. Raises IndexError for an unknown tier."""
        if isinstance(event, Stored):
            self._store(event)
        elif isinstance(event, Removed):
            for key in event.keys:
                self._take(key, event.tier, 1)
        else:
            tiers = range(self._tiers) if event.tier == "all" else [event.tier]
            for tier in tiers:
                for key in list(self._blocks):
                    self._take(key, tier, self._blocks[key].copies[tier])

    def _store(self, event: Stored) -> None:
        parent = event.parent
        for key, content in event.blocks:
            if key not in self._blocks:
                self._blocks[key] = _Block(parent, content, [0] * self._tiers)
                self._after[parent, content] = key
            self._blocks[key].copies[event.tier] += 1
            parent = key

    def _take(self, key: Key, tier: int, copies: int) -> None:
        block = self._blocks.get(key)
        if block is None or not block.copies[tier]:
            return
        block.copies[tier] -= copies
        if not any(block.copies):
            del self._blocks[key], self._after[block.parent, block.content]

    def run(self, prompt: Sequence[Content]) -> tuple[int, ...]:
        """Return the cached blocks at the start of a prompt, by tier.

        An engine continues in the next tier where a faster one has ended, and does not come back.
        """
        found, tier, key = [0] * self._tiers, 0, ROOT
        for content in prompt:
            key = self._after.get((key, content), ROOT)
            if key is ROOT:
                break
            copies = self._blocks[key].copies
            tier = next((t for t in range(tier, self._tiers) if copies[t]), self._tiers)
            if tier == self._tiers:
                break
            found[tier] += 1
        return tuple(found)

    def events(self) -> Iterator[Event]:
        """Yield events that lead from an empty cache to this one."""
        for key, block in self._blocks.items():
            for tier, copies in enumerate(block.copies):
                yield from [Stored(block.parent, ((key, block.content),), tier)] * copies
