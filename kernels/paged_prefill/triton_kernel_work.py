"""Divides the attention of a batch among programs, request by request, on the device.

A block of query rows that sees much more context than others is cut into parts. How many the
longest is cut into is the number for which the estimated time of the launch is least; other blocks
are cut to pieces of that size, so most are whole.
"""

import triton
import triton.language as tl

FIELDS = tl.constexpr(8)
"""Numbers of an item: first token, new tokens and length of its request, the request, its first row
among those of the request, its first tile of the context, the tile it ends before, and the place of
its part, -1 for a whole block. Numbers of a merge: first token, first row, rows, parts, place of
the first part."""

ENTRIES = tl.constexpr(10)
"""Counts of pieces that are tried: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32."""


@triton.jit
def _blocks(query_starts, lengths, batch, window, GROUP, ROWS, TILE, STEPS, BLOCKS):
    """Blocks of rows: their request and rows, and the tiles of the context that they see.

    A request with n rows owns n // ROWS + 1 blocks or one more, perhaps without rows.
    """
    block = tl.arange(0, BLOCKS)
    request = tl.zeros([BLOCKS], tl.int32)
    high = request + batch
    for _ in tl.static_range(STEPS):
        middle = (request + high) // 2
        reached = tl.load(query_starts + middle) * GROUP // ROWS + middle <= block
        request = tl.where(reached, middle, request)
        high = tl.where(reached, high, middle)
    start = tl.load(query_starts + request)
    new = tl.load(query_starts + request + 1) - start
    length = tl.load(lengths + request)
    row = (block - (start * GROUP // ROWS + request)) * ROWS
    rows = tl.minimum(new * GROUP - row, ROWS)
    cached = length - new
    end = (cached + (row + rows - 1) // GROUP) // TILE + 1
    low = tl.where(window > 0, tl.maximum(cached + row // GROUP - window + 1, 0) // TILE, 0)
    tiles = tl.where((row >= 0) & (rows > 0), end - low, 0)
    return request, start, new, length, row, rows, low, end, tiles


@triton.jit
def _time(tiles, weight, size, programs, overhead, combining, parting, most_parts, KV_HEADS):
    """Estimated time of a launch with pieces of at most `size` tiles, infinite without room."""
    pieces = tl.cdiv(tiles, size)
    items = tl.sum(pieces, 0)
    parts = tl.sum(tl.where(pieces > 1, pieces, 0), 0)
    longest = tl.max(tl.cdiv(tiles, tl.maximum(pieces, 1)) * weight, 0) + overhead
    work = tl.sum(tiles * weight, 0) + items * overhead
    # Equal pieces run in waves; unequal ones fill all programs but at the end.
    waves = tl.cdiv(items * KV_HEADS, programs) * longest
    time = tl.minimum(waves, work * KV_HEADS / programs + longest / 2)
    time += tl.where(parts > 0, combining + parts * KV_HEADS * parting, 0.0)
    return tl.where(parts <= most_parts, time, float("inf"))


@triton.jit(do_not_specialize=["batch", "window", "programs", "most_parts"])
def divide(
    query_starts,
    lengths,
    counts,
    items,
    merges,
    batch,
    window,
    programs,
    most_parts,
    overhead,
    combining,
    parting,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    STEPS: tl.constexpr,
    BLOCKS: tl.constexpr,
    PIECES: tl.constexpr,
):
    """List the items of one KV head, those of more than half a block of rows first.

    `counts`: these, the others, and the blocks to merge. Times are in tiles of half a block.
    """
    request, start, new, length, row, rows, low, end, tiles = _blocks(
        query_starts, lengths, batch, window, GROUP, ROWS, TILE, STEPS, BLOCKS
    )
    full = rows > ROWS // 2
    most = tl.maximum(tl.max(tiles, 0), 1)
    size = tl.cdiv(most, PIECES) if PIECES else most
    if PIECES == 0:
        weight = tl.where(full, 2, 1)
        least = float("inf")
        for entry in tl.static_range(ENTRIES):
            count = (2 + (entry - 1) % 2) << ((entry - 1) // 2) if entry else 1
            tried = tl.cdiv(most, count)
            time = _time(
                tiles, weight, tried, programs, overhead, combining, parting, most_parts, KV_HEADS
            )
            size = tl.where(time < least, tried, size)
            least = tl.minimum(time, least)
    # Of equal size, and none empty.
    share = tl.maximum(tl.cdiv(tiles, tl.maximum(tl.cdiv(tiles, size), 1)), 1)
    pieces = tl.cdiv(tiles, share)
    whole = tl.where(full, pieces, 0)
    others = pieces - whole
    heavy, light = tl.sum(whole, 0), tl.sum(others, 0)
    # The last blocks of a request see the most context, so they come first.
    place = tl.where(
        full, heavy - tl.cumsum(whole, 0), heavy + light - tl.cumsum(others, 0)
    )
    parts = tl.where(pieces > 1, pieces, 0)
    slot = tl.cumsum(parts, 0) - parts
    for piece in tl.range(0, tl.max(pieces, 0)):
        here = piece < pieces
        at = items + (place + piece) * FIELDS
        stop = end - piece * share
        tl.store(at, start, mask=here)
        tl.store(at + 1, new, mask=here)
        tl.store(at + 2, length, mask=here)
        tl.store(at + 3, request, mask=here)
        tl.store(at + 4, row, mask=here)
        tl.store(at + 5, tl.maximum(low, stop - share), mask=here)
        tl.store(at + 6, stop, mask=here)
        tl.store(at + 7, tl.where(pieces > 1, slot + piece, -1), mask=here)
    cut = pieces > 1
    at = merges + (tl.cumsum(cut.to(tl.int32), 0) - 1) * FIELDS
    tl.store(at, start, mask=cut)
    tl.store(at + 1, row, mask=cut)
    tl.store(at + 2, rows, mask=cut)
    tl.store(at + 3, pieces, mask=cut)
    tl.store(at + 4, slot, mask=cut)
    tl.store(counts, heavy)
    tl.store(counts + 1, light)
    tl.store(counts + 2, tl.sum(cut.to(tl.int32), 0))


@triton.jit
def item_of(program, counts, KV_HEADS: tl.constexpr):
    """The item of a program and its KV head; -1 for a program without work.

    Items of many rows are spread among the first of the others, for they keep the matrix units
    busy and these the memory. Of many rows one KV head comes after the other, so that its keys and
    values stay in the L2 cache; of few all heads of a token are read together.
    """
    heavy = tl.load(counts).to(tl.int64) * KV_HEADS
    light = tl.load(counts + 1).to(tl.int64) * KV_HEADS
    front = tl.maximum(heavy + light - light // 4, 1)
    before = tl.minimum((program * heavy + front - 1) // front, heavy)
    after = tl.minimum(((program + 1) * heavy + front - 1) // front, heavy)
    each = tl.maximum(heavy // KV_HEADS, 1)
    other = program - before
    is_heavy = after > before
    item = tl.where(is_heavy, before % each, heavy // KV_HEADS + other // KV_HEADS)
    head = tl.where(is_heavy, before // each, other % KV_HEADS)
    return tl.where(program < heavy + light, item, -1).to(tl.int32), head.to(tl.int32)
