"""What a slot must hold and a request must answer: fingerprints and the engine-free greedy chain.

The fingerprint of position i depends on all tokens up to i, the namespace and the media before.
An answer follows from a fold over every slot that its position reads, in every layer, so one
wrong slot in the middle changes it. Both are polynomial hashes modulo 2**64 with a final mix.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvproof.harness.contract.whole_engine import GroupKind, Media

Words = npt.NDArray[np.uint64]

MASK = (1 << 64) - 1
LONGEST = 1 << 17
"""Tokens of the longest sequence."""
VOCABULARY = 1000
FIRST_TOKEN = 5
"""Smaller ids mean something to engines: begin, end, padding."""
_STEP = 0x9E3779B97F4A7C15
_C1, _C2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53


def mix(value: int) -> int:
    """Return a bijective hash of 64 bits."""
    value ^= value >> 33
    value = value * _C1 & MASK
    value ^= value >> 33
    value = value * _C2 & MASK
    return value ^ value >> 33


def mixed(values: Words) -> Words:
    """Return `mix` of every element."""
    shift = np.uint64(33)
    values = (values ^ (values >> shift)) * np.uint64(_C1)
    values = (values ^ (values >> shift)) * np.uint64(_C2)
    return values ^ (values >> shift)


def _powers() -> Words:
    with np.errstate(over="ignore"):
        return np.cumprod(np.full(LONGEST, _STEP, np.uint64), dtype=np.uint64)


POWERS = _powers()
"""Multiplier of each position."""


@lru_cache(maxsize=4096)
def number(text: str) -> int:
    """Return 64 bits that stand for a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def token_of(fold: int) -> int:
    """Return the token that a fold answers with."""
    return FIRST_TOKEN + mix(fold) % (VOCABULARY - FIRST_TOKEN)


def first_read(group: GroupKind, position: int) -> int:
    """Return the first position that `position` reads in a group; a state is one at its end."""
    if group.kind == "window":
        return max(0, position - group.size + 1)
    if group.kind == "chunk":
        return position - position % group.size
    return position if group.kind == "state" else 0


class Chain:
    """A request's own content: fingerprints by position, and greedy answers.

    Independent of any engine: only the request and the kinds of groups go in. `seed` stands for
    the namespace.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        groups: Sequence[GroupKind],
        *,
        seed: int = 0,
        media: Iterable[Media] = (),
        given: Sequence[int] = (),
    ) -> None:
        self.tokens = list(prompt)
        """Of the prompt, then every answer that was asked for."""
        self.prompt = len(prompt)
        self._groups = tuple(groups)
        self._seed = mix(seed)
        self._media = tuple(media)
        self._given = [*prompt, *given]
        """Tokens that follow from a recording instead of the fold."""
        self.prints: Words = np.zeros(max(64, 2 * len(prompt)), np.uint64)
        """Fingerprint by position; those of `tokens` are set."""
        self._sums = self.prints.copy()
        self._folds = np.zeros(len(self.prints) + 1, np.uint64)
        self._fill(self.tokens)

    def _fill(self, tokens: Sequence[int]) -> None:
        n = len(tokens)
        if not n:
            return
        values = np.array(tokens, np.uint64)
        for item in self._media:
            values[item.start : item.start + item.length] ^= np.uint64(number(item.content))
        with np.errstate(over="ignore"):
            sums = np.cumsum(mixed(values) * POWERS[:n], dtype=np.uint64) + np.uint64(self._seed)
            self._sums[:n] = sums
            self.prints[:n] = mixed(sums)
            np.cumsum(
                mixed(self.prints[:n]) * POWERS[:n], dtype=np.uint64, out=self._folds[1 : n + 1]
            )

    def ensure(self, length: int) -> None:
        """Answer greedily until `length` tokens are known."""
        while len(self.tokens) < length:
            self._append(self.answer(len(self.tokens) - 1))

    def _append(self, token: int) -> None:
        at = len(self.tokens)
        if at >= len(self.prints):
            self._grow()
        total = (int(self._sums[at - 1]) if at else self._seed) + self._term(at, token) & MASK
        own = mix(total)
        self._sums[at], self.prints[at] = total, own
        self._folds[at + 1] = int(self._folds[at]) + mix(own) * int(POWERS[at]) & MASK
        self.tokens.append(token)

    def _grow(self) -> None:
        more = np.zeros(len(self.prints), np.uint64)
        self.prints = np.concatenate([self.prints, more])
        self._sums = np.concatenate([self._sums, more])
        self._folds = np.concatenate([self._folds, more])

    def _term(self, position: int, token: int) -> int:
        return mix(token) * int(POWERS[position])

    def answer(self, position: int) -> int:
        """Return the token that follows `position`, whose tokens up to there must be known."""
        if position + 1 < len(self._given):
            return self._given[position + 1]
        total = sum(self.part(group, position) * group.layers for group in self._groups)
        return token_of(total & MASK)

    def part(self, group: GroupKind, position: int) -> int:
        """Return the fold over what one layer of a group reads at a position."""
        start = first_read(group, position)
        return int(self._folds[position + 1]) - int(self._folds[start])

    def branch(self, length: int, drafts: Sequence[int]) -> Words:
        """Return fingerprints of all positions if `drafts` followed the first `length` tokens."""
        self.ensure(length)
        if not drafts:
            return self.prints[:length]
        prints = np.empty(length + len(drafts), np.uint64)
        prints[:length] = self.prints[:length]
        total = int(self._sums[length - 1]) if length else self._seed
        for at, token in enumerate(drafts, length):
            total = total + self._term(at, token) & MASK
            prints[at] = mix(total)
        return prints


def fold(prints: Words, first: int) -> list[int]:
    """Return the fold of read fingerprints up to each of them; `first` is the first position."""
    with np.errstate(over="ignore"):
        terms = mixed(prints) * POWERS[first : first + len(prints)]
        return [int(each) for each in np.cumsum(terms, dtype=np.uint64)]
