"""Fingerprints: 64 bits for everything that determines the content at a position (H1, H6).

These are all tokens up to the position, the spans begun so far, the namespace, and the epoch.
Tokens and spans add to a polynomial hash modulo 2**64 with a final mix, so the fingerprints of a
prompt are one cumulative sum over an array, and one more token costs one more term. Namespace and
epoch change every fingerprint alike. Two different histories agree with a chance of 2**-64.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from kvproof.harness.model.records import SHARED, Namespace, Span

Fingerprints = npt.NDArray[np.uint64]

POISON = np.uint64(0)
"""Content of a slot that was never written."""
MASK = (1 << 64) - 1
LONGEST = 1 << 17
"""Tokens of the longest sequence whose multipliers are kept."""
_STEP = 0x9E3779B97F4A7C15
_C1, _C2 = 0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53
_ROW = np.int64(1 << 40)
"""Added to the number of a row of embeddings: no id is so large."""
ZERO = 1 << 63
"""Number of the token 0, which alone would add nothing: 0 is the fixed point of `mix`."""


def mix(value: int) -> int:
    """Return a bijective hash of 64 bits."""
    value ^= value >> 33
    value = value * _C1 & MASK
    value ^= value >> 33
    value = value * _C2 & MASK
    return value ^ value >> 33


def mixed(values: Fingerprints) -> Fingerprints:
    """Return `mix` of every element."""
    shift = np.uint64(33)
    values = (values ^ (values >> shift)) * np.uint64(_C1)
    values = (values ^ (values >> shift)) * np.uint64(_C2)
    return values ^ (values >> shift)


def number(text: str) -> int:
    """Return 64 bits that stand for a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def digest(*fields: object) -> np.uint64:
    """Return 64 bits that stand for these fields."""
    return np.uint64(number(repr(fields)))


def _powers(count: int) -> Fingerprints:
    return np.cumprod(np.full(count, _STEP, np.uint64), dtype=np.uint64)


POWERS = _powers(LONGEST)
"""Multiplier of each position."""


def powers(first: int, stop: int) -> Fingerprints:
    """Return the multipliers of positions [first, stop)."""
    return POWERS[first:stop] if stop <= LONGEST else _powers(stop)[first:]


def term(token: int, position: int) -> int:
    """Return the addend of a token to the sums from its position on."""
    return mix((token or ZERO) & MASK) * int(POWERS[position])


def terms(tokens: Sequence[int], first: int = 0, embedded: int = 0) -> Fingerprints:
    """Return each token's addend to the sums from its position on; `first` is that of tokens[0].

    The first `embedded` tokens are rows of embeddings, which equal no id.
    """
    values = np.array(tokens, dtype=np.int64)
    if embedded:
        values[:embedded] += _ROW
    numbers = values.view(np.uint64)
    numbers[values == 0] = ZERO
    return mixed(numbers) * powers(first, first + len(numbers))


@lru_cache(maxsize=1_024)
def mark(span: Span) -> int:
    """Return the addend of a span to the sums from its first position on."""
    return number(repr(("span", span.kind, span.start, span.length, span.content)))


def epoch_key(epoch: int) -> int:
    """Return the number that separates content of one epoch from that of others; 0: the first."""
    return mix(epoch)


@lru_cache(maxsize=1_024)
def root(namespace: Namespace, epoch: int = 0) -> np.uint64:
    """Return the number that separates content of a namespace and epoch from other content.

    It is 0 for requests without a namespace in the first epoch.
    """
    fields = (namespace.adapter, namespace.adapter_version, namespace.salt, namespace.key)
    own = number(repr(("root", *fields))) if namespace != SHARED else 0
    return np.uint64(own ^ epoch_key(epoch))


def sums(
    tokens: Sequence[int], *, first: int = 0, spans: Sequence[Span] = (), embedded: int = 0
) -> Fingerprints:
    """Return the sum of what positions from `first` on add, up to each of them."""
    # sums wrap around on purpose: numpy warns about that for scalars, not for arrays
    added = terms(tokens, first, embedded)
    for span in spans:
        if first <= span.start < first + len(added):  # malformed spans are judged elsewhere
            added[span.start - first : span.start - first + 1] += np.uint64(mark(span))
    return np.cumsum(added, dtype=np.uint64)


def fingerprints(
    tokens: Sequence[int],
    *,
    namespace: Namespace = SHARED,
    spans: Sequence[Span] = (),
    embedded: int = 0,
    epoch: int = 0,
) -> Fingerprints:
    """Return one fingerprint per position of a request."""
    return mixed(sums(tokens, spans=spans, embedded=embedded)) ^ root(namespace, epoch)


def moved(
    prints: Fingerprints, old: tuple[Namespace, int], new: tuple[Namespace, int]
) -> Fingerprints:
    """Return the fingerprints of the same tokens and spans in another (namespace, epoch)."""
    return prints if old == new else prints ^ (root(*old) ^ root(*new))
