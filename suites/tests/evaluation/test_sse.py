"""Server-sent events as the HTML standard has them, wherever the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.harness.http.completion_client import CompletionClient
from kvproof.harness.http.sse import EventDecoder, ServerEvent, events
from kvproof.suites.tests.evaluation.eval_server import scripted

draws = settings(derandomize=True, database=None, deadline=None, max_examples=200)


@pytest.mark.parametrize(
    ("stream", "found"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        # the examples of the standard
        (b"data: YHOO\ndata: +2\ndata: 10\n\n", [b"YHOO\n+2\n10"]),
        (b": test\n\ndata: first\nid: 1\n\ndata:second\nid\n\ndata:  third", [b"first", b"second"]),
        (b"data\n\ndata\ndata\n\ndata:", [b"", b"\n"]),
        (b"data:test\n\ndata: test\n\n", [b"test", b"test"]),
        # ends of lines, the byte order mark, comments, and fields that nobody knows
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [b"a", b"b", b"c"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b": ping\n\nfoo: bar\nfoo\ndata: a\nretry: 5\n\n", [b"a"]),
        (b"data: a\n", []),
        (b"", []),
    ],
)
def test_events_are_those_of_the_standard(stream: bytes, found: list[bytes]) -> None:
    assert [event.data for event in events([stream])] == found
    assert [event.data for event in events(bytes([byte]) for byte in stream)] == found


def test_an_event_has_its_name() -> None:
    stream = [b"event: error\ndata: a\n\ndata: b\n\nevent: alone\n\ndata: c\n\n"]
    assert [*events(stream)] == [ServerEvent(b"a", "error"), ServerEvent(b"b"), ServerEvent(b"c")]


LINES = st.sampled_from([b"data: a", b"data:b", b"data", b"", b"", b": c", b"event: e", b"x"])
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n"])


@draws
@given(st.lists(st.tuples(LINES, ENDS), max_size=12), st.lists(st.integers(0, 80), max_size=6))
def test_where_a_stream_is_cut_changes_nothing(
    lines: list[tuple[bytes, bytes]], cuts: list[int]
) -> None:
    stream = b"".join(line + end for line, end in lines)
    borders = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in pairwise(borders)]
    assert [*events(pieces)] == [*events([stream])]


def test_an_event_is_there_as_soon_as_its_empty_line_is() -> None:
    decoder = EventDecoder()
    assert [*decoder.feed(b"data: a\r\n")] == []
    assert [*decoder.feed(b"\r")] == [ServerEvent(b"a")]
    assert [*decoder.feed(b"\ndata: b\n\n")] == [ServerEvent(b"b")]


def test_a_chat_is_read_from_any_legal_stream() -> None:
    with scripted(always="unusual events") as server:
        reply = CompletionClient(server.url, retries=0).ask("?")
    assert (reply.outcome, reply.text, reply.faults) == ("answered", "The answer", ())
