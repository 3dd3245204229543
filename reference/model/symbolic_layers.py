"""Layers of the symbolic model: reads through a table, and writes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from kvproof.reference.core.attention_groups import GroupConfig, first_visible
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.model.interface import Work
from kvproof.reference.model.symbolic_memory import POISON, SymbolicMemory
from kvproof.reference.model.symbolic_scales import Words

MASK = 2**64 - 1


def mix(left: int, right: int) -> int:
    """Hash two words into one."""
    word = (left ^ (right * 0x9E3779B97F4A7C15)) & MASK
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    return word ^ (word >> 27)


@lru_cache(maxsize=4096)
def digest(*fields: str | int | None) -> int:
    """Hash identity that is not made of tokens: a namespace with its weights, a medium."""
    return int.from_bytes(blake2b(repr(fields).encode(), digest_size=8).digest(), "little")


def total(entries: Words, first: int) -> int:
    """Sum up entries from number `first` on, modulo 2^64; another order is another sum."""
    if not len(entries):
        return 0
    last = 2 * (first + len(entries))
    return int(np.dot(entries, np.arange(2 * first + 1, last, 2, dtype=np.uint64)))


def compressed(entry: int, inputs: Mapping[int, int], position: int, ratio: int) -> int:
    """Return the entry that ends at `position`, with the inputs of its other tokens in it."""
    for earlier in range(position + 1 - ratio, position):
        entry = mix(entry, inputs[earlier])
    return entry


class Attention:
    """One group in one pass: its visible entries, and the entries it writes.

    An entry of several tokens is written with its last one, and stands for the `inputs` of the
    others as well: words of positions, which a pass knows from the tokens (Q1).
    """

    def __init__(
        self,
        memory: SymbolicMemory,
        index: int,
        group: GroupConfig,
        work: Work,
        inputs: Mapping[int, int],
    ) -> None:
        self._group, self._inputs = group, inputs
        visible = first_visible(group, work.start)
        self._low = self._base = visible // group.ratio
        read = work.start // group.ratio - self._low
        slots = memory.slots(index, work.tables[index], visible, work.stop)
        self._memory, self._index, self._all = memory, index, group.kind == "full"
        self._old_slots, self._new_slots = slots[:read], slots[read:]
        self._old = memory.words(index, self._old_slots)
        """Entries that were read, as an array: a long prompt reads them in every step."""
        self._new: list[int] = []
        self._seen = total(self._old, self._low)

    def at(self, position: int, hidden: int) -> int:
        """Append the entry that ends at `position`, if one does; returns the layer's output."""
        ratio = self._group.ratio
        if not self._all:
            self._forget(first_visible(self._group, position) // ratio)
        entry = mix(hidden, self._seen)
        if (position + 1) % ratio:
            return mix(entry, self._seen)
        entry = compressed(entry, self._inputs, position, ratio)
        self._new.append(entry)
        self._seen = (self._seen + entry * (2 * (position // ratio) + 1)) & MASK
        return mix(entry, self._seen)

    def _forget(self, first: int) -> None:
        for number in range(self._low, first):
            self._seen = (self._seen - self._entry(number) * (2 * number + 1)) & MASK
        self._low = first

    def _entry(self, number: int) -> int:
        place = number - self._base
        if place < len(self._old):
            return int(self._old[place])
        return self._new[place - len(self._old)]

    def store(self) -> None:
        """Write the new entries."""
        self._memory.write(self._index, self._new_slots[: len(self._new)], self._new)

    def store_again(self, *, intact: bool) -> None:
        """Write them once more, or poison if their sources are gone."""
        if not intact:
            self._new = [POISON] * len(self._new)
        self.store()

    def changed(self) -> bool:
        """Return whether the slots read have changed."""
        return not np.array_equal(self._memory.words(self._index, self._old_slots), self._old)


class Recurrence:
    """All recurrent groups in one pass: one word for each block of the state."""

    def __init__(self, memory: SymbolicMemory, width: int, work: Work) -> None:
        assert work.state is not None, "a recurrent model got a step without its state"
        self._memory, self._use = memory, work.state
        restore = self._use.restore
        self._restored = memory.state(restore[0]) if restore else []
        if restore:
            memory.write_state(restore[1], self._restored)
        self._words = memory.state(self._use.read) if len(self._use.read) else [0] * width
        self._wanted = dict(self._use.writes)
        self._checkpoints = dict(self._use.saves)
        self._saved: list[tuple[Ids, list[int]]] = []

    def at(self, position: int, hidden: int) -> int:
        """Fold one position into the state, and save the state where requested."""
        passed = hidden
        for index, word in enumerate(self._words):
            self._words[index] = word = mix(word + index, hidden)
            passed += word
        ids = self._wanted.get(position + 1)
        if ids is not None:
            self._memory.write_state(ids, self._words)
        saved = self._checkpoints.get(position + 1)
        if saved is not None:
            self._saved.append((saved, [*self._words]))
        return mix(passed, hidden)

    def store(self) -> None:
        """Write the checkpoints of this step (S4)."""
        for ids, words in self._saved:
            self._memory.write_state(ids, words)

    def store_again(self, *, intact: bool) -> None:
        """Write them once more: they belong to the step until it ends."""
        for ids, words in self._saved:
            self._memory.write_state(ids, words if intact else [POISON] * len(words))

    def changed(self) -> bool:
        """Return whether the restored checkpoint has changed."""
        restore = self._use.restore
        return restore is not None and self._memory.state(restore[0]) != self._restored
