"""The expected answer to a prompt, from its tokens alone, and the longest possible hit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvproof.suites.reference.engine.expected_tokens import Direct


class Wanted(NamedTuple):
    """An answer; the token that ends it is counted and has no text."""

    tokens: tuple[int, ...]
    text: str
    finish: str


class Limits(NamedTuple):
    """End conditions of one answer."""

    most: int
    stops: tuple[str, ...]
    ends: frozenset[int]


def answer(direct: Direct, prompt: Sequence[int], limits: Limits, letters: Sequence[str]) -> Wanted:
    tokens: list[int] = []
    text = ""
    while True:
        tokens.append(direct.token_after([*prompt, *tokens], len(letters)))
        if tokens[-1] in limits.ends:
            return Wanted(tuple(tokens), text, "stop")
        text += letters[tokens[-1]]
        cuts = [text.find(stop) for stop in limits.stops if stop in text]
        if cuts:
            return Wanted(tuple(tokens), text[: min(cuts)], "stop")
        if len(tokens) == limits.most:
            return Wanted(tuple(tokens), text, "length")


def content(tokens: Sequence[int], spans: Sequence[Any]) -> list[Any]:
    """Return the content of each position: a token, or a piece of a medium."""
    found: list[Any] = list(tokens)
    for span in spans:
        for offset in range(span.length):
            found[span.start + offset] = (span.content, offset)
    return found


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of leading positions that two requests share."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def reusable(shared: int, length: int, spans: Sequence[Any], block_size: int) -> int:
    """Return the longest hit of `shared` positions: whole blocks, a token left, no span split."""
    hit = min(shared, length - 1) // block_size * block_size
    while inside := [s.start for s in spans if s.start < hit < s.start + s.length]:
        hit = min(inside) // block_size * block_size
    return hit
