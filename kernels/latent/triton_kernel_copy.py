"""The warp that copies queries and tiles of bfloat16 or float16 pages into shared memory.

A tile goes into one of two buffers, in three parts with barriers of their own: the left and the
right half of the value columns and the rotary columns. The tensor memory unit brings `BOX` rows of
a page at a time, so a tile holds tokens of any number of pages.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kvproof.kernels.gluon import async_load
from kvproof.kernels.latent.triton_kernel_chunks import TILE, span, tiles_of

FLAT = gl.constexpr(gl.BlockedLayout([1], [32], [4], [0]))
"""Layout of one number for each token of a tile, in a warp group."""


@gluon.jit
def pages_of(table, first, limit, PAGE: gl.constexpr, BOX: gl.constexpr):
    """Ids of the pages of a tile, one for each box."""
    pages = ()
    for j in gl.static_range(TILE // BOX):
        at = first + j * BOX
        page = gl.load(table + at // PAGE, mask=at < limit, other=0)
        pages = pages + (page,)  # noqa: RUF005 - Triton has no starred expressions
    return pages


@gluon.jit
def _copy_part(
    desc, pages, part, turn, first, limit, column, rows, apart,
    WHICH: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """Copy some columns of a tile as soon as their place is free."""
    tiles, all_full, all_empty = part
    tile, full = (tiles.index(WHICH), all_full.index(WHICH))
    mbarrier.wait(all_empty.index(WHICH), (turn & 1) ^ 1)
    mbarrier.expect(full, TILE * tile.shape[1] * 2)
    for j in gl.static_range(TILE // BOX):
        at = first + j * BOX
        # Past the end of the pool the copy brings zeros.
        row = gl.where(at < limit, pages[j] * apart + at % PAGE, rows)
        async_load(desc, [row, column], full, tile.slice(j * BOX, BOX))


@gluon.jit
def _copy_tile(
    k_desc, rope_desc, table, ring, turn, first, limit, rows, apart,
    WHICH: gl.constexpr, PAGE: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    left, right, rope = ring
    HALF: gl.constexpr = left[0].shape[2]
    pages = pages_of(table, first, limit, PAGE, BOX)
    _copy_part(rope_desc, pages, rope, turn, first, limit, 2 * HALF, rows, apart, WHICH, PAGE, BOX)
    _copy_part(k_desc, pages, left, turn, first, limit, 0, rows, apart, WHICH, PAGE, BOX)
    _copy_part(k_desc, pages, right, turn, first, limit, HALF, rows, apart, WHICH, PAGE, BOX)


@gluon.jit
def copy_queries(q_desc, q_rope_desc, query, served, request, block, numbers):
    """Copy the query rows of a request, once those of all `served` before it are done with."""
    queries, q_rope, q_full, q_empty = query
    q_left, q_right = queries  # Triton 3.6 unpacks no tuple inside a tuple
    ROWS: gl.constexpr = q_rope.shape[0]
    HALF: gl.constexpr = q_left.shape[2]
    mbarrier.wait(q_empty, (served & 1) ^ 1)
    mbarrier.expect(q_full, ROWS * (2 * HALF + q_rope.shape[1]) * 2)
    row = request * numbers + block * ROWS
    async_load(q_rope_desc, [row, 2 * HALF], q_full, q_rope)
    async_load(q_desc, [row, 0], q_full, q_left.index(0))
    async_load(q_desc, [row, HALF], q_full, q_right.index(0))


@gluon.jit
def copy_chunk(
    q_desc, q_rope_desc, k_desc, rope_desc, block_table, lengths, table_row, rows, apart, ring,
    query, plan, block, numbers, PAGE: gl.constexpr, BOX: gl.constexpr,
):  # fmt: skip
    """Copy the queries of each request of a chunk, and its tiles from the newest to the oldest."""
    begin, end, request, request_begin = plan
    turn = 0
    other_turn = 0
    served = 0
    while request_begin < end:
        size = gl.load(lengths + request)
        low, high = span(size, begin, end, request_begin)
        limit = gl.minimum(size, high * TILE)
        table = block_table + request.to(gl.int64) * table_row
        copy_queries(q_desc, q_rope_desc, query, served, request, block, numbers)
        count = (high - low + 1) // 2
        other_count = high - low - count
        for i in range(count):
            first = (high - 1 - 2 * i) * TILE
            _copy_tile(
                k_desc, rope_desc, table, ring, turn + i, first, limit, rows, apart, 0, PAGE, BOX
            )  # fmt: skip
            if i < other_count:
                _copy_tile(
                    k_desc, rope_desc, table, ring, other_turn + i, first - TILE, limit, rows,
                    apart, 1, PAGE, BOX,
                )  # fmt: skip
        turn += count
        other_turn += other_count
        served += 1
        request_begin += tiles_of(size)
        request += 1
