"""Scales of the symbolic model: a value of 64 bits and its scale are a word together (Q8).

Pages of FP8 or INT4 are right only with their scales, which engines keep in tensors of their own.
Here a scale follows from its word, so an old one, or that of another entry, gives another word.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.reference.core.attention_groups import GroupConfig, Layout
from kvproof.reference.core.validation import require

Words: TypeAlias = npt.NDArray[np.uint64]


def scales_of(words: Words) -> Words:
    """Return the scale of each word, a hash of it."""
    return words * np.uint64(0x9E3779B97F4A7C15) ^ (words >> np.uint64(29))


def check_scaled(scaled: Sequence[int], groups: tuple[GroupConfig, ...]) -> frozenset[int]:
    """Return groups with scales. Raises ConfigError for a group without entries (Q8)."""
    able = [index for index, group in enumerate(groups) if group.kind != "state"]
    for index in scaled:
        require(index in able, "scaled", index, f"one of {able}: states have no scales", 0)
    return frozenset(scaled)


def scaled_columns(layout: Layout, scaled: frozenset[int]) -> dict[str, list[int]]:
    """Return part -> places, in the ids of a unit, of the blocks with scales (Q8)."""
    parts = {"full": layout.full} | {f"local{at}": rule for at, rule in enumerate(layout.local)}
    found = {}
    for part, rule in parts.items():
        members = [member for member in rule.members if member.group in scaled]
        places = [each.offset + block for each in members for block in range(each.ratio)]
        if places:
            found[part] = places
    return found
