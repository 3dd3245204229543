"""Fingerprints of a live engine: 64 bits for all tokens of a request up to a position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

Prints: TypeAlias = npt.NDArray[np.int64]

GOLDEN: Final = 0x9E3779B97F4A7C15
FIRST: Final = 0xBF58476D1CE4E5B9
SECOND: Final = 0x94D049BB133111EB
"""Constants of splitmix64; the kernels use the same ones."""
PADDING: Final = -0x0BAD
"""Word that a row of padding leaves in a slot that it writes."""


def prefix_prints(tokens: Sequence[int], salt: int = 0) -> Prints:
    """Return the fingerprint of each prefix of `tokens`, [tokens].

    It is the sum of a hash of each token at its place and of `salt`, which stands for the name
    space: a sum is the same for any chunks, and each chunk can be computed at once.
    """
    ids = np.asarray(tokens, np.int64).astype(np.uint64)
    x = (np.arange(len(ids), dtype=np.uint64) << np.uint64(32)) + ids + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(SECOND)
    x ^= x >> np.uint64(31)
    return np.cumsum(x.view(np.int64), dtype=np.int64) + np.int64(salt)
