"""Shadow memory of a real engine: what its own calls hand to its kernels, judged afterwards.

Hooks note slots and tables of each launch as the host has them. The tokens of a request are known
when it has ended, also under asynchronous scheduling, so launches are judged then, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.kernels.canary.fingerprints import PADDING, Prints, prefix_prints

Ints = npt.NDArray[np.int64]
MOST = 20
"""Wrong reads that are described; later ones are counted."""


class Reads(NamedTuple):
    """A row of one group in a launch."""

    table: Ints
    """Block of each entry."""
    slots: Ints
    """Slot of each token that is computed; negative: none."""


class Row(NamedTuple):
    """A request in a launch."""

    request: str
    start: int
    """Position of the first token that is computed."""
    groups: tuple[Reads, ...]


class Launch(NamedTuple):
    """One step of the engine."""

    rows: tuple[Row, ...]
    padding: tuple[Ints, ...] = ()
    """Slots that rows of padding write, of each group."""
    copies: tuple[tuple[int, int], ...] = ()
    """Blocks that are copied before anything is written, (source, target)."""


class Group(NamedTuple):
    """A group of layers with one block table."""

    block_size: int
    window: int = 0
    """Tokens that are visible; 0: all."""


@dataclass
class Tables:
    """The launches of one engine."""

    groups: Sequence[Group]
    pages: int
    launches: list[Launch] = field(default_factory=list)
    checked: int = 0
    """Slots judged."""
    wrong: int = 0
    """Slots that held something else."""

    def __post_init__(self) -> None:
        sizes = (each.block_size for each in self.groups)
        self._words = [np.zeros((self.pages, size), np.int64) for size in sizes]
        self._steps = 0

    def judge(self, tokens: Mapping[str, Sequence[int]], salts: Mapping[str, int]) -> list[str]:
        """Return the wrong reads of the launches since the last call, in words, and forget them.

        `tokens`: all ids of each request, at least those that were computed.
        """
        prints = {name: prefix_prints(ids, salts.get(name, 0)) for name, ids in tokens.items()}
        told: list[str] = []
        for launch in self.launches:
            for source, target in launch.copies:
                for words in self._words:
                    words[target] = words[source]
            for row in launch.rows:
                self._write(row, prints[row.request])
            for words, slots in zip(self._words, launch.padding, strict=False):
                words.reshape(-1)[slots[slots >= 0]] = PADDING
            for row in launch.rows:
                told += self._read(row, prints)
            self._steps += 1
        self.launches.clear()
        return told[:MOST]

    def _write(self, row: Row, own: Prints) -> None:
        for group, reads in enumerate(row.groups):
            written = reads.slots >= 0
            values = own[row.start : row.start + len(reads.slots)]
            slots = reads.slots[written]
            for other, words in enumerate(self._words):
                if other == group:
                    words.reshape(-1)[slots] = values[written]
                else:  # groups share their blocks
                    words[np.unique(slots // self.groups[group].block_size)] = 0

    def _read(self, row: Row, prints: Mapping[str, Prints]) -> list[str]:
        found = []
        for group, (reads, words) in enumerate(zip(row.groups, self._words, strict=True)):
            size, window = self.groups[group]
            first = max(0, row.start + 1 - window) if window else 0
            positions = np.arange(first, row.start + len(reads.slots))
            blocks = reads.table[positions // size]
            held = words[blocks, positions % size]
            bad = np.flatnonzero(held != prints[row.request][positions])
            self.checked += len(positions)
            self.wrong += len(bad)
            if len(bad):
                at = bad[0]
                found.append(
                    f"step {self._steps}: {row.request} reads position {positions[at]} in block "
                    f"{blocks[at]} of group {group}: {_whose(int(held[at]), prints)}; "
                    f"{len(bad)} of {len(positions)} slots hold something else"
                )
        return found


def _whose(word: int, prints: Mapping[str, Prints]) -> str:
    """Say what a slot holds."""
    if not word:
        return "nothing was written there"
    if word == PADDING:
        return "a row of padding wrote it"
    for name, own in prints.items():
        places = np.flatnonzero(own == word)
        if len(places):
            return f"it holds position {places[0]} of {name}"
    return "it holds tokens that no request has"
