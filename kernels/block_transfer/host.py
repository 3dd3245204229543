"""Blocks to and from pinned memory: the kernel packs on the GPU, the copy engine moves.

A kernel that writes to pinned memory itself does not fill the link and keeps the GPU busy. Here
slices are packed into a staging buffer while the copy engine moves the previous one. Objects with
holes or skipped tokens are moved directly, because a copy of the whole would overwrite them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from typing import NamedTuple

import torch

from kvproof.kernels.block_transfer.launch import (
    Direction,
    Part,
    check,
    cut,
    gather,
    launch,
    scatter,
)
from kvproof.kernels.block_transfer.layouts import PagedLayers
from kvproof.kernels.checks import ArgumentError, ids_in_range, require

SHORT_SLICE = 8
"""Divisor of the first packed or last unpacked slice, which is short because the link idles
meanwhile."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Staging:
    """Slots on the device for slices, and the stream of the copies.

    The last user of a slot records its event. A transfer waits for these events alone, so transfers
    on any streams overlap.
    """

    slots: torch.Tensor
    stream: torch.cuda.Stream
    released: tuple[torch.cuda.Event, ...]

    @classmethod
    def of(cls, size: int, *, slots: int = 2, device: torch.device | str = "cuda") -> Staging:
        """Allocate slots of `size` bytes; larger ones cost less per byte."""
        require(size > 0 and slots > 0, f"staging of {slots} slots of {size} bytes")
        return cls(
            slots=torch.empty((slots, -(-size // 16) * 16), dtype=torch.uint8, device=device),
            stream=torch.cuda.Stream(device),
            released=tuple(torch.cuda.Event() for _ in range(slots)),
        )


def transfer_to_host(
    paged: PagedLayers,
    block_ids: Sequence[Sequence[int]],
    objects: torch.Tensor,
    staging: Staging | None,
    *,
    skip_tokens: int = 0,
) -> torch.cuda.Event | None:
    """Gather pages into objects in pinned memory.

    Args:
        paged: The layers.
        block_ids: The pages of each object, on the host; range-checked before anything is
            enqueued (G4). 0 is a hole.
        objects: Pinned; otherwise as in `gather`.
        staging: Where slices are packed; a slot holds at least one plane of an object. Not needed
            for layers on the CPU.
        skip_tokens: As in `gather`.

    Returns:
        An event after which the objects hold the bytes; nothing if they do already, because the
        layers are on the CPU. The current stream reads the pages, it does not wait for the copies.

    Raises:
        ArgumentError: A shape, dtype, device, id or the size of the slots does not fit.

    """
    return _transfer("gather", paged, block_ids, objects, staging, skip_tokens)


def transfer_from_host(
    paged: PagedLayers,
    block_ids: Sequence[Sequence[int]],
    objects: torch.Tensor,
    staging: Staging | None,
    *,
    skip_tokens: int = 0,
) -> torch.cuda.Event | None:
    """Scatter objects in pinned memory into pages; arguments as in `transfer_to_host`.

    The objects must be complete: the copies do not wait for the current stream.

    Returns an event after which the objects may be overwritten; None if they may be already. Later
    work on the current stream sees the written pages.
    """
    return _transfer("scatter", paged, block_ids, objects, staging, skip_tokens)


class Run(NamedTuple):
    """Consecutive objects, without a gap in memory, that take the same path."""

    first: int
    objects: int
    direct: bool


def runs(
    block_ids: Sequence[Sequence[int]], tokens: int, skip_tokens: int, *, contiguous: bool
) -> Iterator[Run]:
    """Objects that are staged together, and objects that are moved directly."""

    def kind(item: int) -> tuple[bool, int]:
        direct = 0 in block_ids[item] or item * tokens < skip_tokens
        return direct, 0 if contiguous or direct else item

    for (direct, _), members in groupby(range(len(block_ids)), kind):
        items = list(members)
        yield Run(items[0], len(items), direct)


def slices(planes: int, most: int) -> Iterator[tuple[int, int]]:
    """First plane and number of planes of each slice of a gather: a short one, then equal ones."""
    start = max(1, min(most, planes // SHORT_SLICE))
    yield 0, start
    rest = planes - start
    count = -(-rest // most)
    for index in range(count):
        low, high = (start + rest * turn // count for turn in (index, index + 1))
        yield low, high - low


def _transfer(
    direction: Direction,
    paged: PagedLayers,
    block_ids: Sequence[Sequence[int]],
    objects: torch.Tensor,
    staging: Staging | None,
    skip_tokens: int,
) -> torch.cuda.Event | None:
    pinned = paged.table.is_cuda
    table = torch.tensor(block_ids, dtype=torch.int32, pin_memory=pinned)
    ids_in_range("block_ids", table, low=0, high=paged.pages)
    if not pinned:
        function = gather if direction == "gather" else scatter
        function(paged, table, objects, skip_tokens=skip_tokens)
        return None
    ids = table.to(paged.table.device, non_blocking=True)
    staging = _checked(paged, ids, objects, staging, skip_tokens)
    tokens, compute = objects.shape[3], torch.cuda.current_stream(ids.device)
    for first, count, direct in runs(block_ids, tokens, skip_tokens, contiguous=_dense(objects)):
        mine, their = objects[first : first + count], ids[first : first + count]
        if direct:
            skip = max(0, skip_tokens - first * tokens)
            launch(direction, paged, their, mine, skip_tokens=skip)
        else:
            _move_run(direction, paged, their, mine, staging, compute)
    if direction == "scatter":
        return compute.record_event()
    staging.stream.wait_stream(compute)
    return staging.stream.record_event()


def _dense(objects: torch.Tensor) -> bool:
    return bool(objects.stride(0) == objects[0].numel())


def _move_run(
    direction: Direction,
    paged: PagedLayers,
    ids: torch.Tensor,
    objects: torch.Tensor,
    staging: Staging,
    compute: torch.cuda.Stream,
) -> None:
    host = objects.view(torch.uint8).view(-1)
    planes = objects.shape[0] * paged.planes
    plane = host.numel() // planes
    cuts = list(slices(planes, staging.slots.shape[1] // plane))
    if direction == "scatter":
        cuts = [(planes - first - count, count) for first, count in reversed(cuts)]
    slots = list(staging.slots)
    made = cut(direction, paged, objects, part=Part(slots[0], 0, 0, planes))
    copies = staging.stream
    for slot, (first, count) in zip(cycle(range(len(slots))), cuts, strict=False):
        part = Part(slots[slot], first * plane, first, count)
        piece = host[first * plane : (first + count) * plane]
        device, released = part.buffer[: len(piece)], staging.released[slot]
        if direction == "gather":
            compute.wait_event(released)
            launch(direction, paged, ids, objects, part=part, made=made)
            copies.wait_stream(compute)
            _copy(piece, device, copies, compute)
            released.record(copies)
        else:
            copies.wait_event(released)
            _copy(device, piece, copies, compute)
            compute.wait_stream(copies)
            launch(direction, paged, ids, objects, part=part, made=made)
            released.record(compute)


def _copy(
    to: torch.Tensor, of: torch.Tensor, stream: torch.cuda.Stream, current: torch.cuda.Stream
) -> None:
    """Copy on another stream than the current one; the guard of torch takes three times as long."""
    torch.cuda.set_stream(stream)
    try:
        to.copy_(of, non_blocking=True)
    finally:
        torch.cuda.set_stream(current)


def _checked(
    paged: PagedLayers,
    ids: torch.Tensor,
    objects: torch.Tensor,
    staging: Staging | None,
    skip_tokens: int,
) -> Staging:
    check(paged, ids, objects, skip_tokens=skip_tokens, check_ids=False)
    require(
        objects.is_pinned(), f"objects is on {objects.device}, expected pinned memory of the host"
    )
    if staging is None:
        raise ArgumentError("staging is None, expected one: the layers are on a GPU")
    size, plane = staging.slots.shape[1], objects.shape[3] * paged.row_bytes
    require(
        size >= plane,
        f"a slot of the staging has {size} bytes, expected at least {plane}, a plane of an object",
    )
    return staging
