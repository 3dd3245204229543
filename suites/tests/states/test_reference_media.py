"""Spans of media items: their order, frames, hashing on demand, and steps that respect them."""

from __future__ import annotations

import numpy as np
import pytest

from kvproof.reference.core.cache_policy import DISABLED, decide
from kvproof.reference.core.identity import IdentityError, Span, check_spans
from kvproof.reference.core.media_hash import content_hash
from kvproof.reference.core.media_spans import (
    EMBEDS,
    UNHASHED,
    Content,
    Item,
    chunk_limit,
    chunk_stop,
    embeds,
    frames,
    in_order,
    spans_of,
    to_encode,
)

ALLOWED = decide(enabled=True)
WRITES_ONLY = decide(enabled=True, read=False)
SPANS = (Span("image", 3, 3, "7f3c"), Span("audio", 6, 4, "a91e"), Span("image", 14, 9, "b00c"))


class Watched(bytes):
    """Bytes that no hash may read."""


def test_a_digest_from_the_caller_is_taken_without_reading_the_data() -> None:
    assert Content(Watched(b"1"), digest="7f3c").digest() == "7f3c"
    with pytest.raises(IdentityError, match="Watched"):
        Content(Watched(b"1")).digest()


def test_an_empty_digest_is_refused() -> None:
    with pytest.raises(IdentityError, match="empty"):
        Content(b"1", digest="")


def test_content_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []

    def counted(data: object, *, metadata: object = None) -> str:
        calls.append(data)
        return content_hash(data, metadata=metadata)

    monkeypatch.setattr("kvproof.reference.core.media_spans.content_hash", counted)
    content = Content(b"1", metadata=2)
    item = Item("image", 0, 4, content)
    spans_of([item], DISABLED)
    assert calls == []
    first = spans_of([item], ALLOWED)
    assert spans_of([item], WRITES_ONLY) == first
    assert calls == [b"1"]
    assert first[0].content == content_hash(b"1", metadata=2)


def test_a_request_without_cache_still_knows_its_spans() -> None:
    spans = spans_of([Item("image", 0, 4, Content(object()))], DISABLED)
    assert spans == (Span("image", 0, 4, UNHASHED),)
    check_spans(spans, 4)


def test_spans_in_any_order_are_one_request() -> None:
    assert in_order(SPANS[::-1]) == SPANS
    check_spans(in_order(SPANS[::-1]), 23)


def test_overlapping_spans_are_refused_in_any_order() -> None:
    with pytest.raises(IdentityError, match="span 1"):
        check_spans(in_order([Span("image", 4, 3, "a"), Span("image", 2, 3, "b")]), 9)


def test_a_video_is_its_frames() -> None:
    items = frames([(2, 3), (7, 3)], [b"1", b"2"], metadata=0.5)
    assert spans_of(items, ALLOWED) == (
        Span("video", 2, 3, content_hash(b"1", metadata=0.5)),
        Span("video", 7, 3, content_hash(b"2", metadata=0.5)),
    )


def test_frames_of_a_video_with_a_digest_are_told_apart_unread() -> None:
    one, two = (frames([(2, 3), (7, 3)], [object()] * 2, digest=each) for each in "ab")
    contents = {item.content.digest() for item in (*one, *two)}
    assert len(contents) == 4


def test_frames_and_placeholders_must_be_as_many() -> None:
    with pytest.raises(IdentityError, match="video has 1 frames, but placeholders for 2"):
        frames([(2, 3), (7, 3)], [b"1"])


def test_each_embedded_position_is_a_span_of_its_own() -> None:
    rows = np.arange(8.0).reshape(4, 2)
    spans = spans_of(embeds(rows, [True, False, True, True], start=5), ALLOWED)
    assert [(span.kind, span.start, span.length) for span in spans] == [
        (EMBEDS, 5, 1),
        (EMBEDS, 7, 1),
        (EMBEDS, 8, 1),
    ]
    assert spans[1].content == content_hash(rows[2])
    assert [span.start for span in spans_of(embeds(rows), ALLOWED)] == [0, 1, 2, 3]


def test_rows_that_the_mask_leaves_out_are_never_read() -> None:
    rows = [np.zeros(2), object()]
    assert len(spans_of(embeds(rows, [1, 0]), ALLOWED)) == 1


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(IdentityError, match="4 prompt embeddings have a mask for 3 positions"):
        embeds(np.zeros((4, 2)), [True] * 3)


def test_embedded_positions_need_no_encoder_and_bind_no_step() -> None:
    spans = spans_of(embeds(np.zeros((9, 2))), ALLOWED)
    assert to_encode(0, 0, 9, spans) == ()
    assert [chunk_stop(0, stop, spans) for stop in range(1, 10)] == list(range(1, 10))


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 2, 2),
        (0, 3, 3),
        (0, 5, 3),
        (0, 6, 6),
        (0, 9, 6),
        (3, 4, 6),
        (3, 8, 6),
        (6, 7, 10),
        (10, 14, 14),
        (10, 22, 14),
        (14, 15, 23),
        (14, 30, 30),
    ],
)
def test_a_step_ends_before_or_after_a_span(start: int, stop: int, expected: int) -> None:
    assert chunk_stop(start, stop, SPANS) == expected


def test_the_limit_grows_for_spans_of_this_turn_only() -> None:
    limits = [chunk_limit(4, SPANS, turn=turn) for turn in (0, 14, 15)]
    assert limits == [9, 9, 4]
    assert chunk_limit(64, SPANS, turn=0) == 64
    assert chunk_limit(64, (), turn=0) == 64


@pytest.mark.parametrize(
    ("hit", "start", "stop", "named"),
    [
        (0, 0, 3, ()),
        (0, 0, 4, (0,)),
        (0, 0, 23, (0, 1, 2)),
        (0, 6, 10, (1,)),
        (6, 6, 23, (1, 2)),
        (10, 10, 14, ()),
        (10, 14, 23, (2,)),
        (23, 23, 24, ()),
    ],
)
def test_missed_spans_are_named_by_their_first_step(
    hit: int, start: int, stop: int, named: tuple[int, ...]
) -> None:
    assert to_encode(hit, start, stop, SPANS) == named
