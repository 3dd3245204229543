"""Tokens become text that is never taken back, and end where they should."""

from __future__ import annotations

import random

import pytest

from kvproof.reference.server.language.symbolic_text import ORDER, TOKENS, Utf8Detokenizer
from kvproof.reference.server.writer import LENGTH, STOP, Piece, Writer, joined

END = frozenset({0})


def tokens_of(data: bytes) -> list[int]:
    return [1 + TOKENS[byte] for byte in data]


def written(tokens: list[int], *stops: str, most: int = 1000) -> list[Piece]:
    writer = Writer(Utf8Detokenizer(), stops=stops, ends=END, most=most)
    pieces = []
    for token in tokens:
        pieces.append(writer.add([token]))
        if pieces[-1].finish:
            break
    return pieces


def texts(pieces: list[Piece]) -> list[str]:
    return [piece.text for piece in pieces]


def test_each_byte_is_one_token_and_back() -> None:
    assert sorted(ORDER) == list(range(256))
    assert bytes(ORDER[token - 1] for token in tokens_of(bytes(range(256)))) == bytes(range(256))


def test_a_character_is_told_once_it_is_whole() -> None:
    assert texts(written(tokens_of("aü€😀".encode()))) == [
        "a", "", "ü", "", "", "€", "", "", "", "😀"
    ]  # fmt: skip


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert "".join(texts(written([*tokens_of(b"a\xffb\xe2\x82"), 0]))) == "a\ufffdb\ufffd"


def test_an_answer_that_is_cut_inside_a_character_tells_so() -> None:
    pieces = written(tokens_of("a€".encode()), most=3)
    assert (pieces[-1].text, pieces[-1].finish) == ("\ufffd", LENGTH)


def test_the_beginning_of_a_stop_is_held_back_and_told_if_it_was_none() -> None:
    assert texts(written(tokens_of(b"xabaabz"), "abc", "aabb")) == [
        "x", "", "", "ab", "", "", "aabz"
    ]  # fmt: skip


def test_the_end_tells_what_was_held_back() -> None:
    pieces = written([*tokens_of(b"xab"), 0], "abc")
    assert joined(pieces)[:2] == ("xab", (*tokens_of(b"xab"), 0))
    assert pieces[-1].finish == STOP


def test_an_end_beside_the_last_token_counts_as_the_model_s_own() -> None:
    assert written([*tokens_of(b"ab"), 0], most=3)[-1].finish == STOP


def test_several_tokens_at_once_end_at_the_first_end() -> None:
    writer = Writer(Utf8Detokenizer(), stops=["cd"], ends=END, most=100)
    piece = writer.add(tokens_of(b"abcdef"))
    assert piece[:2] == ("ab", tuple(tokens_of(b"abcd")))
    assert writer.written == 4


@pytest.mark.parametrize("seed", range(200))
def test_pieces_add_up_to_the_text_before_the_first_stop(seed: int) -> None:
    draw = random.Random(seed)
    text = "".join(draw.choices("abü", k=draw.randrange(1, 30)))
    stops = ["".join(draw.choices("abü", k=draw.randrange(1, 5))) for _ in range(2)]
    pieces = written([*tokens_of(text.encode()), 0], *stops)
    # the stop that is whole first; of two that end together, the one that begins first
    ends = [(text.index(stop) + len(stop), text.index(stop)) for stop in stops if stop in text]
    want = text[: min(ends)[1]] if ends else text
    assert joined(pieces).text == want
