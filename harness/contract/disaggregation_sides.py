"""One side of the suite `disaggregation`: its workers, and the slots that each of them has.

All sides serve one model. A layer is of a kind: `f`, all tokens; `w`, those of a window; `s`, one
state for each prompt. Worker n has rank n mod `ranks`, and the layers of stage n // `ranks`. Rank r
of n has the heads from r * heads // n on, heads // n of them and at least one; a latent head is on
all ranks. Of `context` ranks, token t lies on rank t // `interleave` mod `context`. A state
consists of parts (`PARTS`), and each rank has its share of each part.
It runs inside the engine's environment: Python 3.10.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

WORDS = 2
"""64-bit words of a slot."""
PARTS = (8, 8, 16, 8)
"""Channels of the parts of a state: three of its convolution, and the heads of its recurrence."""
ROWS = 5
"""Rows of a pool of states; row 0 is not used."""
Words: TypeAlias = NDArray[np.int64]
_MIX = np.uint64(0x9E3779B97F4A7C15)


def words(
    prompt: int, layers: Sequence[int], heads: Sequence[int], positions: Sequence[int]
) -> Words:
    """Return the content of slots, unlike for each: [layer, head, position, word]."""
    sizes = len(layers), len(heads), len(positions)
    mixed = np.full(sizes, prompt + 1, np.uint64)
    for axis, values in enumerate((layers, heads, positions)):
        shape = [-1 if each == axis else 1 for each in range(3)]
        each = np.asarray(values, np.uint64).reshape(shape)
        mixed = (mixed ^ (mixed >> np.uint64(29))) * _MIX + each + np.uint64(1)
    return np.stack([mixed, ~mixed], -1).view(np.int64)


class Tables(NamedTuple):
    """Where a side has a prompt."""

    blocks: list[int]
    window: list[int]
    """As long as `blocks`; 0 for blocks that lie before the window."""
    row: int
    """Row of the pool of states."""


class Filled(NamedTuple):
    """Slots of one layer on one worker."""

    blocks: NDArray[np.int64]
    offsets: NDArray[np.int64]
    positions: list[int]
    words: Words
    """[head, position, word]."""


@dataclass(frozen=True)
class Side:
    """All workers of an engine."""

    ranks: int
    block_size: int
    blocks: int
    """Blocks of each worker's pools."""
    heads: int
    layers: int
    layout: str
    """One of the layouts in the traits."""
    kernel: int = 0
    """Tokens of a kernel block; 0: those of a block."""
    context: int = 1
    """Ranks that share the blocks of a prompt: 1, or all of them."""
    latent: bool = False
    interleave: int = 0
    """Tokens that go to a context rank in its turn; 0: those of a block."""
    stages: int = 1
    """Pipeline stages; each has as many layers, the last one the rest as well."""
    kinds: str = "f"
    """Kinds of the layers, from the first on and again."""
    window: int = 0
    """Tokens that a layer of kind `w` sees, its own one among them."""

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.ranks * self.stages

    def kind(self, layer: int) -> str:
        """Return the kind of a layer."""
        return self.kinds[layer % len(self.kinds)]

    def layers_of(self, worker: int) -> range:
        """Return the layers of a worker."""
        stage, each = worker // self.ranks, self.layers // self.stages
        return range(stage * each, self.layers if stage == self.stages - 1 else (stage + 1) * each)

    def of_rank(self, worker: int) -> range:
        """Return the heads of a worker."""
        if self.latent:
            return range(1)
        first = worker % self.ranks * self.heads // self.ranks
        return range(first, first + max(1, self.heads // self.ranks))

    def channels_of(self, worker: int) -> list[int]:
        """Return the channels of a state that a worker has."""
        rank, start, found = worker % self.ranks, 0, list[int]()
        for part in PARTS:
            share = part // self.ranks
            found += range(start + rank * share, start + (rank + 1) * share)
            start += part
        return found

    def units(self, worker: int, layer: int) -> Sequence[int]:
        """Return the heads, or channels, of a worker in a layer."""
        return self.channels_of(worker) if self.kind(layer) == "s" else self.of_rank(worker)

    def shape(self, worker: int, layer: int) -> tuple[int, int, int, int]:
        """Return the shape of a layer's pool, [block, unit, offset, word]; a state is one slot."""
        units = len(self.units(worker, layer))
        if self.kind(layer) == "s":
            return ROWS, units, 1, WORDS
        return self.blocks, units, self.block_size, WORDS

    def start(self, cached: int, tokens: int) -> int:
        """Return the first position that is not in the cached blocks of a table."""
        return min(tokens, cached * self.block_size * self.context)

    def first(self, tokens: int) -> int:
        """Return the first position that the token after a prompt sees in a window."""
        return max(0, tokens - self.window + 1)

    def holds(self, worker: int, position: int) -> bool:
        """Whether a worker has the slot of a position."""
        turn = position // (self.interleave or self.block_size)
        return turn % self.context == worker % self.ranks % self.context

    def held(self, worker: int, end: int, start: int = 0) -> list[int]:
        """Return the positions from `start` to `end` of which a worker has the slots."""
        return [p for p in range(start, end) if self.holds(worker, p)]

    def slots(
        self, table: Sequence[int], positions: Sequence[int]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return blocks and offsets of positions, on the workers that hold them."""
        at = np.asarray(positions, np.int64)
        turn = self.interleave or self.block_size
        whole = self.block_size * self.context
        blocks = np.asarray([*table, 0], np.int64)[at // whole]
        return blocks, at % whole // (turn * self.context) * turn + at % turn

    def filled(
        self, worker: int, layer: int, tables: Tables, prompt: tuple[int, int], end: int
    ) -> Filled:
        """Return the slots of a layer for a prompt (its number and length) up to `end`."""
        number, tokens = prompt
        units = self.units(worker, layer)
        if self.kind(layer) == "s":
            positions = [tokens] if end == tokens else []
            blocks = np.full(len(positions), tables.row, np.int64)
            offsets = np.zeros_like(blocks)
        else:
            windowed = self.kind(layer) == "w"
            positions = self.held(worker, end, self.first(tokens) if windowed else 0)
            table = tables.window if windowed else tables.blocks
            blocks, offsets = self.slots(table, positions)
        return Filled(blocks, offsets, positions, words(number, [layer], units, positions)[0])

    def position(self, worker: int, index: int, offset: int) -> int:
        """Return the position of a slot in the block of a table; -1 for no block of it."""
        turn = self.interleave or self.block_size
        within = (offset // turn * self.context + worker % self.ranks % self.context) * turn
        whole = index * self.context * self.block_size + within + offset % turn
        return whole if index >= 0 else -1

    def length(self, tokens: int) -> int:
        """Return the number of blocks in a table."""
        return -(-tokens // (self.block_size * self.context))

    def windowed(self, table: Sequence[int], tokens: int) -> list[int]:
        """Return a window's table: 0 for the blocks that lie before it."""
        before = self.first(tokens) // (self.block_size * self.context)
        return [0] * before + [*table[before : self.length(tokens)]]
