"""The warp group that brings chosen tokens of FP8 rows into shared memory, as bfloat16.

A row has 656 bytes, the layout `fp8_ds_mla` of engines: 512 float8_e4m3 values, 4 float32 scales
for 128 of them each, 64 rotary columns in bfloat16. There is no shared memory for narrow rows and
no register for loads under way: the bytes of half a tile are copied to where the half will be, and
widened in place.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    async_copy,
    fence_async_shared,
    mbarrier,
)

from kvproof.kernels.gluon import async_gather, barrier, reinterpreted
from kvproof.kernels.latent.triton_kernel_chunks import TILE, size_of, span, tiles_of
from kvproof.kernels.latent.triton_kernel_copy import copy_queries

ROW = gl.constexpr(656)
GROUP = gl.constexpr(128)
"""Values that share a scale."""

WIDE = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
"""Of values that a thread widens: what it stores of a row is 16 bytes."""

COPIED = gl.constexpr(gl.BlockedLayout([1, 16], [2, 16], [4, 1], [1, 0]))
ROPES = gl.constexpr(gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0]))
FLAT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _slots_of(indices, first, limit, layout: gl.constexpr):
    """Slots of tokens; -1 stands for none, as all do of a tile that does not exist."""
    at = first + gl.arange(0, TILE, layout)
    return gl.load(indices + at, mask=(at >= 0) & (at < limit), other=-1)


@gluon.jit
def _row_of(slots, width: gl.constexpr, SMALL: gl.constexpr):
    """Where rows begin, in units of which a row has `width`; a small pool needs no 64 bits."""
    row = gl.maximum(slots, 0)
    if not SMALL:
        row = row.to(gl.int64)
    return row * width


@gluon.jit
def _copy_half(pages, slots, tile, SIDE: gl.constexpr, SMALL: gl.constexpr):
    """Start copies of the bytes of half the values of a tile into the first half of its place."""
    HALF: gl.constexpr = tile.shape[1]
    column = SIDE * HALF + gl.arange(0, HALF, gl.SliceLayout(0, COPIED))
    place = pages + (_row_of(slots, ROW, SMALL)[:, None] + column[None, :])
    async_gather(
        narrow_half(tile, 128), place, mask=(slots >= 0)[:, None] & (column >= 0)[None, :]
    )  # fmt: skip
    async_copy.commit_group()


@gluon.jit
def narrow_half(tile, SWIZZLE: gl.constexpr):
    """The first half of a tile's place, as bytes."""
    shape: gl.constexpr = [2 * tile.shape[0], tile.shape[1]]
    layout: gl.constexpr = gl.NVMMASharedLayout(SWIZZLE, 8)
    return reinterpreted(tile, gl.uint8, shape, layout).slice(0, tile.shape[0])


@gluon.jit
def _scales_of(scales, slots, group: gl.constexpr, SMALL: gl.constexpr):
    at = _row_of(slots, ROW // 4, SMALL) + (GROUP + group)
    return gl.load(scales + at, mask=slots >= 0, other=0.0)


@gluon.jit
def _twice(number):
    """A bfloat16 in both halves of an int32."""
    bits = number.to(gl.uint16, bitcast=True).to(gl.int32)
    return bits | (bits << 16)


@gluon.jit
def _scaled(bits, scale):
    """Bytes of float8_e4m3 times a scale of their row, rounded once to bfloat16.

    The bits of a float8, four places lower, are those of a bfloat16 that is 2 to the power of 120
    smaller. So no instruction converts: those that do take several times as long. The scale is the
    sum of two numbers of bfloat16, for the product with one would be rounded twice.
    """
    high = scale.to(gl.bfloat16)
    low = (scale - high.to(gl.float32)).to(gl.bfloat16)
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 x, y, s, big;
        mov.b32 big, 0x7b807b80;
        prmt.b32 x, $2, 0, 0x1404;
        shr.u32 y, x, 4;
        and.b32 y, y, 0x07f007f0;
        lop3.b32 x, x, 0x80008000, y, 0xea;
        mul.rn.bf16x2 x, x, big;
        mul.rn.bf16x2 s, x, $7;
        fma.rn.bf16x2 $0, x, $3, s;
        prmt.b32 x, $2, 0, 0x3424;
        shr.u32 y, x, 4;
        and.b32 y, y, 0x07f007f0;
        lop3.b32 x, x, 0x80008000, y, 0xea;
        mul.rn.bf16x2 x, x, big;
        mul.rn.bf16x2 s, x, $7;
        fma.rn.bf16x2 $1, x, $3, s;
        }""",
        "=r,=r,r,r,r,r,r,r,r,r,r",
        [bits, _twice(high)[:, None], _twice(low)[:, None]],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=4,
    )


@gluon.jit
def _widen(tile, scale, next_scale):
    """Widen half a tile in place: all of its bytes are read before any is overwritten."""
    narrow = narrow_half(tile, 128)
    bits = narrow.slice(0, GROUP, 1).load(WIDE)
    next_bits = narrow.slice(GROUP, GROUP, 1).load(WIDE)
    barrier()
    tile.slice(0, GROUP, 1).store(_scaled(bits, scale))
    tile.slice(GROUP, GROUP, 1).store(_scaled(next_bits, next_scale))


@gluon.jit
def fill_part(part, WHICH: gl.constexpr):
    """Let a part of a tile be read."""
    fence_async_shared()
    mbarrier.arrive(part[1].index(WHICH))


@gluon.jit
def _copy_ropes(pages_wide, slots, tile, SMALL: gl.constexpr):
    """Start copies of the rotary columns of a tile: they stay as they are."""
    column = (ROW - 128) // 2 + gl.arange(0, 64, gl.SliceLayout(0, ROPES))
    place = pages_wide + (_row_of(slots, ROW // 2, SMALL)[:, None] + column[None, :])
    async_gather(
        tile, place, mask=(slots >= 0)[:, None] & (column >= 0)[None, :]
    )  # fmt: skip
    async_copy.commit_group()


@gluon.jit
def _bring_tile(
    pages, scales, pages_wide, slots, alone, ring, biases, turn, WHICH: gl.constexpr,
    SMALL: gl.constexpr,
):  # fmt: skip
    """A tile, part by part: all copies are under way before the first part is widened."""
    phase = (turn & 1) ^ 1
    left = ring[0][0].index(WHICH)
    right = ring[1][0].index(WHICH)
    copied = gl.convert_layout(slots, gl.SliceLayout(1, COPIED))
    mbarrier.wait(ring[2][2].index(WHICH), phase)
    rope_slots = gl.convert_layout(slots, gl.SliceLayout(1, ROPES))
    _copy_ropes(pages_wide, rope_slots, ring[2][0].index(WHICH), SMALL)
    biases.index(WHICH).store(gl.where(alone >= 0, 0.0, float("-inf")))
    mbarrier.wait(ring[0][2].index(WHICH), phase)
    _copy_half(pages, copied, left, 0, SMALL)
    mbarrier.wait(ring[1][2].index(WHICH), phase)
    _copy_half(pages, copied, right, 1, SMALL)
    first = _scales_of(scales, slots, 0, SMALL)
    second = _scales_of(scales, slots, 1, SMALL)
    third = _scales_of(scales, slots, 2, SMALL)
    fourth = _scales_of(scales, slots, 3, SMALL)
    async_copy.wait_group(2)
    fill_part(ring[2], WHICH)
    async_copy.wait_group(1)
    barrier()
    _widen(left, first, second)
    fill_part(ring[0], WHICH)
    async_copy.wait_group(0)
    barrier()
    _widen(right, third, fourth)
    fill_part(ring[1], WHICH)


@gluon.jit
def widen_chunk(
    q_desc, q_rope_desc, pages, scales, pages_wide, indices, indices_row, ring, query, biases,
    plan, block, numbers, SIZE: gl.constexpr, SMALL: gl.constexpr,
):  # fmt: skip
    """Copy the queries of each request of a chunk, and widen its tiles, the last ones first."""
    begin, end, request, request_begin = plan
    turn = 0
    other_turn = 0
    served = 0
    while request_begin < end:
        size = size_of(indices, request, SIZE)
        low, high = span(size, begin, end, request_begin)
        limit = gl.minimum(size, high * TILE)
        chosen = indices + request.to(gl.int64) * indices_row
        newest = (high - 1) * TILE
        alone = _slots_of(chosen, newest, limit, FLAT)
        copy_queries(q_desc, q_rope_desc, query, served, request, block, numbers)
        count = (high - low + 1) // 2
        other_count = high - low - count
        for i in range(count):
            first = newest - 2 * i * TILE
            after = _slots_of(chosen, first - TILE, limit, FLAT)
            _bring_tile(
                pages, scales, pages_wide, gl.convert_layout(alone, gl.SliceLayout(1, WIDE)),
                alone, ring, biases, turn + i, 0, SMALL,
            )  # fmt: skip
            alone = after
            if i < other_count:
                after = _slots_of(chosen, first - 2 * TILE, limit, FLAT)
                _bring_tile(
                    pages, scales, pages_wide, gl.convert_layout(alone, gl.SliceLayout(1, WIDE)),
                    alone, ring, biases, other_turn + i, 1, SMALL,
                )  # fmt: skip
                alone = after
        turn += count
        other_turn += other_count
        served += 1
        request_begin += tiles_of(size)
        request += 1
