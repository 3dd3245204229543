"""Steps of one token per request, in buffers that never move: graphs may be captured on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kvproof.kernels.dispatch import ExpandedTable, kv_fill
from kvproof.reference.model_runner.batch import Batch
from kvproof.reference.model_runner.memory import PagedMemory
from kvproof.reference.model_runner.paged_attention import Entries

WARM_UP = 2
"""Forwards before a capture: libraries allocate in the first."""


class Decoding:
    """Inputs of the model and kernel, up to `rows` requests; expands kernel blocks (K4)."""

    def __init__(self, memory: PagedMemory, *, rows: int, tokens: int) -> None:
        """`tokens`: of the longest request."""
        self._memory, self.rows, self.tokens = memory, rows, tokens
        self.count = 0
        """Rows in use."""
        self.last: Entries | None = None
        self.graphs: dict[int, Graph] = {}
        """Number of rows -> graph."""
        self._lengths = torch.zeros(rows, dtype=torch.int32, device=memory.device)
        self._ids = self._numbers()
        self._positions: torch.Tensor | None = None
        self._slots: dict[int, torch.Tensor] = {}
        """[rows] page * tokens of a page + offset, of the new token in each group."""
        self._tables: dict[int, ExpandedTable] = {}
        for group, config in enumerate(memory.map.configs):
            if config.kind != "state":
                width = -(-tokens // config.block_size) * config.kernel_ratio
                self._tables[group] = ExpandedTable(
                    rows=rows, kernel_blocks=width, ratio=config.kernel_ratio, device=memory.device
                )
                self._slots[group] = self._numbers().view(-1)

    def _numbers(self) -> torch.Tensor:
        return torch.zeros((self.rows, 1), dtype=torch.int64, device=self._memory.device)

    # --- before a forward ---

    def put(self, batch: Batch, positions: torch.Tensor, *, rows: int) -> None:
        """Describe a batch, padded to `rows` with its first row, which repeats equal writes."""
        self.count = rows
        which = [*range(len(batch.rows)), *[0] * (rows - len(batch.rows))]
        chosen = torch.tensor(which, device=self._memory.device)
        self._ids[:rows] = batch.input_ids()[chosen]
        self._positions = _fitting(self._positions, positions, self.rows)
        self._positions[..., :rows, :] = positions[..., chosen, :]
        past = [batch.rows[row].done for row in which]
        lengths = torch.tensor(past, dtype=torch.int32, device=self._memory.device) + 1
        self._lengths[:rows] = lengths
        for group in self._tables:
            self._put_group(batch, group, which, max(past) + 1)

    def _put_group(self, batch: Batch, group: int, which: list[int], tokens: int) -> None:
        config = self._memory.map.configs[group]
        tables = np.stack([batch.rows[row].work.tables[group] for row in which])
        width = -(-tokens // config.block_size) * config.kernel_ratio
        blocks = tables[:, : width : config.kernel_ratio] // np.int32(config.kernel_ratio)
        self._tables[group].put(torch.from_numpy(np.ascontiguousarray(blocks)))
        past = np.array([[batch.rows[row].done] for row in which], np.int64)
        slots = self._memory.slots(group, list(tables), past, writes=1)
        flat = slots.pages * config.kernel_size + slots.offsets
        self._slots[group][: len(which)] = flat.view(-1)

    # --- in a forward ---

    @property
    def lengths(self) -> torch.Tensor:
        """See `Reader`."""
        return self._lengths[: self.count]

    def table(self, group: int) -> torch.Tensor:
        """See `Reader`."""
        return self._tables[group].kernel_blocks[: self.count]

    def take(
        self, group: int, pages: dict[str, torch.Tensor], keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new entries [rows, heads, 1, width] of a layer; returns them as they are."""
        slots = self._slots[group][: self.count]
        new = keys.squeeze(2), values.squeeze(2)
        kv_fill(*new, pages["keys"], pages["values"], slots=slots)
        window = self._memory.map.configs[group].size
        self.last = Entries(group, window, keys, pages["keys"], pages["values"])
        return keys, values

    def arguments(self) -> dict[str, torch.Tensor]:
        """Return tokens and positions of the rows in use."""
        assert self._positions is not None
        return {
            "input_ids": self._ids[: self.count],
            "position_ids": self._positions[..., : self.count, :],
        }


def _fitting(buffer: torch.Tensor | None, values: torch.Tensor, rows: int) -> torch.Tensor:
    """Keep a buffer if it holds rows of these values, [..., rows, 1]."""
    if buffer is not None:
        return buffer
    return torch.zeros((*values.shape[:-2], rows, 1), dtype=values.dtype, device=values.device)


class Graph:
    """One captured forward."""

    def __init__(self, forward: Callable[[], torch.Tensor]) -> None:
        """Raises RuntimeError if the forward waits for the GPU."""
        side, current = torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                forward()
        current.wait_stream(side)
        self._graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = forward()

    def replay(self) -> torch.Tensor:
        """Run it on the buffers as they are; returns logits that the next replay overwrites."""
        self._graph.replay()
        return self._logits


def room_for(count: int) -> int:
    """Return the least power of two that is not below a count: so many graphs are enough."""
    return 1 << (count - 1).bit_length()
