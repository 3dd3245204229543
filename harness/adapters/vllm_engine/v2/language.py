"""The few words of Triton that vLLM's kernels for tables and batches use, over NumPy.

A kernel of those is run from its own source, program after program. An access outside of a tensor
raises IllegalAccess, as a device would.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvproof.harness.whole_engine.findings import IllegalAccess


class Number(int):
    """A scalar in a register."""

    def to(self, _: Any) -> Number:
        """Numbers have no width here."""
        return self


class Pointer:
    """An address inside of a tensor, or an array of them."""

    __slots__ = ("at", "memory")

    def __init__(self, memory: Any, at: Any = 0) -> None:
        self.memory, self.at = memory, at

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.memory, self.at + more)

    def __sub__(self, less: Any) -> Pointer:
        return Pointer(self.memory, self.at - less)

    def one(self) -> int:
        """Return the place of a scalar access, within the tensor."""
        at = int(self.at)
        if not 0 <= at < len(self.memory):
            message = f"place {at} of a tensor of {len(self.memory)} elements"
            raise IllegalAccess(message)
        return at

    def many(self, mask: Any) -> Any:
        """Return the places of an access, masked, within the tensor."""
        found = self.at if mask is None else self.at[mask]
        if found.size and (found.min() < 0 or found.max() >= len(self.memory)):
            message = f"places {found.min()} to {found.max()} of a tensor of {len(self.memory)}"
            raise IllegalAccess(message)
        return found


class Language:
    """Stands for `triton.language` in modules whose kernels are run."""

    int32 = int64 = constexpr = None
    range = range
    where = staticmethod(np.where)
    maximum = staticmethod(np.maximum)
    minimum = staticmethod(np.minimum)

    def __init__(self) -> None:
        self.grid: tuple[int, ...] = ()
        self.program: tuple[int, ...] = ()
        self.tensors: dict[int, Any] = {}
        """Address -> memory of tensors that kernels find by pointers in other tensors."""

    def program_id(self, axis: int) -> Number:
        """Return which program runs."""
        return Number(self.program[axis])

    def num_programs(self, axis: int) -> Number:
        """Return how many there are."""
        return Number(self.grid[axis])

    @staticmethod
    def arange(start: int, stop: int) -> Any:
        """Return consecutive numbers."""
        return np.arange(start, stop)

    @staticmethod
    def load(pointer: Pointer, mask: Any = None, other: Any = 0) -> Any:
        """Read memory; `other` where the mask is false."""
        if not isinstance(pointer.at, np.ndarray):
            return Number(pointer.memory[pointer.one()]) if mask is None or mask else other
        mask = _broad(mask, pointer.at)
        found = np.full(pointer.at.shape, other, np.int64)
        found[mask] = pointer.memory[pointer.many(mask)]
        return found

    @staticmethod
    def store(pointer: Pointer, value: Any, mask: Any = None) -> None:
        """Write memory where the mask is true."""
        if not isinstance(pointer.at, np.ndarray):
            if mask is None or mask:
                pointer.memory[pointer.one()] = value
            return
        mask = _broad(mask, pointer.at)
        places = pointer.many(mask)
        values = value if np.ndim(value) == 0 or mask is None else value[mask]
        pointer.memory[places] = values

    def cast(self, value: Any, kind: Any) -> Any:
        """Turn an address into a pointer."""
        del kind
        return Pointer(self.tensors[int(value)])

    @staticmethod
    def pointer_type(kind: Any) -> Any:
        """Return the argument of `cast`."""
        return kind

    @staticmethod
    def multiple_of(pointer: Pointer, _: int) -> Pointer:
        """Alignment does not matter here."""
        return pointer


def _broad(mask: Any, at: Any) -> Any:
    """Return a mask of the shape of an access; None: no mask."""
    if isinstance(mask, np.ndarray) and mask.shape == at.shape:
        return mask
    return np.full(at.shape, True if mask is None else bool(mask))
