"""Workers of one engine: which heads, and which blocks of a prompt, each of them has (D1, Q4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Cache: TypeAlias = NDArray[np.int64]
"""Pages of one worker: [layer, block, head, offset, word], however they lie in memory."""
_AXES = "LBHN"
LAYOUTS = tuple(
    "".join(each) + "C" for each in permutations(_AXES) if each.index("N") > each.index("B")
)
"""Orders of layer, block, head and token in memory, the slowest first."""


@dataclass(frozen=True)
class Workers:
    """All workers of an engine, alike but for their rank."""

    count: int
    heads: int
    """Heads of the model; 0: one latent head, which each worker holds."""
    block_size: int
    context: int = 1
    """Ranks that share the blocks of a prompt, in turns: 1, or all of them."""

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that leave a head or a block without one place."""
        if self.context not in (1, self.count):
            raise ValueError(f"{self.context} context ranks of {self.count} workers: 1 or all")
        if self.context > 1 and self.heads:
            raise ValueError("context ranks share latent heads only")
        if self.heads and self.heads % self.count and self.count % self.heads:
            raise ValueError(f"{self.count} workers cannot share {self.heads} heads evenly")

    def heads_of(self, rank: int) -> range:
        """Return the heads of a worker."""
        if not self.heads:
            return range(1)
        first = rank * self.heads // self.count
        return range(first, first + max(1, self.heads // self.count))

    def holds(self, rank: int, position: int) -> bool:
        """Whether a worker has a position of a prompt (Q4)."""
        return position // self.block_size % self.context == rank % self.context

    def slot(self, table: Sequence[int], position: int) -> tuple[int, int]:
        """Return block and offset of a position, on the workers that hold it."""
        return table[position // self.block_size // self.context], position % self.block_size


def cache(layout: str, layers: int, blocks: int, heads: int, block_size: int, words: int) -> Cache:
    """Return empty pages whose axes lie in memory in the order of the layout."""
    sizes = dict(zip(_AXES, (layers, blocks, heads, block_size), strict=True))
    memory = np.zeros([*(sizes[axis] for axis in layout[:-1]), words], np.int64)
    return memory.transpose([*(layout.index(axis) for axis in _AXES), 4])
