"""Copies of state rows around a step, and the rows of a batch (S3, S4, S10).

A row is one id: a row of the separate pool, or one block of a state in the shared pool. The order
within a step is: copies of KV blocks in, `StepCopies.restores`, forward, copies of KV blocks out,
`StepCopies.saves`, then publishing, unpinning, and the next step. Lists are plain host integers,
so planning them synchronises with no device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from kvproof.reference.core.block_pool import NULL_BLOCK, Ids

Offsets: TypeAlias = npt.NDArray[np.int32]
"""[batch, rows per state]"""

Copy: TypeAlias = tuple[Sequence[int], Sequence[int]]
"""(source, destination): the rows of two whole states."""


class Run(NamedTuple):
    """Copy rows [source, source + size) to [destination, destination + size)."""

    source: int
    destination: int
    size: int


class StepCopies(NamedTuple):
    """Copies around one step: `restores` before the forward pass, `saves` after it (S4)."""

    restores: list[Run]
    saves: list[Run]


def merge_runs(pairs: Iterable[tuple[int, int]], *, rows: int) -> list[Run]:
    """Merge (source, destination) pairs into as few runs as possible, in order of source (S3).

    A source may be copied to several destinations. Raises ValueError, with the values, for a
    destination that is written twice or also read, and for rows outside 1 .. rows - 1.
    """
    by_distance = sorted((destination - source, source) for source, destination in pairs)
    ordered = [(source, distance + source) for distance, source in by_distance]
    _check(ordered, rows)
    runs: list[Run] = []
    for source, destination in ordered:
        run = runs[-1] if runs else _NO_RUN
        if (source, destination) == (run.source + run.size, run.destination + run.size):
            runs[-1] = run._replace(size=run.size + 1)
        else:
            runs.append(Run(source, destination, 1))
    return sorted(runs)


_NO_RUN = Run(NULL_BLOCK, NULL_BLOCK, 0)
"""No copy follows on it, because none reads the null row."""


def _check(pairs: Sequence[tuple[int, int]], rows: int) -> None:
    sources = {source for source, _ in pairs}
    destinations = {destination for _, destination in pairs}
    wrong = sorted(row for row in sources | destinations if not NULL_BLOCK < row < rows)
    if wrong:
        raise ValueError(f"rows {wrong} are not in 1 .. {rows - 1}")
    if len(destinations) < len(pairs):
        written = [destination for _, destination in pairs]
        twice = sorted(row for row in destinations if written.count(row) > 1)
        raise ValueError(f"rows {twice} are the destination of more than one copy")
    both = sorted(sources & destinations)
    if both:
        raise ValueError(f"rows {both} are both read and written by the same list of copies")


def step_copies(restores: Iterable[Copy], saves: Iterable[Copy], *, rows: int) -> StepCopies:
    """Plan the copies of a step. Raises ValueError as `merge_runs` does, or for unequal sizes."""
    return StepCopies(merge_runs(_pairs(restores), rows=rows), merge_runs(_pairs(saves), rows=rows))


def _pairs(copies: Iterable[Copy]) -> list[tuple[int, int]]:
    return [
        pair for source, destination in copies for pair in zip(source, destination, strict=True)
    ]


class StateBatch(NamedTuple):
    """Rows of the requests of a batch, one line for each, null where there is no copy (S10)."""

    running: Offsets
    restore: Offsets
    """Where the state is copied from before the forward."""
    save: Offsets
    """Where it is copied to after the forward."""

    @classmethod
    def of(cls, states: Sequence[tuple[Ids, Ids | None, Ids | None]]) -> StateBatch:
        """Build from (running, restore, save) of each request; states are of equal size."""
        width = len(states[0][0]) if states else 0
        columns = zip(*states, strict=True) if states else ((), (), ())
        return cls(*(_offsets(column, width) for column in columns))

    def take(self, positions: Sequence[int]) -> StateBatch:
        """Re-order or shrink: line i of the result is line positions[i] of this batch."""
        chosen = np.asarray(positions, np.intp)
        return StateBatch(*(offsets[chosen] for offsets in self))

    def merge(self, other: StateBatch) -> StateBatch:
        """Append the lines of `other`; an empty batch fits every other."""
        if not len(self.running) or not len(other.running):
            return self if len(self.running) else other
        return StateBatch(*map(np.concatenate, zip(self, other, strict=True)))

    def copies(self, *, rows: int) -> StepCopies:
        """Plan the copies of the step that runs this batch. Raises as `merge_runs` does."""
        running, restore, save = (offsets.tolist() for offsets in self)
        restores = [copy for copy in zip(restore, running, strict=True) if any(copy[0])]
        saves = [copy for copy in zip(running, save, strict=True) if any(copy[1])]
        return step_copies(restores, saves, rows=rows)


def _offsets(column: Iterable[Ids | None], width: int) -> Offsets:
    lines = [[NULL_BLOCK] * width if ids is None else list(ids) for ids in column]
    return np.array(lines, np.int32).reshape(len(lines), width)
