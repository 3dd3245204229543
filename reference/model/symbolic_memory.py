"""Memory of the symbolic model: one 64-bit word per entry of a block, and rows of state.

All groups lie in one array, as they do in one pool of a device: block b is words [b * unit,
(b + 1) * unit), whichever group holds it, so two owners of one id destroy each other's content.
A page of a group with `ratio` tokens in an entry fills the first of its words (Q1); with context
ranks each has its own part of every page, and finds its entries there by itself (Q4).
Groups with scales have one for each word, in a second array; neither is of use alone (Q8).
Slots are addressed through the kernel tables that a worker reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.block_pool import NULL_BLOCK
from kvproof.reference.core.cache_config import CacheConfig
from kvproof.reference.core.context_ranks import ALONE, ContextRanks
from kvproof.reference.core.validation import require
from kvproof.reference.model.symbolic_scales import (
    Words,
    check_scaled,
    scaled_columns,
    scales_of,
)

Slots: TypeAlias = npt.NDArray[np.int64]
Table: TypeAlias = npt.NDArray[np.int32]

POISON = 0xDEAD_BEEF_DEAD_BEEF
"""Content of slots that were never written, or were freed."""


class WrongAddress(RuntimeError):
    """A step addresses forbidden memory: the null block, or memory outside the pool."""


def _check_ranks(ranks: ContextRanks, group: GroupConfig) -> None:
    """Refuse ranks that do not share every page of a group, entry by entry (Q4)."""
    if ranks == ALONE or group.kind == "state":
        return
    rule = f"a divisor of the {group.kernel_size} tokens of a kernel block"
    require(group.kernel_size % ranks.round == 0, "count * interleave", ranks.round, rule, 1)
    rule = f"whole entries of {group.ratio} tokens"
    require(ranks.interleave % group.ratio == 0, "interleave", ranks.interleave, rule, group.ratio)


class SymbolicMemory:
    """Pages of all groups and, in a separate pool, rows of state."""

    def __init__(
        self, config: CacheConfig, ranks: ContextRanks = ALONE, scaled: Sequence[int] = ()
    ) -> None:
        """`scaled`: groups whose words have scales. Raises ConfigError for one without tokens."""
        self._unit, self._groups = config.layout.unit, config.layout.groups
        self._ranks, self._scaled = ranks, check_scaled(scaled, self._groups)
        for group in self._groups:
            _check_ranks(ranks, group)
        words = config.num_blocks * self._unit
        self._words = np.full(words, POISON, np.uint64)
        self._blocks = self._words.reshape(-1, self._unit)
        self._scales = np.full(words if scaled else 0, POISON, np.uint64)
        self._scale_blocks = self._scales.reshape(-1, self._unit)
        self._columns = scaled_columns(config.layout, self._scaled)
        """Part -> the blocks of its objects that have scales."""
        self._separate = config.state_pool == "separate"
        rows = 1 + config.max_requests + config.prefix_cache_state_budget
        width = config.layout.state_blocks
        self._rows = np.full((rows if self._separate else 0, width), POISON, np.uint64)
        self._state_words = width if self._separate else width * self._unit
        self._kept: list[Words] | None = None
        """Content of a memory that sleeps, empty if it was dropped."""

    # --- entries of attention ---

    def slots(self, group: int, table: Table, start: int, stop: int) -> Slots:
        """Return the words of the entries whose last token lies in [start, stop) (Q1).

        `table` holds kernel-block ids (K2).
        """
        config = self._groups[group]
        start, stop, size = (at // config.ratio for at in (start, stop, config.kernel_size))
        first, last = start // size, -(-stop // size)
        if start < stop and last > len(table):
            have = f"a table of {len(table)} pages of {size}"
            raise WrongAddress(f"{have} cannot hold {stop} entries")
        if self._ranks != ALONE:
            return self._on_ranks(config, table, range(start, stop))
        pages = table[first:last].astype(np.int64) * self._page_words(config)
        words = np.add.outer(pages, np.arange(size)).reshape(-1)
        slots: Slots = words[start - first * size :][: stop - start]
        return slots

    def _page_words(self, group: GroupConfig) -> int:
        return self._unit // group.kernel_ratio

    def _on_ranks(self, group: GroupConfig, table: Table, entries: range) -> Slots:
        """Return the words of entries: rank r has the r-th part of each page (Q4)."""
        ranks, width = self._ranks, self._page_words(group)
        size = group.kernel_size // group.ratio // ranks.count
        words = []
        for last in (entry * group.ratio + group.ratio - 1 for entry in entries):
            page, offset = divmod(ranks.slot(last) // group.ratio, size)
            own = ranks.owner(last) * (width // ranks.count) + offset
            words.append(int(table[page]) * width + own)
        return np.array(words, np.int64)

    def words(self, group: int, slots: Slots) -> Words:
        """Return the words in `slots` as a step reads them."""
        values, *scales = self.stored(group, slots)
        return values + scales[0] if scales else values

    def write(self, group: int, slots: Slots, words: Sequence[int]) -> None:
        """Write one word to each slot. Raises WrongAddress for the null block (B1)."""
        values = np.array(words, np.uint64)
        if group in self._scaled:
            scales = scales_of(values)
            self.put_stored(slots, (values - scales, scales))
        else:
            self.put_stored(slots, (values,))

    def stored(self, group: int, slots: Slots) -> tuple[Words, ...]:
        """Return what lies in `slots`: the words, or values and their scales (Q8)."""
        values = self._words[slots]
        return (values, self._scales[slots]) if group in self._scaled else (values,)

    def put_stored(self, slots: Slots, stored: Sequence[Words]) -> None:
        """Write what `stored` returned. Raises WrongAddress for the null block (B1)."""
        if len(slots) and slots.min() < (NULL_BLOCK + 1) * self._unit:
            raise WrongAddress("a step writes to the null block")
        for memory, words in zip((self._words, self._scales), stored, strict=False):
            memory[slots] = words

    def copy(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination) each. Raises WrongAddress for block 0."""
        for source, target in pairs:
            if target == NULL_BLOCK:
                raise WrongAddress("a step copies into the null block")
            self._blocks[target] = self._blocks[source]
            if len(self._scales):
                self._scale_blocks[target] = self._scale_blocks[source]

    def block(self, block: int) -> list[int]:
        """Return all words of a block, then their scales."""
        words: list[int] = self._blocks[block].tolist()
        scales: list[int] = self._scale_blocks[block].tolist() if len(self._scales) else []
        return words + scales

    # --- recurrent state ---

    def state(self, ids: Sequence[int]) -> list[int]:
        """Return one word for each part of a state; a block that is not all one's own is poison."""
        if self._separate:
            row: list[int] = self._rows[ids[0]].tolist()
            return row
        blocks = self._blocks[np.asarray(ids)]
        whole = (blocks == blocks[:, :1]).all(axis=1)
        words: list[int] = np.where(whole, blocks[:, 0], np.uint64(POISON)).tolist()
        return words

    def write_state(self, ids: Sequence[int], words: Sequence[int]) -> None:
        """Write a state to one row, or over its blocks. Raises WrongAddress for id 0."""
        if min(ids) <= 0:
            raise WrongAddress(f"a step writes a state to {list(ids)}: 0 is never used")
        if self._separate:
            self._rows[ids[0]] = np.array(words, np.uint64)
        else:
            self._blocks[np.asarray(ids)] = np.array(words, np.uint64)[:, None]

    # --- whole blocks, to other tiers and back ---

    def object_bytes(self, part: str, width: int) -> int:
        """Bytes of `width` blocks of a part with their scales, or of a whole state."""
        blocks = width + len(self._columns.get(part, ()))
        words = self._state_words if part == "state" else self._unit * blocks
        return words * self._words.itemsize

    def take(self, part: str, ids: Sequence[int]) -> bytes:
        """Return the bytes of a unit's blocks, then their scales (Q8), or those of a state.

        Raises WrongAddress while the memory sleeps.
        """
        if self._kept is not None:
            raise WrongAddress(f"content of {list(ids)} is asked for while the memory sleeps")
        places = np.asarray(ids, np.int64)
        if part == "state" and self._separate:
            return self._rows[places].tobytes()
        scales = self._scale_blocks[places[self._columns.get(part, [])]]
        return self._blocks[places].tobytes() + scales.tobytes()

    def put(self, part: str, ids: Sequence[int], content: memoryview) -> None:
        """Write content that `take` returned. Raises WrongAddress for id 0."""
        if len(ids) and min(ids) <= 0:
            raise WrongAddress(f"content is put into {list(ids)}: 0 is never used")
        places, words = np.asarray(ids, np.int64), np.frombuffer(content, np.uint64)
        if part == "state" and self._separate:
            self._rows[places] = words
            return
        blocks = words.reshape(-1, self._unit)
        self._blocks[places] = blocks[: len(places)]
        if part in self._columns:
            self._scale_blocks[places[self._columns[part]]] = blocks[len(places) :]

    # --- sleep ---

    def sleep(self, *, keep: bool) -> None:
        """Destroy all content; `keep` a copy of it for `wake` (Q6)."""
        pools = self._words, self._scales, self._rows
        self._kept = [pool.copy() for pool in pools] if keep else []
        for pool in pools:
            pool.fill(POISON)

    def wake(self) -> None:
        """Write the content that was kept, the scales too (Q8)."""
        pools = self._words, self._scales, self._rows
        for pool, kept in zip(pools, self._kept or [], strict=False):
            pool[...] = kept
        self._kept = None

    # --- debugging ---

    def poison(self, blocks: Sequence[int]) -> None:
        """Destroy the content of freed blocks."""
        self._blocks[np.asarray(blocks, np.int64)] = POISON
        if len(self._scales):
            self._scale_blocks[np.asarray(blocks, np.int64)] = POISON
