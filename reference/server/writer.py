"""Tokens of one answer -> its text, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvproof.reference.cache.routed_experts import Recorded
from kvproof.reference.server.language.language import Detokenizer, Score

STOP, LENGTH = "stop", "length"


class Piece(NamedTuple):
    """Part of an answer that one step adds."""

    text: str
    """Certain, never taken back; may come later than its tokens."""
    tokens: tuple[int, ...]
    scores: tuple[Score, ...] = ()
    """One for each token; empty unless wished."""
    finish: str = ""
    """Reason in the last piece: `stop` or `length`."""
    cached: int = 0
    """Prompt tokens that were found in the cache."""
    prompt_scores: tuple[Score, ...] = ()
    """Scores in the first piece, if wished: all prompt tokens but the first."""
    experts: Recorded | None = None
    """Experts in the last piece, if they are recorded (R2)."""


def joined(pieces: Sequence[Piece]) -> Piece:
    """Return a whole answer as one piece."""
    return pieces[-1]._replace(
        text="".join(piece.text for piece in pieces),
        tokens=tuple(token for piece in pieces for token in piece.tokens),
        scores=tuple(score for piece in pieces for score in piece.scores),
        prompt_scores=pieces[0].prompt_scores,
    )


class Writer:
    """Detokenizes, and holds back text that may become a stop string, which is never sent."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stops: Sequence[str],
        ends: frozenset[int],
        most: int,
        stop_tokens: frozenset[int] = frozenset(),
    ) -> None:
        """`stop_tokens` end the text and belong to it; `ends` have no text."""
        self._detokenizer, self._stops, self._ends = detokenizer, tuple(stops), ends
        self._stop_tokens = stop_tokens
        self._left = most
        self._held = ""
        self.written = 0
        """Tokens so far, one that ends the answer included."""

    def add(self, tokens: Sequence[int]) -> Piece:
        """Take the next tokens; tokens after the end are not part of the answer."""
        if not self._left:
            return Piece("", (), finish=LENGTH)
        text = ""
        for count, token in enumerate(tokens, 1):
            certain, finish = self._add(token)
            text += certain
            if finish:
                return Piece(text, tuple(tokens[:count]), finish=finish)
        return Piece(text, tuple(tokens))

    def _add(self, token: int) -> tuple[str, str]:
        self.written += 1
        self._left -= 1
        if token in self._stop_tokens:
            self._held += self._detokenizer.add(token)
        if token in self._ends or token in self._stop_tokens:
            return self._last(STOP)
        self._held += self._detokenizer.add(token)
        cut = self._first_stop()
        if cut is not None:
            return self._held[:cut], STOP
        if not self._left:
            return self._last(LENGTH)
        return self._certain(), ""

    def _last(self, finish: str) -> tuple[str, str]:
        self._held += self._detokenizer.end()
        cut = self._first_stop()
        return (self._held, finish) if cut is None else (self._held[:cut], STOP)

    def _first_stop(self) -> int | None:
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        return min(found, default=None)

    def _certain(self) -> str:
        kept = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        cut = len(self._held) - kept
        certain, self._held = self._held[:cut], self._held[cut:]
        return certain


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that `stop` begins with."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
