"""The block table of a batch, for kernels and CUDA graphs."""

from __future__ import annotations

import torch

from kvproof.kernels.block_expand.launch import expand_into
from kvproof.kernels.checks import ArgumentError, dtype_of, require, shape_of


class ExpandedTable:
    """A block table, expanded on the device into a buffer at a fixed address (K4).

    Capacity is in kernel blocks: a graph that was captured with the buffer `kernel_blocks` sees
    every later table. Only blocks are transferred: the kernel reads them from pinned memory,
    `ratio` times fewer bytes than kernel blocks.
    """

    def __init__(
        self, *, rows: int, kernel_blocks: int, ratio: int, device: torch.device | str
    ) -> None:
        require(
            rows >= 1 and ratio >= 1 and kernel_blocks >= ratio,
            f"a table of {rows} rows, {kernel_blocks} kernel blocks each, at ratio {ratio}"
            " holds no block",
        )
        self.ratio = ratio
        self.kernel_blocks = torch.full(
            (rows, kernel_blocks), -1, dtype=torch.int32, device=torch.device(device)
        )
        on_gpu = self.kernel_blocks.is_cuda
        blocks = rows * (kernel_blocks // ratio)
        self._staged = torch.empty(blocks, dtype=torch.int32, pin_memory=on_gpu)
        self._read = torch.cuda.Event() if on_gpu else None

    def put(self, table: torch.Tensor) -> torch.Tensor:
        """Expand a table into the buffer, in order with the current stream.

        Args:
            table: [rows, blocks] int32 in host memory, for example `torch.from_numpy` of the array
                that a manager keeps. It may be changed as soon as this returns.

        Returns:
            [rows, blocks * ratio] int32, a view of the buffer; the rest of it is unchanged.

        Raises:
            ArgumentError: The table is larger than the buffer.

        """
        rows, width = self._fitting(table)
        target = self.kernel_blocks[:rows, : width * self.ratio]
        if not target.numel():
            return target
        if self._read is not None:
            self._read.synchronize()  # the staged table before this one may still be needed
        staged = self._staged[: rows * width].view(rows, width)
        staged.copy_(table)
        expand_into(target, staged, self.ratio)
        if self._read is not None:
            self._read.record()
        return target

    def _fitting(self, table: torch.Tensor) -> tuple[int, int]:
        shape_of("table", table, (None, None))
        dtype_of("table", table, (torch.int32,))
        rows, width = table.shape
        most_rows, most = self.kernel_blocks.shape
        if rows > most_rows or width * self.ratio > most:
            raise ArgumentError(
                f"{rows} rows of {width} blocks are {width * self.ratio} kernel blocks each;"
                f" the buffer holds {most_rows} rows of {most}"
            )
        return rows, width
