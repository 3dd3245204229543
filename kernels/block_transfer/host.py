"""Blocks to and from pinned memory: the kernel packs on the GPU, the copy engine moves.

A kernel that writes to pinned memory itself does not fill the link and keeps the GPU busy. Here
slices are packed into a staging buffer while the copy engine moves the previous one. Objects with
holes or skipped tokens are moved directly, because a copy of the whole would overwrite them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, cycle, groupby
from typing import NamedTuple

import torch

from kvproof.kernels.block_transfer.launch import (
    Cut,
    Direction,
    Part,
    check_objects,
    cut,
    gather,
    launch,
    scatter,
)
from kvproof.kernels.block_transfer.layouts import PagedLayers
from kvproof.kernels.checks import ArgumentError, require

SHORT_BYTES = 8 << 20
"""Bytes of the first packed or last unpacked slice: few, because the link idles meanwhile, but
enough for the copy of a slice to hide the host's work on the next one."""

PAGEABLE_BYTES = 1 << 16
"""Up to so many the driver takes bytes for the GPU over at once, from any memory."""

MOST_PLANS = 256


@dataclass(frozen=True, kw_only=True, eq=False)
class Staging:
    """Slots on the device for slices, and the stream of the copies.

    The last user of a slot records its event. A transfer waits for these events alone, so transfers
    on any streams overlap.
    """

    slots: torch.Tensor
    stream: torch.cuda.Stream
    released: tuple[torch.cuda.Event, ...]
    meeting: torch.cuda.Event
    """Where one stream waits for the other; only used by the host between two of its calls."""

    @cached_property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """The slots, each by itself."""
        return tuple(self.slots)

    @classmethod
    def of(cls, size: int, *, slots: int = 2, device: torch.device | str = "cuda") -> Staging:
        """Allocate slots of `size` bytes; larger ones cost less per byte."""
        require(size > 0 and slots > 0, f"staging of {slots} slots of {size} bytes")
        return cls(
            slots=torch.empty((slots, -(-size // 16) * 16), dtype=torch.uint8, device=device),
            stream=torch.cuda.Stream(device),
            released=tuple(torch.cuda.Event() for _ in range(slots)),
            meeting=torch.cuda.Event(),
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


def slices(planes: int, most: int, short: int) -> Iterator[tuple[int, int]]:
    """First plane and number of planes of each slice of a gather: a short one, then equal ones."""
    start = max(1, min(most, planes, short))
    yield 0, start
    rest = planes - start
    count = -(-rest // most)
    for index in range(count):
        low, high = (start + rest * turn // count for turn in (index, index + 1))
        yield low, high - low


class Plan(NamedTuple):
    """Numbers that all transfers of objects of one geometry share."""

    plane: int
    """Bytes of a plane of an object."""
    dense: bool
    """Whether objects follow each other without a gap."""
    made: Cut


def _transfer(
    direction: Direction,
    paged: PagedLayers,
    block_ids: Sequence[Sequence[int]],
    objects: torch.Tensor,
    staging: Staging | None,
    skip_tokens: int,
) -> torch.cuda.Event | None:
    table = _table(block_ids, paged.pages)
    if not paged.table.is_cuda:
        function = gather if direction == "gather" else scatter
        function(paged, _rows(table, len(block_ids)), objects, skip_tokens=skip_tokens)
        return None
    if staging is None:
        raise ArgumentError("staging is None, expected one: the layers are on a GPU")
    plan = _plan(direction, paged, objects, staging, skip_tokens)
    tokens, compute = objects.shape[3], torch.cuda.current_stream(paged.table.device)
    wanted = objects.shape[0], -(-tokens // paged.page)
    require(
        (len(block_ids), len(table)) == (wanted[0], wanted[0] * wanted[1]),
        f"block_ids has {len(block_ids)} rows and {len(table)} ids, expected shape {wanted}",
    )

    @cache
    def ids() -> torch.Tensor:
        """On the GPU: copies from the host to it need none, so the first of them goes before."""
        host = _rows(table, len(block_ids))
        host = host.pin_memory() if host.nbytes > PAGEABLE_BYTES else host
        return host.to(paged.table.device, non_blocking=True)

    any_direct = False
    if not objects.numel():
        return compute.record_event()
    for first, count, direct in runs(block_ids, tokens, skip_tokens, contiguous=plan.dense):
        rows = slice(first, first + count)
        if direct:
            any_direct = True
            skip = max(0, skip_tokens - first * tokens)
            launch(direction, paged, ids()[rows], objects[rows], skip_tokens=skip)
        else:
            _move_run(direction, paged, ids, objects, rows, plan, staging, compute)
    if direction == "scatter":
        return compute.record_event()
    if any_direct:
        staging.stream.wait_stream(compute)
    return staging.stream.record_event()


def _table(block_ids: Sequence[Sequence[int]], pages: int) -> array[int]:
    """Ids of all objects; refuses those beyond the pages, and rows of unequal length."""
    widths = set(map(len, block_ids))
    require(len(widths) <= 1, f"block_ids has rows of {sorted(widths)} ids, expected equal ones")
    ids = list(chain.from_iterable(block_ids))
    least, most = (min(ids), max(ids)) if ids else (0, 0)
    require(
        least >= 0 and (most < pages or not ids),
        f"block_ids holds ids {least} to {most}, expected 0 to {pages - 1}",
    )
    return array("i", ids)


def _rows(table: array[int], count: int) -> torch.Tensor:
    """Ids as [objects, blocks] int32 in host memory."""
    if not table:
        return torch.empty((count, 0), dtype=torch.int32)
    return torch.frombuffer(table, dtype=torch.int32).view(count, -1)


def _plan(
    direction: Direction,
    paged: PagedLayers,
    objects: torch.Tensor,
    staging: Staging,
    skip_tokens: int,
) -> Plan:
    require(
        objects.is_pinned(), f"objects is on {objects.device}, expected pinned memory of the host"
    )
    slot = staging.slots.shape[1]
    key = (direction, slot, objects.shape, objects.stride(), objects.dtype, min(0, skip_tokens))
    plan: Plan | None = paged.plans.get(key)
    if plan is None:
        check_objects(paged, objects, skip_tokens=skip_tokens)
        plane = objects.shape[3] * paged.row_bytes
        require(
            slot >= plane,
            f"a slot of the staging has {slot} bytes, expected at least {plane}, a plane of an"
            " object",
        )
        made = cut(direction, paged, objects, part=Part(staging.buffers[0], 0, 0, 1))
        dense = not objects.numel() or objects.stride(0) == objects[0].numel()
        plan = Plan(plane, dense, made)
        if len(paged.plans) >= MOST_PLANS:
            paged.plans.clear()
        paged.plans[key] = plan
    return plan


def _move_run(
    direction: Direction,
    paged: PagedLayers,
    ids: Callable[[], torch.Tensor],
    objects: torch.Tensor,
    rows: slice,
    plan: Plan,
    staging: Staging,
    compute: torch.cuda.Stream,
) -> None:
    is_whole = rows.stop - rows.start == objects.shape[0]
    objects = objects if is_whole else objects[rows]
    host = objects.view(torch.uint8).view(-1)
    plane, planes = plan.plane, objects.shape[0] * paged.planes
    cuts = list(slices(planes, staging.slots.shape[1] // plane, SHORT_BYTES // plane))
    if direction == "scatter":
        cuts = [(planes - first - count, count) for first, count in reversed(cuts)]
    copies, meeting = staging.stream, staging.meeting
    slots = cycle(zip(staging.buffers, staging.released, strict=True))
    for (buffer, released), (first, count) in zip(slots, cuts, strict=False):
        part = Part(buffer, first * plane, first, count)
        piece, device = host[first * plane : (first + count) * plane], buffer[: count * plane]
        if direction == "gather":
            compute.wait_event(released)
            there = ids() if is_whole else ids()[rows]
            launch(direction, paged, there, objects, part=part, made=plan.made)
            meeting.record(compute)
            copies.wait_event(meeting)
            _copy(piece, device, copies, compute)
            released.record(copies)
        else:
            copies.wait_event(released)
            _copy(device, piece, copies, compute)
            meeting.record(copies)
            compute.wait_event(meeting)
            there = ids() if is_whole else ids()[rows]
            launch(direction, paged, there, objects, part=part, made=plan.made)
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
