"""Partial last blocks that are cached: the tokens of a request after its last full unit (T6).

A fingerprint covers everything up to its position, so a partial block is identified by its start
and one fingerprint per token.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from kvproof.harness.contract.target import Table
from kvproof.harness.model.fingerprints import Fingerprints, digest
from kvproof.harness.oracle.cache_model import CacheModel
from kvproof.harness.oracle.contents import Entry
from kvproof.harness.oracle.group_layout import Layout


class PartialBlock(NamedTuple):
    """Tokens from `start` on, and the blocks of all groups that hold them."""

    start: int
    prints: Fingerprints
    entries: dict[int, Entry]

    def common(self, prints: Fingerprints) -> int:
        """Count the leading tokens that a request has as well."""
        mine = self.prints[: max(0, len(prints) - self.start)]
        differs = mine != prints[self.start : self.start + len(mine)]
        return int(differs.argmax()) if differs.any() else len(mine)


class Computed(Protocol):
    """A request with its tables and the tokens that it has computed."""

    prints: Fingerprints
    groups: tuple[Table, ...]
    computed: int


class PartialBlocks:
    """The partial blocks that are cached. Of equal beginnings the longest stays."""

    def __init__(self, model: CacheModel, layout: Layout) -> None:
        self._model = model
        self._layout = layout
        self._known: list[PartialBlock] = []

    def clear(self) -> None:
        """Remove everything, as after a reset."""
        self._known.clear()

    def covers(self, prints: Fingerprints, length: int) -> bool:
        """Whether a partial block holds the tokens of a hit of `length` after its whole units."""
        return self.longest(prints, length) is not None

    def longest(self, prints: Fingerprints, length: int) -> PartialBlock | None:
        """Return a partial block with the tokens between the last full unit and `length`."""
        start = length // self._layout.unit * self._layout.unit
        fitting = (each for each in self._here(start) if each.common(prints) >= length - start)
        return next(fitting, None)

    def _here(self, start: int) -> list[PartialBlock]:
        cached = self._model.cached
        self._known = [
            each
            for each in self._known
            if all(cached.get(block) is entry for block, entry in each.entries.items())
        ]
        return [each for each in self._known if each.start == start]

    def tokens(self) -> int:
        """Return the tokens of all partial blocks."""
        self._here(0)
        return sum(len(each.prints) for each in self._known)

    def around(self, blocks: frozenset[int]) -> frozenset[int]:
        """Return these blocks with all others of the same partial blocks: they are held as one."""
        known = (each.entries.keys() for each in self._known if blocks & each.entries.keys())
        return blocks.union(*known)

    def freeze(self, prints: Fingerprints, stop: int, blocks: dict[int, int]) -> int:
        """Add copies (block -> group) of the tokens between the last full unit and `stop`.

        Returns the content of the first.
        """
        start = stop // self._layout.unit * self._layout.unit
        entries = {
            block: self._entry(
                prints[:stop], start, (group, self._layout.blocks_for(group, stop) - 1)
            )
            for block, group in blocks.items()
        }
        for block, entry in entries.items():
            self._model.keep(block, entry)
        self._known.append(PartialBlock(start, prints[start:stop].copy(), entries))
        return next(iter(entries.values())).content

    def stands_behind(self, prints: Fingerprints, start: int) -> bool:
        """Whether a partial block begins where a request has `start` tokens."""
        group = self._layout.full[0]
        last = start // self._layout.groups[group].block_size - 1
        parent = self._model.key(prints, last, group) if start else 0
        known = self._here(start)
        return any(
            e.parent == parent for t in known for e in t.entries.values() if e.group == group
        )

    def left(self, live: Computed) -> None:
        """Add the tokens of a request after its last full unit, unless its steps froze them."""
        if not self._layout.states:
            self._keep(live)

    def _keep(self, live: Computed) -> None:
        start = live.computed // self._layout.unit * self._layout.unit
        mine = live.prints[start : live.computed]
        if not len(mine):
            return
        here = self._here(start)
        known = next((t for t in here if t.common(live.prints[: live.computed]) == len(mine)), None)
        if known is not None:
            for entry in known.entries.values():
                entry.idle_since = None  # it was used just now
            return
        for each in here:
            if each.common(live.prints[: live.computed]) == len(each.prints):
                for block in each.entries:
                    self._model.drop(block)
        blocks = self._blocks(live, start)
        entries = {block: self._entry(live.prints, start, at) for block, at in blocks.items()}
        for block, entry in entries.items():
            self._model.keep(block, entry)
        self._known.append(PartialBlock(start, mine.copy(), entries))

    def _blocks(self, live: Computed, start: int) -> dict[int, tuple[int, int]]:
        layout = self._layout
        return {
            live.groups[group][index]: (group, index)
            for group in layout.attention
            for index in range(
                start // layout.groups[group].block_size, layout.blocks_for(group, live.computed)
            )
        }

    def _entry(self, prints: Fingerprints, start: int, at: tuple[int, int]) -> Entry:
        group, index = at
        content = int(digest("tail", int(prints[-1]), len(prints), group, index))
        before = start // self._layout.groups[group].block_size - 1
        parent = self._model.key(prints, before, group) if start else 0
        return Entry(content, parent, group=group, ends_unit=False, tail=True)
