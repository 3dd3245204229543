"""Tensors of a sweep: seeded, scattered, poisoned and between canaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kvproof.kernels.types import Arguments

GUARD_BYTES = 4096
"""Canary on each side of a tensor; a multiple of every alignment a kernel may assume."""

CANARY = 0xC5
POISON = 0xA5
"""Byte of outputs without NaN; as bfloat16 and float16 a small number, so never right."""


class _Guarded(NamedTuple):
    """A buffer of bytes, and the bytes before, in and after the tensor."""

    buffer: torch.Tensor
    guard: int
    size: int


class Source:
    """Makes the tensors of one problem, all on one device, from one seed.

    With `guarded`, each is between two canaries, and `broken_canaries` detects writes over the
    edge. Timed runs have none, so that memory is laid out as in an engine.
    """

    def __init__(self, *, seed: int, device: str, guarded: bool = True) -> None:
        self.device = torch.device(device)
        self._generator = torch.Generator(device=self.device).manual_seed(seed)
        self._guard = GUARD_BYTES if guarded else 0
        self._guarded: list[_Guarded] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype, *, reach: int = 0) -> torch.Tensor:
        """An uninitialised tensor, contiguous, starting at a multiple of 4 KiB in its buffer.

        `reach`: bytes on each side that a wrong kernel may hit; all of them are canaries.
        """
        size = int(torch.Size(shape).numel()) * dtype.itemsize
        padded = -(-size // 16) * 16
        guard = -(-max(reach, self._guard) // GUARD_BYTES) * GUARD_BYTES if self._guard else 0
        buffer = (
            torch.full((padded + 2 * guard,), CANARY, dtype=torch.uint8, device=self.device)
            if guard
            else torch.empty(padded, dtype=torch.uint8, device=self.device)
        )
        if guard:
            self._guarded.append(_Guarded(buffer, guard, size))
        return buffer[guard : guard + size].view(dtype).view(tuple(shape))

    def output(self, shape: Sequence[int], dtype: torch.dtype, *, reach: int = 0) -> torch.Tensor:
        """A poisoned tensor: NaN where the dtype has one, else bytes of 0xA5."""
        return poison(self.empty(shape, dtype, reach=reach))

    def normal(
        self, shape: Sequence[int], dtype: torch.dtype, *, scale: float = 1.0
    ) -> torch.Tensor:
        """Normal values times `scale`, rounded to the dtype."""
        out = self.empty(shape, dtype)
        flat = out.view(-1)
        # In pieces: the float32 draw of a pool of many GiB would not fit next to it.
        for start in range(0, flat.numel(), _PIECE):
            piece = flat[start : start + _PIECE]
            draw = torch.randn(piece.shape, generator=self._generator, device=self.device)
            piece.copy_(draw.mul_(scale))
        return out

    def bytes(self, shape: Sequence[int]) -> torch.Tensor:
        """Random uint8."""
        out = self.empty(shape, torch.uint8)
        return out.random_(0, 256, generator=self._generator)

    def integers(self, shape: Sequence[int], *, low: int, high: int) -> torch.Tensor:
        """Random int32 in [low, high)."""
        out = self.empty(shape, torch.int32)
        return out.random_(low, high, generator=self._generator) if out.numel() else out

    def permutation(self, count: int) -> torch.Tensor:
        """0 .. count - 1 in random order, int32."""
        return self.put(torch.randperm(count, generator=self._generator, device=self.device).int())

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor, on this source's device."""
        out = self.empty(tuple(tensor.shape), tensor.dtype)
        out.copy_(tensor)
        return out

    def broken_canaries(self) -> int:
        """Number of changed bytes outside of the tensors."""
        return sum(
            int((side != CANARY).sum())
            for buffer, guard, size in self._guarded
            for side in (buffer[:guard], buffer[guard + size :])
        )


_PIECE = 1 << 28


def poison(tensor: torch.Tensor) -> torch.Tensor:
    """Fill in place with NaN, or with bytes of 0xA5 where the dtype has no NaN."""
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize > 1:
        return tensor.fill_(float("nan"))
    tensor.view(torch.uint8).fill_(_FLOAT8_NAN if tensor.dtype.is_floating_point else POISON)
    return tensor


_FLOAT8_NAN = 0x7F
"""NaN in float8_e4m3fn and float8_e5m2 alike."""


def tensors(arguments: Arguments) -> dict[str, torch.Tensor]:
    """Every tensor among arguments by name; the third of a list `pools` is `pools[2]`."""
    found = {}
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, list | tuple):
            found.update(tensors({f"{name}[{index}]": item for index, item in enumerate(value)}))
    return found


def cloned(arguments: Arguments) -> Arguments:
    """The same arguments with copies of the tensors."""
    return {name: _cloned(value) for name, value in arguments.items()}


def _cloned(value: object) -> object:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list | tuple):
        return type(value)(_cloned(item) for item in value)
    return value


def is_output(name: str, outputs: Sequence[str]) -> bool:
    """Whether the tensor of a name given by `tensors` belongs to one of the outputs."""
    return name.partition("[")[0] in outputs
