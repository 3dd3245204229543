"""Chains: the content of every position of a request as it grows, and its greedy answers.

An answer follows from a fold over every slot that its position reads, in every layer, so one wrong
slot in the middle changes it. No engine is needed: only the request and the kinds of groups go in.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvproof.harness.model.fingerprints import (
    MASK,
    POWERS,
    Fingerprints,
    mix,
    mixed,
    root,
    sums,
    term,
)
from kvproof.harness.model.records import SHARED, GroupKind, Namespace, Span
from kvproof.harness.model.visibility import Visibility

VOCABULARY = 1000
FIRST_TOKEN = 5
"""Smaller ids mean something to engines: begin, end, padding."""


def token_of(fold: int) -> int:
    """Return the token that a fold answers with."""
    return FIRST_TOKEN + mix(fold) % (VOCABULARY - FIRST_TOKEN)


def _folds(prints: Fingerprints, first: int) -> Fingerprints:
    return np.cumsum(mixed(prints) * POWERS[first : first + len(prints)], dtype=np.uint64)


def fold(prints: Fingerprints, first: int) -> list[int]:
    """Return the fold of read fingerprints up to each of them; `first` is the first position."""
    folds: list[int] = _folds(prints, first).tolist()
    return folds


class Chain:
    """A request's own content in the first epoch: fingerprints by position, and greedy answers."""

    def __init__(
        self,
        prompt: Sequence[int],
        groups: Sequence[GroupKind],
        *,
        namespace: Namespace = SHARED,
        spans: Sequence[Span] = (),
        embedded: int = 0,
        given: Sequence[int] = (),
    ) -> None:
        """`given`: tokens after the prompt that follow from a recording instead of the fold."""
        self.tokens = list(prompt)
        """The prompt, then every answer that was asked for."""
        self.prompt = len(prompt)
        self._groups = tuple((group.visibility, group.layers) for group in groups)
        self._root = int(root(namespace))
        self._given = [*prompt, *given]
        self.prints: Fingerprints = np.zeros(max(64, 2 * len(prompt)), np.uint64)
        """Fingerprint by position; those of `tokens` are set."""
        self._sums = self.prints.copy()
        self._folds = np.zeros(len(self.prints) + 1, np.uint64)
        self._fill(sums(self.tokens, spans=spans, embedded=embedded))

    def _fill(self, totals: Fingerprints) -> None:
        n = len(totals)
        self._sums[:n] = totals
        self.prints[:n] = mixed(totals) ^ np.uint64(self._root)
        self._folds[1 : n + 1] = _folds(self.prints[:n], 0)

    def ensure(self, length: int) -> None:
        """Answer greedily until `length` tokens are known."""
        while len(self.tokens) < length:
            self._append(self.answer(len(self.tokens) - 1))

    def _append(self, token: int) -> None:
        at = len(self.tokens)
        if at >= len(self.prints):
            self._grow()
        total = self._total(at) + term(token, at) & MASK
        own = mix(total) ^ self._root
        self._sums[at], self.prints[at] = total, own
        self._folds[at + 1] = int(self._folds[at]) + mix(own) * int(POWERS[at]) & MASK
        self.tokens.append(token)

    def _total(self, length: int) -> int:
        """Return the sum over the first `length` positions."""
        return int(self._sums[length - 1]) if length else 0

    def _grow(self) -> None:
        more = np.zeros(len(self.prints), np.uint64)
        self.prints = np.concatenate([self.prints, more])
        self._sums = np.concatenate([self._sums, more])
        self._folds = np.concatenate([self._folds, more])

    def answer(self, position: int) -> int:
        """Return the token that follows `position`, whose tokens up to there must be known."""
        if position + 1 < len(self._given):
            return self._given[position + 1]
        total = sum(self.part(each, position) * layers for each, layers in self._groups)
        return token_of(total & MASK)

    def part(self, visibility: Visibility, position: int) -> int:
        """Return the fold over the content that one layer of a group reads at a position."""
        start = visibility.first_read(position)
        return int(self._folds[position + 1]) - int(self._folds[start])

    def branch(self, length: int, drafts: Sequence[int]) -> Fingerprints:
        """Return fingerprints of all positions if `drafts` followed the first `length` tokens."""
        self.ensure(length)
        if not drafts:
            return self.prints[:length]
        prints = np.empty(length + len(drafts), np.uint64)
        prints[:length] = self.prints[:length]
        total = self._total(length)
        for at, token in enumerate(drafts, length):
            total = total + term(token, at) & MASK
            prints[at] = mix(total) ^ self._root
        return prints
