"""Partial last blocks: which are stored, and that nobody writes where others read (T6).

A *tail* is what a request leaves behind its last full unit. Fingerprints stand for everything up
to their position, so a tail is known by where it begins and by one fingerprint for each token.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kvproof.harness.contract.target import Scheduled
from kvproof.harness.oracle.cache_model import Entry, Ledger
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.request_state import Live
from kvproof.harness.oracle.shadow_memory import Fingerprints, digest
from kvproof.harness.oracle.violation import SHADOW

if TYPE_CHECKING:
    from kvproof.harness.oracle.session import Session


class Tail(NamedTuple):
    """Tokens from `start` on, and the blocks of all groups that hold them."""

    start: int
    prints: Fingerprints
    entries: dict[int, Entry]

    def common(self, prints: Fingerprints) -> int:
        """Count the leading tokens that a request has as well."""
        mine = self.prints[: max(0, len(prints) - self.start)]
        differs = mine != prints[self.start : self.start + len(mine)]
        return int(differs.argmax()) if differs.any() else len(mine)


class Tails:
    """Tails beside the ledger, which knows their blocks. Of equal beginnings the longest stays."""

    def __init__(self, ledger: Ledger, layout: Layout) -> None:
        self._ledger = ledger
        self._layout = layout
        self._tails: list[Tail] = []

    def clear(self) -> None:
        """Forget everything, as after a reset."""
        self._tails.clear()

    def covers(self, prints: Fingerprints, length: int) -> bool:
        """Tell whether a tail holds the last tokens of a hit of `length`, behind whole units."""
        return self.longest(prints, length) is not None

    def longest(self, prints: Fingerprints, length: int) -> Tail | None:
        """Return a tail that holds what lies between the last full unit and `length`."""
        start = length // self._layout.unit * self._layout.unit
        fitting = (tail for tail in self._here(start) if tail.common(prints) >= length - start)
        return next(fitting, None)

    def _here(self, start: int) -> list[Tail]:
        """Return the tails that begin there; one of which a block is gone is gone."""
        cached = self._ledger.cached
        self._tails = [
            tail
            for tail in self._tails
            if all(cached.get(block) is entry for block, entry in tail.entries.items())
        ]
        return [tail for tail in self._tails if tail.start == start]

    def around(self, blocks: frozenset[int]) -> frozenset[int]:
        """Return all blocks of the tails that these belong to: they are held as one."""
        known = (tail.entries.keys() for tail in self._tails if blocks & tail.entries.keys())
        return blocks.union(*known)

    def freeze(self, prints: Fingerprints, stop: int, blocks: dict[int, int]) -> int:
        """Take copies, block -> group, of what lies behind the last full unit before `stop`.

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
            self._ledger.keep(block, entry)
        self._tails.append(Tail(start, prints[start:stop].copy(), entries))
        return next(iter(entries.values())).content

    def stands_behind(self, prints: Fingerprints, start: int) -> bool:
        """Tell whether a tail begins where a request has `start` tokens."""
        group = self._layout.full[0]
        last = start // self._layout.groups[group].block_size - 1
        parent = self._ledger.key(prints, last, group) if start else 0
        tails = self._here(start)
        return any(
            e.parent == parent for t in tails for e in t.entries.values() if e.group == group
        )

    def left(self, live: Live) -> None:
        """Take what a request leaves behind its last full unit, unless its steps froze it."""
        if not self._layout.states:
            self._keep(live)

    def _keep(self, live: Live) -> None:
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
        for tail in here:
            if tail.common(live.prints[: live.computed]) == len(tail.prints):
                for block in tail.entries:
                    self._ledger.drop(block)
        blocks = self._blocks(live, start)
        entries = {block: self._entry(live.prints, start, at) for block, at in blocks.items()}
        for block, entry in entries.items():
            self._ledger.keep(block, entry)
        self._tails.append(Tail(start, mine.copy(), entries))

    def _blocks(self, live: Live, start: int) -> dict[int, tuple[int, int]]:
        """Return block -> (group, index) of what lies behind `start` and holds a token."""
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
        parent = self._ledger.key(prints, before, group) if start else 0
        return Entry(content, parent, group=group, ends_unit=False, tail=True)


class TailRules:
    """Judges for one session what is copied before a step writes."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._layout = session.layout

    def copied(self, live: Live, answer: Scheduled) -> None:
        """A hit that ends inside a unit goes on in a copy, made of what holds its tokens (T6)."""
        unit = self._layout.unit
        if not answer.hit % unit:
            return
        for group in self._layout.attention:
            size = self._layout.groups[group].block_size
            first = answer.hit // unit * unit // size
            for index in range(first, self._layout.blocks_for(group, answer.hit)):
                self._block(live, answer, group, index)

    def _block(self, live: Live, answer: Scheduled, group: int, index: int) -> None:
        own = live.groups[group][index]
        sources = [source for g, source, target in answer.copies if (g, target) == (group, own)]
        start = index * self._layout.groups[group].block_size
        stop = min(answer.hit, start + self._layout.groups[group].block_size)
        self._session.check(
            "partial_blocks_are_copied_before_they_are_written",
            SHADOW,
            len(sources) == 1
            and sources[0] not in live.blocks
            and self._holds(sources[0], live, group, start, stop),
            partial(
                "request {} hits {} tokens and goes on in block {} of group {}, into which {} was "
                "copied: it needs one copy of another block with positions {} to {}".format,
                live.request.id, answer.hit, own, group, sources or "nothing", start, stop - 1,
            ),
            suspects=(own, *sources),
        )  # fmt: skip

    def _holds(self, block: int, live: Live, group: int, start: int, stop: int) -> bool:
        paging = self._layout.pagings[group]
        if not 0 < block < self._session.config.num_blocks:
            return False
        pages = range(block * paging.ratio, (block + 1) * paging.ratio)
        slots = self._session.shadow.slots(pages, 0, stop - start, paging)
        expected = live.prints[start:stop] ^ self._layout.salts[group]
        return bool(np.array_equal(self._session.shadow.content[slots], expected))
