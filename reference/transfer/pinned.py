"""Foreign memory, registered so that a GPU copies from and to it without the CPU (G8, G9)."""

from __future__ import annotations

import logging
import weakref

import numpy as np
import torch

LOG = logging.getLogger("kvproof.transfer")


class PinError(RuntimeError):
    """The driver does not pin this memory; nothing of it is taken for pinned."""


class Pinned:
    """Pins a buffer, for example the memory of a cache server, until the last reference is gone.

    `cache_server.client.connect(..., on_map=Pinned)` pins what a client maps. Objects over views
    of it (`HostObject.over`) then move as those of memory of one's own do. Copies must have ended
    before it goes.
    """

    def __init__(self, memory: memoryview | bytearray) -> None:
        array = np.frombuffer(memory, np.uint8)
        self.memory = memory
        answer = int(torch.cuda.cudart().cudaHostRegister(array.ctypes.data, array.nbytes, 0))
        if answer:
            raise PinError(
                f"{array.nbytes} bytes cannot be pinned: CUDA answers {answer}; see `ulimit -l`"
            )
        end = weakref.finalize(self, _unpin, array.ctypes.data)
        end.atexit = False  # the driver may be gone before, and takes everything with it


def pin_if_possible(memory: memoryview) -> object:
    """Pin what a client of a cache server maps; unpinned memory costs a copy and no request."""
    try:
        return Pinned(memory)
    except PinError as error:
        LOG.warning("the memory of the cache server stays pageable: %s", error)
        return None


def _unpin(address: int) -> None:
    torch.cuda.cudart().cudaHostUnregister(address)
