"""The bytes of one tensor of the engine, wherever they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kvproof.suites.reference.transfer.oracle import POISON, Bytes, Index


class PageMemory:
    """Flat bytes; writes are enqueued on the current stream if they lie on a GPU."""

    def __init__(self, nbytes: int, device: torch.device) -> None:
        self.flat = torch.full((nbytes,), POISON, dtype=torch.uint8, device=device)

    def read(self) -> Bytes:
        """Return the bytes as they are when all work of the current stream is done."""
        found: Bytes = self.flat.cpu().numpy()
        return found

    def write(self, where: Index, data: Bytes) -> None:
        """Put bytes to places."""
        if self.flat.device.type == "cpu":
            self.read()[where] = data
        else:
            self.flat[self._there(where)] = self._there(data)

    def _there(self, array: np.ndarray[Any, np.dtype[Any]]) -> torch.Tensor:
        """Copy an array; from pinned memory, because other copies wait for the stream."""
        pinned = torch.from_numpy(np.ascontiguousarray(array)).pin_memory()
        return pinned.to(self.flat.device, non_blocking=True)
