"""The warp group that brings chosen tokens of FP8 rows into shared memory, as bfloat16.

A row has 656 bytes, the layout `fp8_ds_mla` of engines: 512 float8_e4m3 values, 4 float32 scales
for 128 of them each, 64 rotary columns in bfloat16. Rows of the tile after are asked for, into L2,
while those of a tile are widened: registers for more loads under way there are none.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier

from kvproof.kernels.gluon import async_load
from kvproof.kernels.latent.triton_kernel_chunks import TILE, size_of, span, tiles_of

ROW = gl.constexpr(656)
GROUP = gl.constexpr(128)
"""Values that share a scale."""

ROWS = gl.constexpr(32)
"""Tokens of a piece: smaller ones leave registers for loads under way."""

WIDE = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
ROPES = gl.constexpr(gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0]))
"""A thread has the same rows of both, so that it loads their slots once."""

SLOTS = gl.constexpr(gl.SliceLayout(1, WIDE.value))
FLAT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))


@gluon.jit
def _slots_of(indices, first, limit, count: gl.constexpr, layout: gl.constexpr):
    """Slots of tokens; -1 stands for none, as all do of a tile that does not exist."""
    at = first + gl.arange(0, count, layout)
    return gl.load(indices + at, mask=(at >= 0) & (at < limit), other=-1)


@gluon.jit
def _ask_for(pages, slots):
    """Ask for rows of memory, into L2; nothing waits for them."""
    rows = pages + gl.maximum(slots, 0).to(gl.int64) * ROW
    gl.inline_asm_elementwise(
        """{
        .reg .pred p;
        setp.ge.s32 p, $2, 0;
        @p cp.async.bulk.prefetch.L2.global [$1], 656;
        mov.b32 $0, 0;
        }""",
        "=r,l,r",
        [rows.to(gl.int64, bitcast=True), slots],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.jit
def _row_of(slots, width: gl.constexpr, SMALL: gl.constexpr):
    """Where rows begin, in units of which a row has `width`; a small pool needs no 64 bits."""
    row = gl.maximum(slots, 0)
    if not SMALL:
        row = row.to(gl.int64)
    return row * width


@gluon.jit
def _load_piece(pages, scales, slots, group: gl.constexpr, SMALL: gl.constexpr):
    """Bytes of a group of values of some tokens, and its scale of each."""
    there = slots >= 0
    column = group * GROUP + gl.arange(0, GROUP, gl.SliceLayout(0, WIDE))
    place = pages + (_row_of(slots, ROW, SMALL)[:, None] + column[None, :])
    bits = gl.load(place, mask=there[:, None], other=0)
    at = _row_of(slots, ROW // 4, SMALL) + (GROUP + group)
    return bits, gl.load(scales + at, mask=there, other=0.0)


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
def _widen(piece, tile, group: gl.constexpr, first: gl.constexpr):
    """Scale a piece and store it where it belongs in its half of a tile."""
    bits, scale = piece
    place: gl.constexpr = group * GROUP % tile.shape[1]
    tile.slice(first, ROWS).slice(place, GROUP, 1).store(_scaled(bits, scale))


@gluon.jit
def _load_ropes(pages_wide, slots, SMALL: gl.constexpr):
    """Rotary columns of some tokens."""
    row = gl.convert_layout(_row_of(slots, ROW // 2, SMALL), gl.SliceLayout(1, ROPES))
    column = (ROW - 128) // 2 + gl.arange(0, 64, gl.SliceLayout(0, ROPES))
    mask = gl.convert_layout(slots >= 0, gl.SliceLayout(1, ROPES))[:, None]
    return gl.load(pages_wide + (row[:, None] + column[None, :]), mask=mask, other=0.0)


@gluon.jit
def _store_ropes(ropes, slots, tile, bias, first: gl.constexpr):
    """Store rotary columns, and 0 or -inf for each token that there is or is not."""
    tile.slice(first, ROWS).store(ropes)
    bias.slice(first, ROWS).store(gl.where(slots >= 0, 0.0, float("-inf")))


@gluon.jit
def _fill(part, WHICH: gl.constexpr):
    fence_async_shared()
    mbarrier.arrive(part[1].index(WHICH))


@gluon.jit
def _bring_tile(
    pages, scales, pages_wide, slots, ring, biases, turn, WHICH: gl.constexpr,
    SMALL: gl.constexpr,
):  # fmt: skip
    """A tile, piece by piece as places become free; loads run ahead of what is stored."""
    low, high = slots
    phase = (turn & 1) ^ 1
    left = ring[0][0].index(WHICH)
    right = ring[1][0].index(WHICH)
    rope = ring[2][0].index(WHICH)
    low_ropes = _load_ropes(pages_wide, low, SMALL)
    high_ropes = _load_ropes(pages_wide, high, SMALL)
    first = _load_piece(pages, scales, low, 0, SMALL)
    second = _load_piece(pages, scales, low, 1, SMALL)
    mbarrier.wait(ring[2][2].index(WHICH), phase)
    _store_ropes(low_ropes, low, rope, biases.index(WHICH), 0)
    _store_ropes(high_ropes, high, rope, biases.index(WHICH), ROWS)
    _fill(ring[2], WHICH)
    third = _load_piece(pages, scales, high, 0, SMALL)
    mbarrier.wait(ring[0][2].index(WHICH), phase)
    _widen(first, left, 0, 0)
    first = _load_piece(pages, scales, high, 1, SMALL)
    _widen(second, left, 1, 0)
    second = _load_piece(pages, scales, low, 2, SMALL)
    _widen(third, left, 0, ROWS)
    third = _load_piece(pages, scales, low, 3, SMALL)
    _widen(first, left, 1, ROWS)
    _fill(ring[0], WHICH)
    first = _load_piece(pages, scales, high, 2, SMALL)
    mbarrier.wait(ring[1][2].index(WHICH), phase)
    _widen(second, right, 2, 0)
    second = _load_piece(pages, scales, high, 3, SMALL)
    _widen(third, right, 3, 0)
    _widen(first, right, 2, ROWS)
    _widen(second, right, 3, ROWS)
    _fill(ring[1], WHICH)


@gluon.jit
def _pieces_of(indices, first, limit):
    return (
        _slots_of(indices, first, limit, ROWS, SLOTS),
        _slots_of(indices, first + ROWS, limit, ROWS, SLOTS),
    )


@gluon.jit
def widen_chunk(
    q_desc, q_rope_desc, pages, scales, pages_wide, indices, indices_row, ring, query, biases,
    plan, block, numbers, SIZE: gl.constexpr, SMALL: gl.constexpr,
):  # fmt: skip
    """Copy the queries of each request of a chunk, and widen its tiles, the last ones first."""
    begin, end, request, request_begin = plan
    queries, q_rope, q_full, q_empty = query
    q_left, q_right = queries
    HALF: gl.constexpr = q_left.shape[2]
    turn = 0
    other_turn = 0
    served = 0
    while request_begin < end:
        size = size_of(indices, request, SIZE)
        low, high = span(size, begin, end, request_begin)
        limit = gl.minimum(size, high * TILE)
        chosen = indices + request.to(gl.int64) * indices_row
        newest = (high - 1) * TILE
        slots = _pieces_of(chosen, newest, limit)
        _ask_for(pages, _slots_of(chosen, newest, limit, TILE, FLAT))
        asked = _slots_of(chosen, newest - TILE, limit, TILE, FLAT)
        mbarrier.wait(q_empty, (served & 1) ^ 1)
        mbarrier.expect(q_full, q_rope.shape[0] * (2 * HALF + q_rope.shape[1]) * 2)
        q_row = request * numbers + block * q_rope.shape[0]
        async_load(q_rope_desc, [q_row, 2 * HALF], q_full, q_rope)
        async_load(q_desc, [q_row, 0], q_full, q_left.index(0))
        async_load(q_desc, [q_row, HALF], q_full, q_right.index(0))
        count = (high - low + 1) // 2
        other_count = high - low - count
        for i in range(count):
            first = newest - 2 * i * TILE
            _ask_for(pages, asked)
            asked = _slots_of(chosen, first - 2 * TILE, limit, TILE, FLAT)
            after = _pieces_of(chosen, first - TILE, limit)
            _bring_tile(
                pages, scales, pages_wide, slots, ring, biases, turn + i, 0, SMALL
            )  # fmt: skip
            slots = after
            if i < other_count:
                _ask_for(pages, asked)
                asked = _slots_of(chosen, first - 3 * TILE, limit, TILE, FLAT)
                after = _pieces_of(chosen, first - 2 * TILE, limit)
                _bring_tile(
                    pages, scales, pages_wide, slots, ring, biases, other_turn + i, 1, SMALL
                )  # fmt: skip
                slots = after
        turn += count
        other_turn += other_count
        served += 1
        request_begin += tiles_of(size)
        request += 1
