"""Workers of one engine: which heads, and which tokens of a prompt, each of them has (D1, Q4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Cache: TypeAlias = NDArray[np.int64]
"""Pages of one layer: [block, head, offset, word], however they lie in memory."""
Slot: TypeAlias = tuple[int, int]
"""Block and offset."""
_AXES = "LBHN"
LAYOUTS = tuple(
    "".join(each) + "C" for each in permutations(_AXES) if each.index("N") > each.index("B")
)
"""Orders of layer, block, head and token in memory, the slowest first."""


class Layer(Protocol):
    """One kind of layer on the workers of a stage, alike but for their rank."""

    @property
    def count(self) -> int:
        """Number of ranks."""

    def heads_of(self, rank: int) -> Sequence[int]:
        """Return the heads, or channels, of a rank."""

    def holds(self, rank: int, position: int) -> bool:
        """Whether a rank has a position of a prompt."""

    def slot(self, table: Sequence[int], position: int) -> Slot:
        """Return the slot of a position, on the ranks that hold it."""

    def needed(self, start: int, end: int) -> range:
        """Return the positions that are moved for a prompt of which `start` tokens are cached."""


@dataclass(frozen=True)
class Workers:
    """Layers that keep all tokens."""

    count: int
    heads: int
    """Heads of the model; 0: one latent head, which each worker holds."""
    block_size: int
    context: int = 1
    """Ranks that share the tokens of a prompt, in turns: 1, or all of them."""
    interleave: int = 0
    """Tokens of a turn; 0: those of a block."""

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that leave a head or a token without one place."""
        if self.context not in (1, self.count):
            raise ValueError(f"{self.context} context ranks of {self.count} workers: 1 or all")
        if self.context > 1 and self.heads:
            raise ValueError("context ranks share latent heads only")
        if self.heads and self.heads % self.count and self.count % self.heads:
            raise ValueError(f"{self.count} workers cannot share {self.heads} heads evenly")
        if self.block_size % self._turn:
            raise ValueError(f"turns of {self._turn} tokens do not fill {self.block_size}")

    @property
    def _turn(self) -> int:
        return self.interleave or self.block_size

    def heads_of(self, rank: int) -> range:
        """Return the heads of a rank."""
        if not self.heads:
            return range(1)
        first = rank * self.heads // self.count
        return range(first, first + max(1, self.heads // self.count))

    def holds(self, rank: int, position: int) -> bool:
        """Whether a rank has a position of a prompt (Q4)."""
        return position // self._turn % self.context == rank % self.context

    def slot(self, table: Sequence[int], position: int) -> Slot:
        """Return the slot of a position, on the ranks that hold it."""
        block, within = divmod(position, self.block_size * self.context)
        turn = within // (self._turn * self.context)
        return table[block], turn * self._turn + position % self._turn

    def needed(self, start: int, end: int) -> range:
        """Return all tokens that are not cached."""
        return range(start, end)


@dataclass(frozen=True)
class WindowWorkers(Workers):
    """Layers that see a window of tokens; the blocks before it are gone on both sides (X1)."""

    window: int = 1

    def needed(self, start: int, end: int) -> range:
        """Return the tokens that the next one sees and that are not cached."""
        return range(max(start, end - self.window + 1), end)


@dataclass(frozen=True)
class StateWorkers:
    """Layers with a state: each rank has its share of each part, whole or not at all (S1)."""

    count: int
    parts: tuple[int, ...]
    """Channels of the parts that ranks share."""

    def __post_init__(self) -> None:
        """Raises ValueError for parts that cannot be shared evenly."""
        if any(part % self.count for part in self.parts):
            raise ValueError(f"{self.count} workers cannot share states of {self.parts} channels")

    def heads_of(self, rank: int) -> list[int]:
        """Return the channels of a rank."""
        starts = [sum(self.parts[:each]) for each in range(len(self.parts))]
        shares = [part // self.count for part in self.parts]
        return [
            start + rank * share + each
            for start, share in zip(starts, shares, strict=True)
            for each in range(share)
        ]

    def holds(self, rank: int, position: int) -> bool:
        """Whether a rank has its share; all have."""
        del rank, position
        return True

    def slot(self, table: Sequence[int], position: int) -> Slot:
        """Return the row of the request."""
        del position
        return table[0], 0

    def needed(self, start: int, end: int) -> range:
        """Return the end of the prompt: a state is that after all of its tokens."""
        del start
        return range(end, end + 1)


def stage_of(layer: int, layers: int, stages: int) -> int:
    """Return the pipeline stage of a layer: each has as many, the last one the rest as well."""
    return min(layer // (layers // stages), stages - 1)


def cache(layout: str, layers: int, blocks: int, heads: int, block_size: int, words: int) -> Cache:
    """Return empty pages [layer, block, head, offset, word], in the layout's order in memory."""
    sizes = dict(zip(_AXES, (layers, blocks, heads, block_size), strict=True))
    memory = np.zeros([*(sizes[axis] for axis in layout[:-1]), words], np.int64)
    return memory.transpose([*(layout.index(axis) for axis in _AXES), 4])
