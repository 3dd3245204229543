"""Media spans of a request: their identity, their order, and how steps respect them (M1-M5).

A span is identified by its encoder's input (`media_hash`), its kind and its place. Where a hit
may end is a floor of `hit_length`.

Prompt embeddings are identity too (H1). They enter as spans of kind `embeds`, one for each
position that takes its embedding from the request: nothing binds neighbouring positions, so hits
and steps may end anywhere between them. The mask is identity by which positions have a span.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kvproof.reference.core.cache_policy import Access
from kvproof.reference.core.identity import IdentityError, Span
from kvproof.reference.core.media_hash import content_hash

EMBEDS = "embeds"
"""Kind of a position whose embedding is given; no encoder runs for it."""

UNHASHED = "unhashed"
"""Content of spans whose request neither reads nor writes the cache."""


class Content:
    """Input of an encoder, hashed on demand (H4); with a `digest` the data are never read."""

    __slots__ = ("_data", "_digest", "_metadata")

    def __init__(
        self, data: object = None, *, metadata: object = None, digest: str | None = None
    ) -> None:
        """Raises IdentityError for an empty digest."""
        if digest == "":
            raise IdentityError("the content hash given is empty; give None to have it computed")
        self._data, self._metadata, self._digest = data, metadata, digest

    def digest(self) -> str:
        """Return the hash and let the data go. Raises IdentityError if they are unreadable."""
        if self._digest is None:
            self._digest = content_hash(self._data, metadata=self._metadata)
        self._data = self._metadata = None
        return self._digest


class Item(NamedTuple):
    """One run of placeholders [start, start + length) and its content."""

    kind: str
    start: int
    length: int
    content: Content


def spans_of(items: Iterable[Item], access: Access) -> tuple[Span, ...]:
    """Return the spans of a request, in order; hashes only if the cache can use them (H4)."""
    hashed = access.read or access.write
    return in_order(
        Span(kind, start, length, content.digest() if hashed else UNHASHED)
        for kind, start, length, content in items
    )


def in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Sort spans by place for `identity.check_spans`, which refuses overlaps (M4)."""
    return tuple(sorted(spans, key=lambda span: (span.start, span.length, span)))


def frames(
    places: Sequence[tuple[int, int]],
    pictures: Sequence[object] = (),
    *,
    kind: str = "video",
    metadata: object = None,
    digest: str | None = None,
) -> tuple[Item, ...]:
    """Expand a video to its frames, one item for each (start, length) of `places` (M4).

    A picture is one input of the encoder. With the caller's `digest` of the whole video, a frame is
    identified by the digest and its number. Raises IdentityError if the counts differ (H8).
    """
    if digest is not None:
        numbered = [content_hash(("frame", digest, number)) for number in range(len(places))]
        contents = [Content(digest=each) for each in numbered]
    elif len(pictures) == len(places):
        contents = [Content(picture, metadata=metadata) for picture in pictures]
    else:
        raise IdentityError(
            f"the {kind} has {len(pictures)} frames, but placeholders for {len(places)}"
        )
    return tuple(
        Item(kind, start, length, content)
        for (start, length), content in zip(places, contents, strict=True)
    )


def embeds(embeddings: Any, mask: Sequence[object] | None = None, *, start: int = 0) -> list[Item]:
    """Return one item for each position that takes its row of `embeddings` (H1).

    `embeddings`: array or tensor [positions, hidden], for the positions from `start` on. `mask`:
    per position, whether the row counts (None: all do); a row that does not is never read.
    Raises IdentityError if the counts differ (H8).
    """
    count = len(embeddings)
    if mask is not None and len(mask) != count:
        raise IdentityError(f"{count} prompt embeddings have a mask for {len(mask)} positions")
    return [
        Item(EMBEDS, start + row, 1, Content(embeddings[row]))
        for row in range(count)
        if mask is None or mask[row]
    ]


def chunk_limit(limit: int, spans: Iterable[Span], *, turn: int) -> int:
    """Return how many tokens a step may take at most (M3).

    Grows to the longest span of the current turn, which begins at position `turn`, whether or
    not a hit has it; spans of earlier turns do not count.
    """
    return max([limit, *(span.length for span in spans if span.start >= turn)])


def chunk_stop(start: int, stop: int, spans: Sequence[Span]) -> int:
    """Return where a step from `start` that wants to end at `stop` ends: never in a span (M3).

    It ends where the span begins; if that is where the step begins, it takes the whole span.
    Spans are in order.
    """
    index = bisect_left(spans, stop, key=_start) - 1
    if index < 0 or stop >= spans[index].start + spans[index].length:
        return stop
    span = spans[index]
    return span.start if span.start > start else span.start + span.length


def to_encode(hit: int, start: int, stop: int, spans: Sequence[Span]) -> tuple[int, ...]:
    """Return the spans, by index, whose encoder runs for the step [start, stop) (M5).

    Each span that the hit does not cover is named once, by the first step that computes one of
    its positions. Spans are in order.
    """
    first = max(0, bisect_left(spans, start, key=_start) - 1)
    last = bisect_left(spans, stop, key=_start)
    return tuple(
        index
        for index in range(first, last)
        if spans[index].kind != EMBEDS
        and spans[index].start + spans[index].length > hit
        and start <= max(spans[index].start, hit) < stop
    )


def _start(span: Span) -> int:
    return span.start
