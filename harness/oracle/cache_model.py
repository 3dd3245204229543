"""What is reusable, by what it contains: blocks, checkpoints of states, rows of routed experts.

The ledger hears what was computed and completed, never the engine's hashes. From that `Reuse`
finds the longest hit that the documented rules allow; here is in which order blocks may leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.shadow_memory import POISON, Fingerprints

_LIFT = np.array([0x9E3779B97F4A7C15], np.uint64)
"""An odd factor; an array, because numpy is silent about overflow in arrays, not in scalars."""


@dataclass
class Entry:
    """One cached block."""

    content: int
    """Fingerprint at its last position, with the group mixed in."""
    parent: int
    """Fingerprint at the last position of the block before; 0 for the first."""
    idle_since: int | None = None
    """When its last holder left; None while it is held."""
    anchor: int = 0
    """Of a window, chunk or state beside full attention: the full block at the same end."""
    group: int = 0
    ends_unit: bool = True
    tail: bool = False
    """A partial last block (T6): it goes before full ones."""


@dataclass(frozen=True)
class Disorder:
    """`victim` was evicted although `survivor` should have gone first."""

    victim: int
    survivor: int
    reason: str


class Contents:
    """Entries by id and by content."""

    def __init__(self) -> None:
        self.by_id: dict[int, Entry] = {}
        self.by_content: dict[int, set[int]] = {}

    def store(self, key: int, entry: Entry) -> None:
        """Take an entry over, unless the id has one."""
        if key not in self.by_id:
            self.by_id[key] = entry
            self.by_content.setdefault(entry.content, set()).add(key)

    def drop(self, key: int) -> Entry | None:
        """Forget an entry; returns what it was."""
        entry = self.by_id.pop(key, None)
        if entry is not None:
            copies = self.by_content[entry.content]
            copies.discard(key)
            if not copies:
                del self.by_content[entry.content]
        return entry

    def clear(self) -> None:
        """Forget everything."""
        self.by_id.clear()
        self.by_content.clear()


class Tiers(NamedTuple):
    """What is known of one kind of memory: in the pool, and in the host tier below it."""

    pool: Contents
    host: Contents


@dataclass
class Routed:
    """Expert rows that lie with one unit (R1)."""

    complete: bool
    filled: bool = False
    """They came later than the unit, from an equal request (R3)."""


class Ledger:
    """Cached blocks and checkpoints of all groups."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._pool = Contents()
        self._rows = Contents()
        self._hosted = Contents()
        self._hosted_rows = Contents()
        self.cached: dict[int, Entry] = self._pool.by_id
        """Blocks of the shared pool."""
        self.rows: dict[int, Entry] = self._rows.by_id
        """Slots of the separate state pool: row * number of state groups + place."""
        self._partial: set[int] = set()
        """Contents of partial last blocks, cached or not any more."""
        self._routed: dict[int, Routed] = {}
        """Fingerprint at the end of a unit -> its rows."""

    # --- what is there ---

    def store(self, block: int, prints: Fingerprints, index: int, group: int = 0) -> None:
        """Block `index` of a request with these fingerprints became reusable as id `block`."""
        layout = self._layout
        last = (index + 1) * layout.groups[group].block_size - 1
        parent = self.key(prints, index - 1, group) if index else 0
        anchor = self._anchor(prints, last) if group not in layout.full else 0
        entry = Entry(self.key(prints, index, group), parent, anchor=anchor, group=group)
        entry.ends_unit = (last + 1) % layout.unit == 0
        self._pool.store(block, entry)

    def keep(self, block: int, entry: Entry) -> None:
        """Take over a partial last block."""
        self._pool.store(block, entry)
        self._partial.add(entry.content)

    def key(self, prints: Fingerprints, index: int, group: int) -> int:
        """Return what a block of a group holds, and in which unit it lies.

        The index has the grain of a unit: blocks inside of it are shared where the unit is.
        """
        unit, size = self._layout.unit, self._layout.groups[group].block_size
        last = (index + 1) * size - 1
        content = prints[last] ^ self._layout.salts[group]
        if (last + 1) % unit:
            end = last // unit * unit + unit - 1
            content = (_LIFT * content + prints[end])[0] if end < len(prints) else POISON
        return int(content)

    def store_state(
        self, keys: Sequence[int], prints: Fingerprints, tokens: int, group: int, frozen: int = 0
    ) -> None:
        """Keep a checkpoint after `tokens` tokens: blocks in order, or the slot of its row.

        One inside a unit goes with what is `frozen` of it, known by its content.
        """
        table, anchor = self.tiers(group).pool, frozen or self._anchor(prints, tokens - 1)
        for key, content in zip(keys, self.state(prints, tokens, group), strict=True):
            table.store(key, Entry(content, 0, anchor=anchor, group=group))

    def _anchor(self, prints: Fingerprints, last: int) -> int:
        """Return the content of the full block that ends where the unit of `last` does."""
        layout = self._layout
        if not layout.full:
            return 0
        end = last // layout.unit * layout.unit + layout.unit - 1
        return int(prints[end] ^ layout.salts[layout.full[0]]) if end < len(prints) else 0

    def tiers(self, group: int) -> Tiers:
        """Return where blocks of a group, or slots of the separate state pool, are known."""
        if self._layout.separate and group in self._layout.states:
            return Tiers(self._rows, self._hosted_rows)
        return Tiers(self._pool, self._hosted)

    def state(self, prints: Fingerprints, tokens: int, group: int) -> list[int]:
        """Return the content of each part of the state after `tokens` tokens."""
        salts = self._layout.state_salts
        last = prints[tokens - 1]
        return [int(last ^ salts[group, part]) for part in range(self._layout.parts(group))]

    def drop(self, block: int) -> Entry | None:
        """Forget a block's identity; returns what it was."""
        return self._pool.drop(block)

    def drop_row(self, slot: int) -> Entry | None:
        """Forget the checkpoint of one group in a row of the separate pool."""
        return self._rows.drop(slot)

    def clear(self) -> None:
        """Forget everything, as after a reset."""
        self._pool.clear()
        self._rows.clear()
        self._hosted.clear()
        self._hosted_rows.clear()
        self._routed.clear()
        self._partial.clear()

    def has_block(self, prints: Fingerprints, index: int, group: int = 0) -> bool:
        """Tell whether block `index` of a request is cached, in the pool or on the host."""
        hosted = self.key(prints, index, group) in self._hosted.by_content
        return hosted or self.in_pool(prints, index, group)

    def in_pool(self, prints: Fingerprints, index: int, group: int) -> bool:
        """Tell whether block `index` of a request is cached in the pool."""
        return self.key(prints, index, group) in self._pool.by_content

    def has_state(self, prints: Fingerprints, tokens: int, group: int) -> bool:
        """Tell whether a checkpoint after exactly `tokens` tokens is cached, or on the host."""
        pool, host = (tier.by_content for tier in self.tiers(group))
        return all(each in pool or each in host for each in self.state(prints, tokens, group))

    def prefix(self, prints: Fingerprints, limit: int, group: int = 0) -> int:
        """Return the cached tokens from the start without a hole, at most `limit`."""
        size, salt = self._layout.groups[group].block_size, self._layout.salts[group]
        known, hosted, tokens = self._pool.by_content, self._hosted.by_content, 0
        if size < self._layout.unit:
            while tokens + size <= limit and self.has_block(prints, tokens // size, group):
                tokens += size
            return tokens
        for content in (prints[size - 1 : limit : size] ^ salt).tolist():
            if content not in known and content not in hosted:
                break
            tokens += size
        return tokens

    # --- routed experts ---

    def unit_is_cached(self, prints: Fingerprints, index: int) -> bool:
        """Tell whether a block of unit `index` of a request is cached in any group."""
        layout = self._layout
        for group in layout.attention:
            ratio = layout.unit // layout.groups[group].block_size
            blocks = range(index * ratio, (index + 1) * ratio)
            if any(self.has_block(prints, block, group) for block in blocks):
                return True
        return any(self.has_state(prints, (index + 1) * layout.unit, g) for g in layout.states)

    def route(self, prints: Fingerprints, index: int, *, complete: bool) -> None:
        """Note that unit `index` is about to be stored, with or without a row at each position."""
        end = int(prints[(index + 1) * self._layout.unit - 1])
        known = self._routed.get(end) if self.unit_is_cached(prints, index) else None
        if known is None:
            self._routed[end] = Routed(complete)
        elif complete and not known.complete:
            self._routed[end] = Routed(complete=True, filled=True)

    def routed(self, prints: Fingerprints, index: int) -> Routed:
        """Return what is known of the rows of a cached unit."""
        end = int(prints[(index + 1) * self._layout.unit - 1])
        return self._routed.get(end, Routed(complete=False))

    # --- order ---

    def contents(self) -> set[int]:
        """Return the fingerprints at the ends of units, as the first group of full attention has.

        That is the grain of an index over several groups, and of its events.
        """
        if self._layout.single:
            return set(self._pool.by_content) - self._partial
        first = self._layout.full[:1]
        entries = self.cached.values()
        return {entry.content for entry in entries if entry.group in first and entry.ends_unit}

    def duplicates(self) -> set[int] | None:
        """Return blocks that hold the same content, if any."""
        return next((copies for copies in self._pool.by_content.values() if len(copies) > 1), None)

    def keep_first_checkpoints(self) -> None:
        """Forget the younger of equal checkpoints: a target keeps one and drops the other."""
        for table in (self._pool, self._rows):
            copies = [ids for ids in table.by_content.values() if len(ids) > 1]
            for ids in copies:
                in_order = [key for key in table.by_id if key in ids]
                if table.by_id[in_order[0]].group in self._layout.states:
                    for key in in_order[1:]:
                        table.drop(key)

    def anchored(self, entry: Entry) -> bool:
        """Tell whether the unit that an entry belongs to is still cached in full attention."""
        return not entry.anchor or entry.anchor in self._pool.by_content

    def orphan(self) -> int | None:
        """Return a cached block whose predecessor, or the unit that it belongs to, is not cached.

        Windows and chunks have holes: only full attention needs the block before.
        """
        known, full = self._pool.by_content, self._layout.full
        for block, entry in self.cached.items():
            needed = entry.parent if entry.group in full else entry.anchor
            if needed and needed not in known:
                return block
        return None

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
                if other.tail and not entry.tail:
                    return Disorder(victim, survivor, "it is only partly filled")
                if entry.tail and not other.tail:
                    continue
                if since is None or other.idle_since is None:
                    continue
                if other.idle_since < since:
                    return Disorder(victim, survivor, "it was released earlier")
                if other.idle_since == since and other.parent == entry.content:
                    return Disorder(victim, survivor, "it follows the victim in the same chain")
        return None

    def chain(self, prints: Fingerprints, tokens: int) -> tuple[int, ...]:
        """Return the blocks that hold the first `tokens` tokens (any copy of each)."""
        return self.blocks(prints, 0, tokens, 0)

    def blocks(self, prints: Fingerprints, start: int, stop: int, group: int) -> tuple[int, ...]:
        """Return the blocks of [start, stop) in a group, those that are cached (any copy)."""
        size = self._layout.groups[group].block_size
        keys = (self.key(prints, index, group) for index in range(start // size, stop // size))
        found = (self._pool.by_content.get(key) for key in keys)
        return tuple(min(copies) for copies in found if copies)

    def state_blocks(self, prints: Fingerprints, tokens: int, group: int) -> tuple[int, ...]:
        """Return the blocks, or the slot, of the checkpoint after `tokens` tokens."""
        table = self.tiers(group).pool.by_content
        contents = self.state(prints, tokens, group)
        return tuple(min(table[content]) for content in contents if content in table)

    def needed(self, prints: Fingerprints, length: int) -> tuple[int, ...]:
        """Return the blocks of the shared pool that a hit of `length` needs, in whole units."""
        layout = self._layout
        blocks: list[int] = []
        for group in layout.attention:
            first = layout.released(group, length) * layout.groups[group].block_size
            blocks += self.blocks(prints, first, length, group)
        for group in () if layout.separate else layout.states:
            blocks += self.state_blocks(prints, length, group)
        return tuple(blocks)
