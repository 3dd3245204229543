"""Partial last blocks: tokens after the last full unit of a request, for others to copy (T6).

A *tail* is the blocks of one unit that is not full, under the block or namespace that it follows.
It is only ever read by copying: a request that hits its first n tokens gets a unit of its own and
copies into it before it writes (`copies`). So a tail has one content for life, and any shorter
part of a match is valid.

Only for models with full attention alone: a window or a state that is valid after a whole unit
is not valid inside it.

The key of a tail is the id of the last full block before it, which stands for all content up to
there for as long as that block is cached. So tails leave before any full block does (T3): ask
`evict` here first. They are worth less than a unit each.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import zip_longest
from typing import NamedTuple
from zlib import crc32

import numpy as np

from kvproof.reference.core.block_pool import Ids
from kvproof.reference.core.identity import TOKEN_BYTES, Span, encode

_SYMBOL = 2 * TOKEN_BYTES
"""Bytes of a position in the order of tails: its token, and a checksum of the span begun there."""


class Content(NamedTuple):
    """Symbols of equal width, so that equal beginnings sort together; equality is exact (H3)."""

    symbols: bytes
    marks: tuple[Span, ...]
    """Spans that begin in it; the parent stands for those before."""
    start: int

    @classmethod
    def of(cls, tokens: bytes, spans: Sequence[Span], start: int) -> Content:
        """Take int32 tokens from position `start` on, and all spans of their request."""
        symbols = np.zeros((len(tokens) // TOKEN_BYTES, 2), np.uint32)
        symbols[:, 0] = np.frombuffer(tokens, np.uint32)
        marks = tuple(span for span in spans if 0 <= span.start - start < len(symbols))
        for span in marks:
            symbols[span.start - start, 1] = crc32(encode(*span))
        return cls(symbols.tobytes(), marks, start)

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.symbols) // _SYMBOL

    def common(self, other: Content) -> int:
        """Count the leading positions that are equal, spans included (M1)."""
        count = min(self.length, other.length)
        mine = np.frombuffer(self.symbols, np.uint64, count)
        differs = mine != np.frombuffer(other.symbols, np.uint64, count)
        equal = int(differs.argmax()) if differs.any() else count
        for one, another in zip_longest(self.marks, other.marks):
            if one != another:
                first = min(span.start for span in (one, another) if span)
                return min(equal, first - self.start)
        return equal

    def begins(self, other: Content) -> bool:
        """Return whether the other content starts with this one."""
        return other.symbols.startswith(self.symbols) and self.common(other) == self.length


class PartialBlock:
    """The blocks of one unit that is not full; null where no token lies in a block."""

    __slots__ = ("blocks", "content", "indexed", "locks", "parent")

    def __init__(self, parent: Hashable, content: Content, blocks: Ids) -> None:
        self.parent = parent
        self.content = content
        self.blocks = blocks
        self.locks = 0
        self.indexed = True

    @property
    def size(self) -> int:
        """Blocks that hold a token."""
        return len(self.blocks) - self.blocks.count(0)


class PartialMatch(NamedTuple):
    """The first `tokens` of a tail match the prompt; valid until the index changes."""

    block: PartialBlock
    tokens: int


class PartialBlockIndex:
    """Index of tails, least recently used first to go.

    `starts`: for each block of a unit, in the order of its ids, the first token of the unit that
    lies in it: (0,) for one group, (0, 4, 0) for blocks of 4 and of 8 in a unit of 8.
    """

    def __init__(self, starts: Sequence[int]) -> None:
        self._starts = tuple(starts)
        self._tails: dict[Hashable, list[PartialBlock]] = {}
        """Parent -> its tails, sorted by symbols: the best match is next to the insertion point."""
        self._idle: OrderedDict[PartialBlock, None] = OrderedDict()
        self.num_evictable = 0
        self.on_evicted: Callable[[Ids], None] = lambda _: None
        """Called with the blocks of a removed tail, for any reason but `clear`."""

    def find(
        self, parent: Hashable, tokens: bytes, spans: Sequence[Span] = (), *, start: int
    ) -> PartialMatch | None:
        """Find the tail under `parent` that begins with the most of `tokens`, at least one.

        `tokens` are int32 from position `start` on, at most those that may hit; `spans` those of
        the request. Changes nothing (T1). The caller shortens the match where it would end
        inside a span (M2).
        """
        wanted = Content.of(tokens, spans, start)
        tails = self._tails.get(parent, [])
        place = bisect_left(tails, wanted.symbols, key=_key)
        near = tails[max(0, place - 1) : place + 1]
        matches = [PartialMatch(tail, tail.content.common(wanted)) for tail in near]
        best = max(matches, key=lambda match: match.tokens, default=None)
        return best if best and best.tokens else None

    def copies(self, match: PartialMatch, own: Ids) -> list[tuple[int, int]]:
        """Return (source, destination) of the blocks to copy into the unit `own`, before writing.

        The match must be held until the copy is done.
        """
        pairs = zip(self._starts, match.block.blocks, own, strict=True)
        return [(source, mine) for first, source, mine in pairs if first < match.tokens]

    def lock(self, tail: PartialBlock) -> None:
        """Lock a tail while a request copies from it (B5)."""
        if not tail.locks and tail.indexed:
            del self._idle[tail]
            self.num_evictable -= tail.size
        tail.locks += 1

    def unlock(self, tail: PartialBlock) -> Ids:
        """Drop a hold; returns the blocks if the tail has left the index meanwhile."""
        tail.locks -= 1
        if tail.locks:
            return array("i")
        if not tail.indexed:
            return _blocks(tail)
        self._enter_idle(tail)
        return array("i")

    def insert(
        self,
        parent: Hashable,
        tokens: bytes,
        spans: Sequence[Span] = (),
        *,
        start: int,
        blocks: Ids,
    ) -> Ids:
        """Insert the tail `blocks`; returns unused ones. A prefix of a tail is not kept (T2)."""
        content = Content.of(tokens, spans, start)
        tails = self._tails.get(parent, [])
        place = bisect_left(tails, content.symbols, key=_key)
        if not tokens or self._is_known(content, tails[place : place + 1]):
            return blocks[:]
        pairs = list(zip(self._starts, blocks, strict=True))
        unused = array("i", [block for first, block in pairs if first >= content.length])
        if place and tails[place - 1].content.begins(content):
            place -= 1
            self.on_evicted(tails[place].blocks)
            unused += self._drop(tails[place])
        kept = array("i", [block if first < content.length else 0 for first, block in pairs])
        tail = PartialBlock(parent, content, kept)
        self._tails.setdefault(parent, []).insert(place, tail)
        self._enter_idle(tail)
        return unused

    def _is_known(self, content: Content, after: list[PartialBlock]) -> bool:
        """Whether the next tail in order begins with all of this; then it is fresh again."""
        if not after or not content.begins(after[0].content):
            return False
        if after[0] in self._idle:
            self._idle.move_to_end(after[0])
        return True

    def _enter_idle(self, tail: PartialBlock) -> None:
        self._idle[tail] = None
        self.num_evictable += tail.size

    def _drop(self, tail: PartialBlock) -> Ids:
        tails = self._tails[tail.parent]
        place = bisect_left(tails, tail.content.symbols, key=_key)
        while tails[place] is not tail:
            place += 1
        del tails[place]
        if not tails:
            del self._tails[tail.parent]
        tail.indexed = False
        if tail.locks:
            return array("i")
        del self._idle[tail]
        self.num_evictable -= tail.size
        return _blocks(tail)

    def evict(self, count: int) -> Ids:
        """Forget idle tails until `count` blocks came free, oldest first; more may (B3)."""
        victims = array("i")
        while len(victims) < count and self._idle:
            oldest = next(iter(self._idle))
            self.on_evicted(oldest.blocks)
            victims += self._drop(oldest)
        return victims

    def clear(self) -> Ids:
        """Forget everything (H6); returns the blocks that are not locked."""
        freed = array("i")
        for tails in list(self._tails.values()):
            for tail in tails[:]:
                freed += self._drop(tail)
        return freed

    @property
    def num_tokens(self) -> int:
        """Tokens of all tails in the index."""
        return sum(tail.content.length for tails in self._tails.values() for tail in tails)

    def summary(self) -> list[tuple[object, ...]]:
        """Return every tail in the index, those without hold last, first victim first."""
        held = (tail for tails in self._tails.values() for tail in tails if tail.locks)
        return [
            (tail.parent, tail.content, tail.blocks.tolist(), tail.locks)
            for tail in [*held, *self._idle]
        ]


def _key(tail: PartialBlock) -> bytes:
    return tail.content.symbols


def _blocks(tail: PartialBlock) -> Ids:
    return array("i", [block for block in tail.blocks if block])
