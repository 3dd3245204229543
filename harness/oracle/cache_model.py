"""The blocks, state checkpoints and expert rows that must be cached, keyed by their content.

The model follows computed and completed steps, never the engine's hashes. `HitOracle` derives the
longest hit from it; `CacheModel.disorder` knows in which order blocks may be evicted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvproof.harness.model.fingerprints import POISON, Fingerprints
from kvproof.harness.oracle.contents import Contents, Entry, Tiers
from kvproof.harness.oracle.group_layout import Layout

_LIFT = np.array([0x9E3779B97F4A7C15], np.uint64)
"""An odd factor; an array, because numpy is silent about overflow in arrays, not in scalars."""


NO_ROW, ROW, FILLED_ROW = 0, 1, 2
"""Expectation of the expert row of a position: none, there, or there because it was filled."""


@dataclass(frozen=True)
class Disorder:
    """`victim` was evicted although `survivor` should have gone first."""

    victim: int
    survivor: int
    reason: str


@dataclass
class Routed:
    """Expert rows that lie with one unit (R1)."""

    complete: bool
    filled: bool = False
    """They came later than the unit, from an equal request (R3)."""


class CacheModel:
    """Cached blocks and checkpoints of all groups."""

    def __init__(self, layout: Layout, *, by_unit: bool = True) -> None:
        """`by_unit`: blocks smaller than a unit are known by all of it, as in an index of units."""
        self._layout = layout
        self._grain = layout.unit if by_unit else 1
        self.pool = Contents()
        """Blocks of the shared pool."""
        self._rows = Contents()
        self._hosted = Contents()
        self._hosted_rows = Contents()
        self.cached: dict[int, Entry] = self.pool.by_id
        """Blocks of the shared pool."""
        self.rows: dict[int, Entry] = self._rows.by_id
        """Slots of the separate state pool: row * number of state groups + place."""
        self._partial: set[int] = set()
        """Contents of partial last blocks, cached or not any more."""
        self._routed: dict[int, Routed] = {}
        """Fingerprint at the end of a unit -> its rows."""
        self._paths: dict[int, tuple[int, ...]] = {}
        """State -> fingerprints at the ends of the units before it, of models of states alone."""

    # --- content ---

    def store(self, block: int, prints: Fingerprints, index: int, group: int = 0) -> None:
        """Block `index` of a request with these fingerprints became reusable as id `block`."""
        layout = self._layout
        last = (index + 1) * layout.groups[group].block_size - 1
        parent = self.key(prints, index - 1, group) if index else 0
        anchor = self._anchor(prints, last) if group not in layout.full else 0
        entry = Entry(self.key(prints, index, group), parent, anchor=anchor, group=group)
        entry.ends_unit = (last + 1) % layout.unit == 0
        if (owner := layout.sidecars.get(group)) is not None:
            entry.beside = self.key(prints, index, owner)
        self._store(block, entry)

    def _store(self, block: int, entry: Entry) -> None:
        """Full attention needs the block before, other groups the full block at the same end."""
        needs = entry.parent if entry.group in self._layout.full else entry.anchor
        self.pool.store(block, entry, needs)

    def keep(self, block: int, entry: Entry) -> None:
        """Add a partial last block."""
        self._store(block, entry)
        self._partial.add(entry.content)

    def key(self, prints: Fingerprints, index: int, group: int) -> int:
        """Return the content of a block of a group, with the unit that contains it.

        An index of units shares the blocks of a shared unit.
        """
        unit, size = self._grain, self._layout.groups[group].block_size
        last = (index + 1) * size - 1
        content = prints[last] ^ self._layout.salts[group]
        if (last + 1) % unit:
            end = last // unit * unit + unit - 1
            content = (_LIFT * content + prints[end])[0] if end < len(prints) else POISON
        return int(content)

    def keys(self, prints: Fingerprints, group: int) -> list[int]:
        """Return `key` of every whole block of a request in a group."""
        unit, size, count = self._grain, self._layout.groups[group].block_size, len(prints)
        content = prints[size - 1 :: size] ^ self._layout.salts[group]
        if size < unit:
            last = np.arange(size - 1, count, size)
            end = last // unit * unit + unit - 1
            mixed = _LIFT * content + prints[np.minimum(end, count - 1)]
            content = np.where(
                (last + 1) % unit == 0, content, np.where(end < count, mixed, POISON)
            )
        keys: list[int] = content.tolist()
        return keys

    def resident(self, prints: Fingerprints, group: int) -> list[bool]:
        """Return for every whole block of a request whether it is cached, also on the host."""
        pool, host = self.pool.by_content, self._hosted.by_content
        return [key in pool or key in host for key in self.keys(prints, group)]

    def store_state(
        self, keys: Sequence[int], prints: Fingerprints, tokens: int, group: int, frozen: int = 0
    ) -> None:
        """Keep a checkpoint after `tokens` tokens: blocks in order, or the slot of its row.

        One inside a unit depends on the `frozen` part of that unit, identified by its content.
        """
        anchor = frozen or self._anchor(prints, tokens - 1)
        for key, content in zip(keys, self.state(prints, tokens, group), strict=True):
            self.restore(key, Entry(content, 0, anchor=anchor, group=group))
            if not self._layout.attention:
                self._paths[content] = self.path(prints, tokens)

    def path(self, prints: Fingerprints, tokens: int) -> tuple[int, ...]:
        """Return the fingerprints at the ends of the whole units of the first `tokens` tokens."""
        unit = self._layout.unit
        return tuple(prints[unit - 1 : tokens : unit].tolist())

    def units_before_states(self) -> set[int]:
        """Return the fingerprints of the units that lead to cached states (T4)."""
        cached = {**self.pool.by_content, **self._rows.by_content}
        return {unit for state in cached for unit in self._paths.get(state, ())}

    def restore(self, key: int, entry: Entry) -> None:
        """Add an entry to the pool that its group belongs to."""
        if self.tiers(entry.group).pool is self.pool:
            self._store(key, entry)
        else:
            self._rows.store(key, entry)

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
        return Tiers(self.pool, self._hosted)

    def state(self, prints: Fingerprints, tokens: int, group: int) -> list[int]:
        """Return the content of each part of the state after `tokens` tokens."""
        salts = self._layout.state_salts
        last = prints[tokens - 1]
        return [int(last ^ salts[group, part]) for part in range(self._layout.parts(group))]

    def drop(self, block: int) -> Entry | None:
        """Remove a block of the shared pool and return its entry, if it had one."""
        return self.pool.drop(block)

    def drop_all(self, blocks: Iterable[int]) -> dict[int, Entry]:
        """Remove blocks of the shared pool; returns the entries of those that were cached."""
        drop = self.pool.drop
        return {block: entry for block in blocks if (entry := drop(block))}

    def touch_states(self, contents: Iterable[int], now: int) -> None:
        """Note that a request may have used these checkpoints."""
        (self._rows if self._layout.separate else self.pool).touch(contents, now)

    def drop_row(self, slot: int) -> Entry | None:
        """Remove the checkpoint of one group in a row of the separate pool."""
        return self._rows.drop(slot)

    def clear(self) -> None:
        """Remove everything, as after a reset."""
        self.pool.clear()
        self._rows.clear()
        self._hosted.clear()
        self._hosted_rows.clear()
        self._routed.clear()
        self._partial.clear()

    def in_pool(self, prints: Fingerprints, index: int, group: int) -> bool:
        """Whether block `index` of a request is cached in the pool."""
        return self.key(prints, index, group) in self.pool.by_content

    def has_state(self, prints: Fingerprints, tokens: int, group: int) -> bool:
        """Whether a checkpoint after exactly `tokens` tokens is cached, or on the host."""
        pool, host = (tier.by_content for tier in self.tiers(group))
        return all(each in pool or each in host for each in self.state(prints, tokens, group))

    def prefix(self, prints: Fingerprints, limit: int, group: int = 0) -> int:
        """Return the cached tokens from the start without a hole, at most `limit`."""
        size = self._layout.groups[group].block_size
        pool, host = self.pool.by_content, self._hosted.by_content
        if size < self._grain:
            keys = self.keys(prints, group)[: limit // size]
        else:
            keys = (prints[size - 1 : limit : size] ^ self._layout.salts[group]).tolist()
        return size * next(
            (i for i, key in enumerate(keys) if key not in pool and key not in host), len(keys)
        )

    # --- routed experts ---

    def unit_is_cached(self, prints: Fingerprints, index: int) -> bool:
        """Whether a block of unit `index` of a request is cached in any group."""
        layout, host = self._layout, self._hosted
        for group in layout.attention:
            ratio = layout.unit // layout.groups[group].block_size
            for block in range(index * ratio, (index + 1) * ratio):
                key = self.key(prints, block, group)
                if key in self.pool.by_content or key in host.by_content:
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
        """Return the known rows of a cached unit."""
        end = int(prints[(index + 1) * self._layout.unit - 1])
        return self._routed.get(end, Routed(complete=False))

    def expert_rows(self) -> int:
        """Return how many positions of cached units have a row."""
        salt = int(self._layout.salts[self._layout.full[0]])
        ends = (end for end, each in self._routed.items() if each.complete)
        return self._layout.unit * sum(end ^ salt in self.pool.by_content for end in ends)

    def rows_of_hit(self, prints: Fingerprints, hit: int) -> npt.NDArray[np.uint8]:
        """Return the expected expert row of each position of a hit.

        The rows of complete units must be present.
        """
        unit = self._layout.unit
        known = [self.routed(prints, index) for index in range(hit // unit)]
        kinds = [(FILLED_ROW if k.filled else ROW) if k.complete else NO_ROW for k in known]
        whole = np.repeat(np.array(kinds, np.uint8), unit)
        return np.concatenate((whole, np.full(hit % unit, NO_ROW, np.uint8)))

    # --- order ---

    def contents(self) -> set[int]:
        """Return the fingerprints at the ends of units, for the first group of full attention.

        Units are the granule of an index over several groups, and of its events.
        """
        if self._layout.single:
            return set(self.pool.by_content) - self._partial
        first = self._layout.full[:1]
        entries = self.cached.values()
        return {entry.content for entry in entries if entry.group in first and entry.ends_unit}

    def duplicates(self) -> set[int] | None:
        """Return blocks that hold the same content, if any."""
        if not self.pool.copied:
            return None
        return next((copies for copies in self.pool.by_content.values() if len(copies) > 1), None)

    def keep_first_checkpoints(self) -> None:
        """Remove the younger of equal checkpoints: a target keeps one and drops the other."""
        for table in (self.pool, self._rows):
            copies = (
                [ids for ids in table.by_content.values() if len(ids) > 1] if table.copied else []
            )
            for ids in copies:
                in_order = [key for key in table.by_id if key in ids]
                if table.by_id[in_order[0]].group in self._layout.states:
                    for key in in_order[1:]:
                        table.drop(key)

    def anchored(self, entry: Entry) -> bool:
        """Whether the unit that an entry belongs to is still cached in full attention."""
        return not entry.anchor or entry.anchor in self.pool.by_content

    def orphan(self) -> int | None:
        """Return a cached block whose predecessor, or whose unit, is not cached.

        Windows and chunks have holes: only full attention needs the preceding block.
        """
        known, full = self.pool.by_content, self._layout.full
        if not self.pool.orphans:
            return None
        for block, entry in self.cached.items():
            needed = entry.parent if entry.group in full else entry.anchor
            if needed and needed not in known:
                return block
        return None

    def apart(self) -> int | None:
        """Return a cached block without its sidecar, or one of a sidecar without its block (Q2)."""
        for tier in (self.pool, self._hosted):
            whole = [(block, each) for block, each in tier.by_id.items() if not each.tail]
            for sidecar, owner in self._layout.sidecars.items():
                owned = {each.content: block for block, each in whole if each.group == owner}
                beside = {each.beside: block for block, each in whole if each.group == sidecar}
                if alone := owned.keys() ^ beside.keys():
                    return min({**owned, **beside}[content] for content in alone)
        return None

    def settle(self, held: Collection[int], now: int) -> list[Entry]:
        """Note which blocks got a holder in operation `now`; returns those that lost theirs."""
        left = []
        for block, entry in self.cached.items():
            if not entry.taken:
                entry.taken = now
            if block in held:
                if entry.idle_since is not None:
                    entry.idle_since, entry.taken = None, now
            elif entry.idle_since is None:
                entry.idle_since = now
                left.append(entry)
        return left

    def disorder(self, victims: dict[int, Entry], taken: Iterable[int]) -> Disorder | None:
        """Check that victims were evicted before more recent idle blocks (B3).

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

    def blocks(self, prints: Fingerprints, start: int, stop: int, group: int) -> tuple[int, ...]:
        """Return the blocks of [start, stop) in a group, those that are cached (any copy)."""
        size = self._layout.groups[group].block_size
        keys = (self.key(prints, index, group) for index in range(start // size, stop // size))
        found = (self.pool.by_content.get(key) for key in keys)
        return tuple(min(copies) for copies in found if copies)

    def state_blocks(self, prints: Fingerprints, tokens: int, group: int) -> tuple[int, ...]:
        """Return the blocks, or the slot, of the checkpoint after `tokens` tokens."""
        table = self.tiers(group).pool.by_content
        contents = self.state(prints, tokens, group)
        return tuple(min(table[content]) for content in contents if content in table)

    def surely_shared(self, prints: Fingerprints, length: int, taken: Collection[int]) -> set[int]:
        """Return the blocks of a hit that others hold, whichever copy of each it takes."""
        known, copies = self.cached, self.pool.by_content
        return {
            block
            for block in self.needed(prints, length)
            if block in taken and all(other in taken for other in copies[known[block].content])
        }

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
