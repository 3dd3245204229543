"""The warps of the Hopper kernel that copy keys and values into its ring of tiles."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from kvproof.kernels.gluon import async_load
from kvproof.kernels.paged_prefill.triton_kernel_hopper_items import (
    END,
    KV_HEAD,
    LENGTH,
    LOW,
    REQUEST,
    leave,
    next_number,
    number_of,
)


@gluon.jit
def copy_pages(
    pool, listed, tables, PAGE: gl.constexpr, BOX: gl.constexpr, WIDTH: gl.constexpr,
    WARPS: gl.constexpr, LEADS: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    """Copy K or V of all items. With `LEADS` the warps also leave their numbers."""
    n = gl.to_tensor(0)
    if LEADS:
        leave(listed, n, WARPS)
    number = next_number(listed, n, WARPS)
    if PERSISTENT:
        turn = gl.to_tensor(0)
        while number < listed[1]:
            turn += _copy_item(
                pool, listed, tables, n, turn, PAGE, BOX, WIDTH, WARPS, LEADS, PERSISTENT
            )
            n += 1
            number = next_number(listed, n, WARPS)
    else:
        _copy_item(pool, listed, tables, n, 0, PAGE, BOX, WIDTH, WARPS, LEADS, PERSISTENT)


@gluon.jit
def _copy_item(
    pool, listed, tables, n, turn, PAGE: gl.constexpr, BOX: gl.constexpr, WIDTH: gl.constexpr,
    WARPS: gl.constexpr, LEADS: gl.constexpr, PERSISTENT: gl.constexpr,
):  # fmt: skip
    """Copy the tiles of an item, from the newest to the oldest; their number."""
    block_table, table_row = tables
    length = number_of(listed, n, LENGTH, WARPS)
    end = number_of(listed, n, END, WARPS)
    tiles = end - number_of(listed, n, LOW, WARPS)
    column = number_of(listed, n, KV_HEAD, WARPS) * WIDTH
    table = block_table + number_of(listed, n, REQUEST, WARPS).to(gl.int64) * table_row
    for i in range(tiles):
        _copy_tile(pool, table, turn + i, end - 1 - i, length, column, PAGE, BOX)
        if LEADS and PERSISTENT:  # noqa: SIM102 - the outer one is decided by the compiler
            # Two tiles are under way, so there is time for the next item.
            if i == gl.minimum(1, tiles - 1):
                leave(listed, n + 1, WARPS)
    return tiles


@gluon.jit
def _copy_tile(pool, table, at, tile, length, column, PAGE: gl.constexpr, BOX: gl.constexpr):
    """Copy the boxes of a tile as soon as its place in the ring is free."""
    desc, smem, full, empty, rows, apart = pool
    STAGES: gl.constexpr = smem.shape[0]
    TILE: gl.constexpr = smem.shape[1]
    stage = at % STAGES
    first = tile * TILE
    pages = ()
    for j in gl.static_range(TILE // BOX):
        position = first + j * BOX
        page = gl.load(table + position // PAGE, mask=position < length, other=0)
        pages = pages + (page,)  # noqa: RUF005 - Triton has no starred expressions
    mbarrier.wait(empty.index(stage), ((at // STAGES) & 1) ^ 1)
    mbarrier.expect(full.index(stage), TILE * smem.shape[2] * 2)
    for j in gl.static_range(TILE // BOX):
        position = first + j * BOX
        # Past the end of the pool the copy brings zeros.
        row = gl.where(position < length, pages[j] * apart + position % PAGE, rows)
        async_load(desc, [row, column], full.index(stage), smem.index(stage).slice(j * BOX, BOX))
