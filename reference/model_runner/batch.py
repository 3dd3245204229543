"""Rows of one forward pass, and their slots to read and write.

Rows of unequal past are right-aligned: every row ends in the last column, as in a left-padded
batch, so the model's own masks hold. Columns before a row begins read the null block, which is
zero, and never uninitialized memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvproof.reference.model.interface import Work
from kvproof.reference.model_runner.memory import Ints, PagedMemory, Slots


@dataclass
class Row:
    """One request on its way through a step, cut where a state has to be written."""

    work: Work
    cuts: list[int]
    """Ends of the segments that are left; the last is the end of the step."""
    done: int
    """Tokens computed."""
    state: torch.Tensor | None
    """Bytes after `done` tokens; None: the zero state."""

    @property
    def tokens(self) -> int:
        """Tokens of the next segment."""
        return self.cuts[0] - self.done


class Batch:
    """Segments of equal length; also equally fresh if the model has states."""

    def __init__(self, memory: PagedMemory, rows: Sequence[Row]) -> None:
        self.memory, self.rows = memory, rows
        self.tokens = rows[0].tokens
        past: Ints = np.array([[row.done] for row in rows], np.int64)
        self.past = int(past.max())
        """Tokens before the segment, in the longest row."""
        columns = np.arange(self.past + self.tokens, dtype=np.int64)[None]
        self.places: Ints = columns - (self.past - past)
        """[rows, columns] position of each column; negative: padding."""
        self.padded = bool((past < self.past).any())
        self._slots: dict[int, Slots] = {}

    @property
    def fresh(self) -> bool:
        """Return whether no row has a past."""
        return self.past == 0

    def visible(self, group: int) -> int:
        """Columns before the segment that a group reads; as many as a `DynamicCache` keeps."""
        size = self.memory.map.configs[group].size
        return min(self.past, size - 1) if size else self.past

    def slots(self, group: int) -> Slots:
        """Return the slots that a group reads, the segment's own last; computed once."""
        if group not in self._slots:
            places = self.places[:, -(self.visible(group) + self.tokens) :]
            tables = [row.work.tables[group] for row in self.rows]
            self._slots[group] = self.memory.slots(group, tables, places, writes=self.tokens)
        return self._slots[group]

    # --- arguments of the model ---

    def input_ids(self) -> torch.Tensor:
        """Return the tokens of the segments, [rows, tokens]."""
        ids = [row.work.tokens[row.done : row.cuts[0]] for row in self.rows]
        return torch.tensor(ids, dtype=torch.int64, device=self.memory.device)

    def position_ids(self) -> torch.Tensor:
        """Return the positions of the segments, [rows, tokens]."""
        return torch.from_numpy(self.places[:, -self.tokens :].copy()).to(self.memory.device)

    def attention_mask(self) -> torch.Tensor | None:
        """Return 1 for tokens and 0 for padding, [rows, columns]; None without padding."""
        if not self.padded:
            return None
        return torch.from_numpy((self.places >= 0).astype(np.int64)).to(self.memory.device)

    def states(self) -> torch.Tensor:
        """Return the states before the segments, [rows, bytes]."""
        states = [row.state for row in self.rows if row.state is not None]
        assert len(states) == len(self.rows), "a row that goes on has lost its state"
        return torch.stack(states)
