"""Divides the attention of a batch among programs, request by request, on the device.

A block of query rows that sees much more context than others is cut into parts. How many the
longest is cut into is the number for which the estimated time of the launch is least; other blocks
are cut to pieces of that size, so most are whole.
"""

import triton
import triton.language as tl

FIELDS = tl.constexpr(12)
"""Numbers of an item: first token, new tokens and length of its request, the request, its first row
among those of the request, its first tile of the context, the tile it ends before, the place of its
part, -1 for a whole block, the KV head, and the last position that the first token of the request
sees. Numbers of a merge: first token, first row, rows,
parts, place of the first part."""

ENTRIES = tl.constexpr(10)
"""Counts of pieces that are tried: 1, 2, 3, 4, 6, 8, 12, 16, 24, 32."""


@triton.jit
def _starts(query_starts, request, EACH: tl.constexpr):
    """The first token of requests; with `EACH` all have as many."""
    return request * EACH if EACH else tl.load(query_starts + request)


@triton.jit
def _blocks(block, query_starts, lengths, batch, steps, window, GROUP, ROWS, TILE, EACH, CAUSAL):
    """Blocks of rows: their request and rows, and the tiles of the context that they see.

    A request with n rows owns n // ROWS + 1 blocks or one more, perhaps without rows.
    """
    request = tl.zeros_like(block)
    high = request + batch
    for _ in tl.range(0, steps):
        middle = (request + high) // 2
        reached = _starts(query_starts, middle, EACH) * GROUP // ROWS + middle <= block
        request = tl.where(reached, middle, request)
        high = tl.where(reached, high, middle)
    start = _starts(query_starts, request, EACH)
    new = _starts(query_starts, request + 1, EACH) - start
    length = tl.load(lengths + request)
    row = (block - (start * GROUP // ROWS + request)) * ROWS
    rows = tl.minimum(new * GROUP - row, ROWS)
    own = length - new if CAUSAL else length - 1
    last = tl.minimum(own + (row + rows - 1) // GROUP, length - 1)
    # A request without tokens has a tile in which its zeros are written.
    end = tl.maximum(last, 0) // TILE + 1
    low = tl.where(window > 0, tl.maximum(own + row // GROUP - window + 1, 0) // TILE, 0)
    tiles = tl.where((row >= 0) & (rows > 0), end - low, 0)
    return request, start, new, length, own, row, rows, low, end, tiles


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


@triton.jit
def _by_time(block, share, full, BLOCKS: tl.constexpr):
    """Blocks in the order of the time of their pieces, the longest first."""
    time = (share * tl.where(full, 2, 1)).to(tl.int64)
    ordered = tl.sort(time * BLOCKS + (BLOCKS - 1 - block), descending=True)
    return (BLOCKS - 1 - ordered % BLOCKS).to(tl.int32)


@triton.jit(do_not_specialize=["batch", "steps", "window", "programs", "most_parts"])
def divide(
    query_starts,
    lengths,
    counts,
    items,
    merges,
    batch,
    steps,
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
    BLOCKS: tl.constexpr,
    PIECES: tl.constexpr,
    CUT: tl.constexpr,
    EACH: tl.constexpr,
    CAUSAL: tl.constexpr,
    SORTED: tl.constexpr,
):
    """List the items of one KV head at the numbers of the programs that attend them.

    Items of more than half a block of rows are spread among the first of the others, for they keep
    the matrix units busy and these the memory. Of many rows one KV head comes after the other, so
    that its keys and values stay in the L2 cache; of few all heads of a token are read together.
    `SORTED`: programs attend several items each, so the longest come first.
    `counts`: items, and blocks of a KV head to merge. Times are in tiles of half a block.
    """
    kv_head = tl.program_id(0)
    block = tl.arange(0, BLOCKS)
    request, start, new, length, own, row, rows, low, end, tiles = _blocks(
        block, query_starts, lengths, batch, steps, window, GROUP, ROWS, TILE, EACH, CAUSAL
    )
    full = rows > ROWS // 2
    most = tl.maximum(tl.max(tiles, 0), 1)
    size = tl.cdiv(most, PIECES) if PIECES else most
    if CUT and PIECES == 0:
        weight = tl.where(full, 2, 1)
        least = tl.full([], float("inf"), tl.float32)
        # No unrolled loop: most of the time of this kernel is that of fetching its instructions.
        for entry in tl.range(1, ENTRIES + 1):
            tried = tl.cdiv(most, ((2 + entry % 2) << (entry // 2)) // 2)
            time = _time(
                tiles, weight, tried, programs, overhead, combining, parting, most_parts, KV_HEADS
            )
            size = tl.where(time < least, tried, size)
            least = tl.minimum(time, least)
    if SORTED:
        block = _by_time(block, tl.cdiv(tiles, tl.maximum(tl.cdiv(tiles, size), 1)), full, BLOCKS)
        request, start, new, length, own, row, rows, low, end, tiles = _blocks(
            block, query_starts, lengths, batch, steps, window, GROUP, ROWS, TILE, EACH, CAUSAL
        )
        full = rows > ROWS // 2
    # Of equal size, and none empty.
    share = tl.maximum(tl.cdiv(tiles, tl.maximum(tl.cdiv(tiles, size), 1)), 1)
    pieces = tl.cdiv(tiles, share)
    many = tl.where(full, pieces, 0)
    few = pieces - many
    heavy, light = tl.sum(many, 0).to(tl.int64), tl.sum(few, 0).to(tl.int64)
    # The last blocks of a request see the most context, so they come first.
    of_many = kv_head * heavy + heavy - tl.cumsum(many, 0)
    of_few = light - tl.cumsum(few, 0)
    heavy *= KV_HEADS
    light *= KV_HEADS
    among = tl.maximum(light - light // 4, 1)
    parts = tl.where(pieces > 1, pieces, 0)
    slot = tl.cumsum(parts, 0) - parts
    for piece in tl.range(0, tl.max(pieces, 0)):
        here = piece < pieces
        before = (of_few + piece) * KV_HEADS + kv_head
        late = before + tl.minimum(((before + 1) * heavy + among - 1) // among, heavy)
        early = (of_many + piece) * (heavy + among) // tl.maximum(heavy, 1)
        early = tl.where(light > 0, early, of_many + piece)
        if SORTED:
            early = (tl.cumsum(pieces, 0) - pieces + piece) * KV_HEADS + kv_head
            late = early
        at = items + tl.where(full, early, late) * FIELDS
        stop = end - piece * share
        tl.store(at, start, mask=here)
        tl.store(at + 1, new, mask=here)
        tl.store(at + 2, length, mask=here)
        tl.store(at + 3, request, mask=here)
        tl.store(at + 4, row, mask=here)
        tl.store(at + 5, tl.maximum(low, stop - share), mask=here)
        tl.store(at + 6, stop, mask=here)
        tl.store(at + 7, tl.where(pieces > 1, slot + piece, -1), mask=here)
        tl.store(at + 8, kv_head, mask=here)
        tl.store(at + 9, own, mask=here)
    if kv_head == 0:
        cut = pieces > 1
        number = tl.cumsum(cut.to(tl.int32), 0)
        at = merges + (number - 1) * FIELDS
        tl.store(at, start, mask=cut)
        tl.store(at + 1, row, mask=cut)
        tl.store(at + 2, rows, mask=cut)
        tl.store(at + 3, pieces, mask=cut)
        tl.store(at + 4, slot, mask=cut)
        tl.store(counts, heavy + light)
        tl.store(counts + 1, tl.max(number, 0))
