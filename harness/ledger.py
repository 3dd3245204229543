"""Which blocks are reusable, by what they contain: the brute-force side of the oracle.

The ledger hears what was computed and completed, never the engine's hashes. From that it knows
the longest hit that the documented rules allow, and in which order blocks may be evicted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvproof.harness.shadow import Fingerprints


@dataclass
class Entry:
    """One cached block."""

    content: int
    """Fingerprint at its last position."""
    parent: int
    """Fingerprint at the last position of the block before; 0 for the first."""
    idle_since: int | None = None
    """When its last holder left; None while it is held."""


@dataclass(frozen=True)
class Disorder:
    """`victim` was evicted although `survivor` should have gone first."""

    victim: int
    survivor: int
    reason: str


class Ledger:
    """Cached blocks of one group by id and by content."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.cached: dict[int, Entry] = {}
        self._by_content: dict[int, set[int]] = {}

    def store(self, block: int, prints: Fingerprints, index: int) -> None:
        """Block `index` of a request with these fingerprints became reusable as id `block`."""
        if block in self.cached:
            return
        last = (index + 1) * self._block_size - 1
        parent = int(prints[last - self._block_size]) if index else 0
        content = int(prints[last])
        self.cached[block] = Entry(content, parent)
        self._by_content.setdefault(content, set()).add(block)

    def drop(self, block: int) -> Entry | None:
        """Forget a block's identity; returns what it was."""
        entry = self.cached.pop(block, None)
        if entry is not None:
            copies = self._by_content[entry.content]
            copies.discard(block)
            if not copies:
                del self._by_content[entry.content]
        return entry

    def clear(self) -> None:
        """Forget everything, as after a reset."""
        self.cached.clear()
        self._by_content.clear()

    def contents(self) -> set[int]:
        """Return the fingerprints of all cached blocks."""
        return set(self._by_content)

    def duplicates(self) -> set[int] | None:
        """Return blocks that hold the same content, if any."""
        return next((copies for copies in self._by_content.values() if len(copies) > 1), None)

    def orphan(self) -> int | None:
        """Return a cached block whose predecessor is not cached, if any."""
        return next(
            (
                block
                for block, entry in self.cached.items()
                if entry.parent and entry.parent not in self._by_content
            ),
            None,
        )

    def longest(self, prints: Fingerprints, limit: int) -> int:
        """Return the longest reusable prefix in tokens, at most `limit` tokens, by brute force."""
        size, tokens = self._block_size, 0
        while tokens + size <= limit and int(prints[tokens + size - 1]) in self._by_content:
            tokens += size
        return tokens

    def settle(self, held: Iterable[int], now: int) -> None:
        """Note which cached blocks lost their last holder in operation `now`."""
        holders = set(held)
        for block, entry in self.cached.items():
            if block in holders:
                entry.idle_since = None
            elif entry.idle_since is None:
                entry.idle_since = now

    def disorder(self, victims: dict[int, Entry], taken: Iterable[int]) -> Disorder | None:
        """Check the victims against the idle blocks that survived: least recent first (B3).

        `taken` are blocks that the evicting request itself hit: no longer idle (B5).
        """
        hit = set(taken)
        survivors = [
            (b, e) for b, e in self.cached.items() if e.idle_since is not None and b not in hit
        ]
        for victim, entry in victims.items():
            since = entry.idle_since
            for survivor, other in survivors:
                if since is None or other.idle_since is None:
                    continue
                if other.idle_since < since:
                    return Disorder(victim, survivor, "it was released earlier")
                if other.idle_since == since and other.parent == entry.content:
                    return Disorder(victim, survivor, "it follows the victim in the same chain")
        return None

    def chain(self, prints: Fingerprints, tokens: int) -> tuple[int, ...]:
        """Return the blocks that hold the first `tokens` tokens (any copy of each)."""
        ends = range(self._block_size - 1, tokens, self._block_size)
        return tuple(min(self._by_content[int(prints[end])]) for end in ends)
