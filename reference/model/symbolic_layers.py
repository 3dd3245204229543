"""Layers of the symbolic model: reads through a table, and writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from operator import mul

from kvproof.reference.core.attention_groups import GroupConfig, first_visible
from kvproof.reference.core.block_pool import Ids
from kvproof.reference.model.interface import Work
from kvproof.reference.model.symbolic_memory import POISON, SymbolicMemory

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


def total(entries: Sequence[int], first: int) -> int:
    """Sum up entries of positions from `first` on; the same ones in another order differ."""
    return sum(map(mul, entries, range(2 * first + 1, 2 * (first + len(entries)) + 1, 2)))


class Attention:
    """One group in one pass: its visible entries, and the entries it writes."""

    def __init__(self, memory: SymbolicMemory, index: int, group: GroupConfig, work: Work) -> None:
        self._group, self._low = group, first_visible(group, work.start)
        self._base, self._read = self._low, work.start - self._low
        slots = memory.slots(index, work.tables[index], self._low, work.stop)
        self._slots, self._memory, self._all = slots, memory, group.kind == "full"
        self._entries = memory.read(slots[: self._read])
        self._seen = total(self._entries, self._low)

    def at(self, position: int, hidden: int) -> int:
        """Append the entry of `position`; returns what the layer passes on."""
        if not self._all:
            self._forget(first_visible(self._group, position))
        entry = mix(hidden, self._seen)
        self._entries.append(entry)
        self._seen += entry * (2 * position + 1)
        return mix(entry, self._seen)

    def _forget(self, first: int) -> None:
        gone = self._entries[self._low - self._base : first - self._base]
        self._seen -= total(gone, self._low)
        self._low = first

    def store(self) -> None:
        """Write the new entries."""
        new = self._entries[self._read :]
        self._memory.write(self._slots[self._read :][: len(new)], new)

    def store_again(self, *, intact: bool) -> None:
        """Write them once more, or poison if what they were made of is gone."""
        if not intact:
            self._entries[self._read :] = [POISON] * (len(self._entries) - self._read)
        self.store()

    def changed(self) -> bool:
        """Return whether the slots read have changed."""
        return self._memory.read(self._slots[: self._read]) != self._entries[: self._read]


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
