"""The bytes of one chunk in the memory of the host, with typed views of its groups (G9)."""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch

from kvproof.reference.transfer.chunk_layout import ChunkLayout, LayoutError


class Piece(NamedTuple):
    """Consecutive bytes inside of one segment."""

    start: int
    nbytes: int


def pieces(
    start: int, nbytes: int, *, segment: int = 0, capacity: int | None = None
) -> list[Piece]:
    """Split [start, start + nbytes) at multiples of `segment`, in order and without gaps (G9).

    Memory that is pinned segment by segment is one range of addresses, but no copy may cross from
    one segment to the next. Segment 0: one piece.

    Raises:
        LayoutError: A number is negative, or the range ends beyond `capacity`.

    """
    if min(start, nbytes, segment) < 0:
        raise LayoutError(
            f"start {start}, {nbytes} bytes, segments of {segment}: expected 0 or more"
        )
    end = start + nbytes
    if capacity is not None and end > capacity:
        raise LayoutError(f"bytes {start} to {end} do not fit in {capacity}")
    borders = range((start // segment + 1) * segment, end, segment) if segment else range(0)
    edges = [start, *borders, end]
    return [Piece(low, high - low) for low, high in pairwise(edges) if low < high]


class HostObject:
    """Views of the bytes of one chunk.

    Args:
        layout: Of the chunk.
        raw: uint8 [layout.nbytes], contiguous, on the CPU; for a GPU, pinned.
        origin: Offset of `raw` in the memory that it is part of.
        segment: Bytes that this memory was pinned by at a time; 0: it was pinned as a whole.

    Raises:
        LayoutError: The size is not that of the layout; the message has both.

    """

    def __init__(
        self, layout: ChunkLayout, raw: torch.Tensor, *, origin: int = 0, segment: int = 0
    ) -> None:
        if raw.dtype != torch.uint8 or raw.dim() != 1 or not raw.is_contiguous():
            raise LayoutError(
                f"an object is {raw.dtype} {list(raw.shape)} with strides {raw.stride()}, "
                f"expected contiguous uint8 [{layout.nbytes}]"
            )
        if raw.numel() != layout.nbytes:
            raise LayoutError(f"an object has {raw.numel()} bytes, its layout {layout.nbytes}")
        if raw.device.type != "cpu":
            raise LayoutError(f"an object is on {raw.device}, expected the memory of the host")
        self.layout = layout
        self.raw = raw
        """All bytes, those between groups too."""
        self.lent = False
        """Whether the memory has another owner, which must wait for the event before reusing it."""
        self._origin, self._segment = origin, segment

    @classmethod
    def allocate(cls, layout: ChunkLayout, *, pinned: bool = False) -> HostObject:
        """Return an object of its own memory, all zeros."""
        return cls(layout, torch.zeros(layout.nbytes, dtype=torch.uint8, pin_memory=pinned))

    @classmethod
    def over(cls, layout: ChunkLayout, buffer: bytes | bytearray | memoryview) -> HostObject:
        """Return views of memory with another owner, for example of a shared segment.

        They keep `buffer` from being released. Read-only memory allows only a retrieve. A GPU needs
        it to be `Pinned`.
        """
        array = np.frombuffer(buffer, np.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch knows no read-only tensors
            made = cls(layout, torch.from_numpy(array))
        made.lent = True
        return made

    def get_tensor(self, group: int) -> torch.Tensor:
        """Return [planes of K and V, layers, tokens, heads, width] of one group, in its dtype."""
        return typed(self.layout, self.raw, group)

    @property
    def tensor(self) -> torch.Tensor:
        """The only group. Raises LayoutError that names the groups if there are several."""
        if len(self.layout.groups) > 1:
            names = "; ".join(
                f"{index}: {', '.join(group.geometry.names)}"
                for index, group in enumerate(self.layout.groups)
            )
            raise LayoutError(
                f"the object has {len(self.layout.groups)} groups, not one tensor; use "
                f"get_tensor(group) with one of {names}"
            )
        return self.get_tensor(0)

    def rows(self, group: int) -> torch.Tensor:
        """Return uint8 [planes of K and V, layers, tokens, row bytes] of one group."""
        return rows(self.layout, self.raw, group)

    def clear_gaps(self) -> None:
        """Put zeros between the groups, as every stored chunk has them (G2)."""
        for start, end in self.layout.gaps:
            self.raw[start:end] = 0

    def pieces(self, start: int, nbytes: int) -> list[Piece]:
        """Split bytes of the object where a copy must stop, as offsets in the object (G9)."""
        origin, segment, capacity = self._origin, self._segment, self.layout.nbytes
        if start < 0:
            raise LayoutError(f"byte {start} of an object, expected 0 to {capacity}")
        found = pieces(origin + start, nbytes, segment=segment, capacity=origin + capacity)
        return [Piece(at - origin, size) for at, size in found]


def copy_bytes(
    target: HostObject, start: int, source: torch.Tensor, *, to_object: bool = True
) -> None:
    """Copy flat uint8 into an object from byte `start` on, or out of it, piece by piece (G9).

    Any offset and length; `source` is then the target. Copies are enqueued on the current stream
    if the other side is on a GPU.
    """
    done = 0
    for at, size in target.pieces(start, source.numel()):
        mine, other = target.raw[at : at + size], source[done : done + size]
        if to_object:
            mine.copy_(other, non_blocking=True)
        else:
            other.copy_(mine, non_blocking=True)
        done += size


def typed(layout: ChunkLayout, flat: torch.Tensor, group: int) -> torch.Tensor:
    """Return the view of one group in flat uint8 of one chunk, in its shape and dtype (G3)."""
    found = layout.group(group)
    part = flat[found.offset : found.offset + found.nbytes]
    return part.view(getattr(torch, found.dtype)).view(found.shape)


def rows(layout: ChunkLayout, flat: torch.Tensor, group: int) -> torch.Tensor:
    """Return the view of one group in flat uint8 of one chunk, in bytes (G3)."""
    found = layout.group(group)
    part = flat[found.offset : found.offset + found.nbytes]
    return part.view(*found.shape[:3], found.geometry.row_bytes)
