"""The block table of a batch where kernels and CUDA graphs read it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from kvproof.kernels.block_expand.launch import block_expand
from kvproof.kernels.checks import require


class ExpandedTable:
    """A manager's block table, expanded on the device into a buffer that never moves (K4).

    Capacity is counted in kernel blocks, as kernels do: a graph that was captured with the buffer
    `kernel_blocks` sees every table that is put there later. Blocks travel, kernel blocks do not:
    the expansion runs on the device, so that the copy is `ratio` times shorter.
    """

    def __init__(
        self, *, rows: int, kernel_blocks: int, ratio: int, device: torch.device | str
    ) -> None:
        require(
            rows >= 1 and ratio >= 1 and kernel_blocks >= ratio,
            f"a table of {rows} rows, {kernel_blocks} kernel blocks each, at ratio {ratio}"
            " holds no block",
        )
        self.device = torch.device(device)
        self.ratio = ratio
        on_gpu = self.device.type == "cuda"
        blocks = kernel_blocks // ratio
        self.kernel_blocks = torch.full(
            (rows, kernel_blocks), -1, dtype=torch.int32, device=self.device
        )
        self._staged = torch.empty(rows * blocks, dtype=torch.int32, pin_memory=on_gpu)
        self._host: npt.NDArray[np.int32] = self._staged.numpy()
        self._blocks = torch.empty(rows * blocks, dtype=torch.int32, device=self.device)
        self._copied = torch.cuda.Event() if on_gpu else None

    def put(self, table: npt.NDArray[np.int32]) -> torch.Tensor:
        """Expand a table [rows, blocks] into the buffer, in order with the current stream.

        The table may be changed as soon as this returns. What lies beyond it in the buffer stays.

        Returns:
            [rows, blocks * ratio] int32, a view of the buffer.

        Raises:
            ArgumentError: The table is larger than the buffer.

        """
        rows, width = self._fitting(table)
        count = rows * width
        if self._copied is not None:
            self._copied.synchronize()
        np.copyto(self._host[:count].reshape(rows, width), table)
        blocks = self._blocks[:count]
        blocks.copy_(self._staged[:count], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return block_expand(blocks.view(rows, width), ratio=self.ratio, out=self.kernel_blocks)

    def _fitting(self, table: npt.NDArray[np.int32]) -> tuple[int, int]:
        require(
            table.ndim == 2 and table.dtype == np.int32,
            f"table is {table.dtype} of {table.ndim} dimensions, expected int32 [rows, blocks]",
        )
        rows, width = table.shape
        most_rows, most = self.kernel_blocks.shape
        require(
            rows <= most_rows and width * self.ratio <= most,
            f"{rows} rows of {width} blocks are {width * self.ratio} kernel blocks each;"
            f" the buffer holds {most_rows} rows of {most}",
        )
        return rows, width
