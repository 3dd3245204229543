"""The warp group that copies chosen tokens of bfloat16 rows into shared memory.

Its copies are asynchronous, of 16 bytes each: the tensor memory unit of a Hopper brings no rows by
a list.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
)

from kvproof.kernels.gluon import async_gather, barrier

ROW = gl.constexpr(576)
COPIED = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
ROPES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))


@gluon.jit
def row_of(slots, width: gl.constexpr, SMALL: gl.constexpr):
    """Where rows begin, in units of which a row has `width`; a small pool needs no 64 bits."""
    row = gl.maximum(slots, 0)
    if not SMALL:
        row = row.to(gl.int64)
    return row * width


@gluon.jit
def _copy_part(
    pages, chosen, part, phase, first, WHICH: gl.constexpr, SMALL: gl.constexpr,
    layout: gl.constexpr,
):  # fmt: skip
    """Start copies of some columns of a tile as soon as their place is free."""
    place = part[0].index(WHICH)
    mbarrier.wait(part[2].index(WHICH), phase)
    slots = gl.convert_layout(chosen, gl.SliceLayout(1, layout))
    column = first + gl.arange(0, place.shape[1], gl.SliceLayout(0, layout))
    source = pages + (row_of(slots, ROW, SMALL)[:, None] + column[None, :])
    async_gather(place, source, mask=(slots >= 0)[:, None] & (column >= 0)[None, :])
    async_copy.commit_group()


@gluon.jit
def fill_part(part, WHICH: gl.constexpr):
    """Let a part of a tile be read."""
    fence_async_shared()
    mbarrier.arrive(part[1].index(WHICH))


@gluon.jit
def gather_tile(pages, chosen, ring, turn, WHICH: gl.constexpr, SMALL: gl.constexpr):
    """A tile, part by part: all copies are under way before the first part is waited for."""
    phase = (turn & 1) ^ 1
    left = ring[0]
    right = ring[1]
    rope = ring[2]
    HALF: gl.constexpr = left[0].shape[2]
    _copy_part(pages, chosen, rope, phase, 2 * HALF, WHICH, SMALL, ROPES)
    _copy_part(pages, chosen, left, phase, 0, WHICH, SMALL, COPIED)
    _copy_part(pages, chosen, right, phase, HALF, WHICH, SMALL, COPIED)
    async_copy.wait_group(2)
    barrier()
    fill_part(rope, WHICH)
    async_copy.wait_group(1)
    barrier()
    fill_part(left, WHICH)
    async_copy.wait_group(0)
    barrier()
    fill_part(right, WHICH)
