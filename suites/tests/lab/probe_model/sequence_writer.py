"""Training sequences, written token by token."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvproof.suites.tests.lab.probe_model.vocabulary import PAD, encode, ids

NONE = -100
"""Target of a position without one."""

KINDS = (
    "easy stop", "hard stop", "keeper", "easy value", "hard value", "wording", "recital", "choice",
    "drill", "list", "note",
)  # fmt: skip
"""Kinds of targets: the sign after a recited choice, which continues or stops; looked-up values."""

EASY, HARD, KEEPER, EASY_VALUE, HARD_VALUE, WORDING, RECITAL, CHOICE, DRILL, LIST, NOTE = range(
    len(KINDS)
)


class Lesson(NamedTuple):
    """One sequence: token ids; for each position its target, the kind, the attention target."""

    tokens: NDArray[np.int16]
    targets: NDArray[np.int16]
    kinds: NDArray[np.int8]
    looks: NDArray[np.int16]


class SequenceWriter:
    """Writes a sequence token by token."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.targets: dict[int, tuple[int, int]] = {}
        self.looks: dict[int, int] = {}
        self.known: dict[str, int] = {}
        """Position of each remembered word."""

    def write(self, text: str) -> None:
        """Write a text without targets."""
        self.tokens += encode(text)

    def answer(self, text: str, kind: int) -> None:
        """Write a text with targets."""
        if text.strip() in self.known:
            self.looks[len(self.tokens) - 1] = self.known[text.strip()]
        for token in encode(text):
            self.say(token, kind)

    def remember(self, text: str, notes: dict[str, str]) -> None:
        """Write a text; after each of these pieces of it the model must know this word."""
        ends = "|".join(f"(?<={re.escape(end)})" for end in notes)
        for piece in re.split(ends, text) if notes else [text]:
            self.write(piece)
            for word in (word for end, word in notes.items() if piece.endswith(end)):
                self.known[word] = len(self.tokens) - 1
                for place in (len(self.tokens) - 1, len(self.tokens)):
                    self.targets[place] = (encode(f" {word}")[0], NOTE)

    def special(self, name: str) -> None:
        """Write a special token."""
        self.tokens.append(ids()[name])

    def say(self, token: int, kind: int) -> None:
        """Write a token with a target."""
        self.targets[len(self.tokens) - 1] = (token, kind)
        self.tokens.append(token)

    def lesson(self, used: int, size: int) -> Lesson:
        """Return the first `used` tokens, padded."""
        tokens = np.full(size, ids()[PAD], np.int16)
        tokens[:used] = self.tokens[:used]
        targets, looks = np.full(size, NONE, np.int16), np.full(size, NONE, np.int16)
        kinds = np.zeros(size, np.int8)
        for place, (token, kind) in self.targets.items():
            if place < used:
                targets[place], kinds[place] = token, kind
        for place, look in self.looks.items():
            if place < used:
                looks[place] = look
        return Lesson(tokens, targets, kinds, looks)
