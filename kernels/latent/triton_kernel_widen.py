"""The warp group that brings chosen tokens of FP8 rows into shared memory, as bfloat16.

A row has 656 bytes, the layout `fp8_ds_mla` of engines: 512 float8_e4m3 values, 4 float32 scales
for 128 of them each, 64 rotary columns in bfloat16. There is no shared memory for narrow rows and
no register for loads under way: the bytes of half a tile are copied to where the half will be, and
widened in place.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import async_copy, mbarrier

from kvproof.kernels.gluon import async_gather, barrier, reinterpreted
from kvproof.kernels.latent.triton_kernel_gather import ROPES, fill_part, row_of

ROW = gl.constexpr(656)
GROUP = gl.constexpr(128)
"""Values that share a scale."""

SMALLER = gl.constexpr(2.0**-60)
"""Factor of widened values, so that neither their scales overflow nor they vanish."""

WIDE = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
"""Layout of values that a thread widens: it stores 16 bytes of a row."""

COPIED = gl.constexpr(gl.BlockedLayout([1, 16], [2, 16], [4, 1], [1, 0]))


@gluon.jit
def _copy_half(pages, slots, tile, SIDE: gl.constexpr, SMALL: gl.constexpr):
    """Start copies of the bytes of half the values of a tile into the first half of its place."""
    HALF: gl.constexpr = tile.shape[1]
    column = SIDE * HALF + gl.arange(0, HALF, gl.SliceLayout(0, COPIED))
    place = pages + (row_of(slots, ROW, SMALL)[:, None] + column[None, :])
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
    at = row_of(slots, ROW // 4, SMALL) + (GROUP + group)
    return gl.load(scales + at, mask=slots >= 0, other=0.0)


@gluon.jit
def _halves(scale):
    """A scale times 2 to the power of 60 as the sum of two bfloat16, each twice in an int32.

    The product with one alone would be rounded twice.
    """
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 bits;
        .reg .f32 large, high;
        mul.f32 large, $2, 0f5D800000;
        mov.b32 bits, large;
        prmt.b32 $0, bits, bits, 0x3232;
        and.b32 bits, bits, 0xffff0000;
        mov.b32 high, bits;
        sub.f32 high, large, high;
        mov.b32 bits, high;
        prmt.b32 $1, bits, bits, 0x3232;
        }""",
        "=r,=r,f",
        [scale],
        dtype=(gl.int32, gl.int32),
        is_pure=True,
        pack=1,
    )


@gluon.jit
def _scaled(bits, scale):
    """Bytes of float8_e4m3 times a scale of their row, rounded once to bfloat16, and `SMALLER`.

    The bits of a float8, four places lower, are those of a bfloat16 that is 2 to the power of 120
    smaller. So no instruction converts: those that do take several times as long.
    """
    high, low = _halves(scale)
    return gl.inline_asm_elementwise(
        """{
        .reg .b32 x, y, s;
        prmt.b32 x, $2, 0, 0x1404;
        shr.u32 y, x, 4;
        and.b32 y, y, 0x07f007f0;
        lop3.b32 x, x, 0x80008000, y, 0xea;
        mul.rn.bf16x2 s, x, $7;
        fma.rn.bf16x2 $0, x, $3, s;
        prmt.b32 x, $2, 0, 0x3424;
        shr.u32 y, x, 4;
        and.b32 y, y, 0x07f007f0;
        lop3.b32 x, x, 0x80008000, y, 0xea;
        mul.rn.bf16x2 s, x, $7;
        fma.rn.bf16x2 $1, x, $3, s;
        }""",
        "=r,=r,r,r,r,r,r,r,r,r,r",
        [bits, high[:, None], low[:, None]],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=4,
    )


@gluon.jit
def _widen(tile, scale, next_scale):
    """Widen half a tile in place: first the columns whose place holds no bytes."""
    narrow = narrow_half(tile, 128)
    bits = narrow.slice(GROUP, GROUP, 1).load(WIDE)
    tile.slice(GROUP, GROUP, 1).store(_scaled(bits, next_scale))
    bits = narrow.slice(0, GROUP, 1).load(WIDE)
    barrier()
    tile.slice(0, GROUP, 1).store(_scaled(bits, scale))


@gluon.jit
def _copy_ropes(pages_wide, slots, tile, SMALL: gl.constexpr):
    """Start copies of the rotary columns of a tile: they stay as they are."""
    column = (ROW - 128) // 2 + gl.arange(0, 64, gl.SliceLayout(0, ROPES))
    place = pages_wide + (row_of(slots, ROW // 2, SMALL)[:, None] + column[None, :])
    async_gather(
        tile, place, mask=(slots >= 0)[:, None] & (column >= 0)[None, :]
    )  # fmt: skip
    async_copy.commit_group()


@gluon.jit
def widen_tile(
    pages, scales, pages_wide, chosen, ring, turn, WHICH: gl.constexpr, SMALL: gl.constexpr
):  # fmt: skip
    """A tile, part by part: all copies are under way before the first part is widened."""
    phase = (turn & 1) ^ 1
    left = ring[0][0].index(WHICH)
    right = ring[1][0].index(WHICH)
    slots = gl.convert_layout(chosen, gl.SliceLayout(1, WIDE))
    copied = gl.convert_layout(slots, gl.SliceLayout(1, COPIED))
    mbarrier.wait(ring[2][2].index(WHICH), phase)
    rope_slots = gl.convert_layout(slots, gl.SliceLayout(1, ROPES))
    _copy_ropes(pages_wide, rope_slots, ring[2][0].index(WHICH), SMALL)
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
