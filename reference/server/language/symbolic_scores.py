"""A distribution for the symbolic model, made of the hidden words that its memory gave.

It has no mathematics: the chances of the next token are hashes of the last hidden word, except
that the token which follows is the likeliest. So a wrong table, a stale block or an old state,
which changes a hidden word, changes every log-probability after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.reference.model.symbolic import next_token
from kvproof.reference.model.symbolic_layers import MASK
from kvproof.reference.server.language.language import Score

CHANCES = 4
"""Salt of the hash, unequal to those of tokens, drafts and experts."""
SPREAD = 4.0
"""Logits of all tokens but the next one lie in [0, SPREAD)."""
LIKELIEST = 10.0
"""Logit of the next token: about six times in seven, with 258 tokens."""
_ROWS = 1024
"""Positions that are scored together."""
_SALT = np.uint64(CHANCES * 0x9E3779B97F4A7C15 & MASK)
_STIR = np.uint64(0xBF58476D1CE4E5B9)
_Words: TypeAlias = npt.NDArray[np.uint64]


def score_words(
    hidden: Sequence[int], tokens: Sequence[int], top: int, *, vocabulary: int, answers: int
) -> list[Score]:
    """Score one token after each hidden word, with the `top` likeliest of the vocabulary.

    `answers`: number of first token ids that the model may output.
    """
    found: list[Score] = []
    for start in range(0, len(tokens), _ROWS):
        words, some = hidden[start : start + _ROWS], tokens[start : start + _ROWS]
        logprobs = _logprobs(words, [next_token(word, answers) for word in words], vocabulary)
        found += [_score(row, token, top) for row, token in zip(logprobs, some, strict=True)]
    return found


def _logprobs(
    words: Sequence[int], following: Sequence[int], vocabulary: int
) -> npt.NDArray[np.float64]:
    """Return natural logarithms [words, vocabulary]."""
    logits = _unit(words, vocabulary) * SPREAD
    logits[np.arange(len(words)), following] = LIKELIEST
    totals: npt.NDArray[np.float64] = np.log(np.exp(logits).sum(-1, keepdims=True))
    return logits - totals


def _unit(words: Sequence[int], vocabulary: int) -> npt.NDArray[np.float64]:
    """Hash each word with each token, as `mix` does, to a number in [0, 1)."""
    tokens = np.arange(vocabulary, dtype=np.uint64)
    word: _Words = np.add.outer(np.array(words, np.uint64), tokens)
    word ^= _SALT
    word ^= word >> np.uint64(30)
    word *= _STIR
    word ^= word >> np.uint64(27)
    unit: npt.NDArray[np.float64] = (word >> np.uint64(11)).astype(np.float64) / 2.0**53
    return unit


def _score(logprobs: npt.NDArray[np.float64], token: int, top: int) -> Score:
    best = np.argsort(-logprobs, kind="stable")[:top]
    pairs = tuple(zip(best.tolist(), logprobs[best].tolist(), strict=True))
    rank = int((logprobs >= logprobs[token]).sum())
    return Score(token, float(logprobs[token]), pairs, rank)
