"""How a batch is cut: the tiles of all requests, one after the other, in equal chunks.

A tile is `TILE` tokens of a request; a request without a token has one too, in which its zeros are
written. The combine kernel cuts the batch in the same way. Equal requests can be cut at requests
(`WHOLE`): then none has parts to combine.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

TILE = gl.constexpr(64)
"""Tokens of a tile."""


@gluon.jit
def _add(a, b):
    return a + b


@gluon.jit
def tiles_of(size):
    """Tiles of a request of `size` tokens."""
    return gl.maximum((size + TILE - 1) // TILE, 1)


@gluon.jit
def _share_of(total, chunk, chunks, LEAST: gl.constexpr):
    """Chunks in use, and first and last tile of one; the first `longer` have a tile more."""
    used = gl.minimum(chunks, (total + LEAST - 1) // LEAST)
    share = total // used
    longer = total - share * used
    begin = chunk * share + gl.minimum(chunk, longer)
    return used, begin, begin + share + (chunk < longer).to(gl.int32)


@gluon.jit
def size_of(lengths, request, SIZE: gl.constexpr):
    """Tokens of a request; with `SIZE` all have as many."""
    return gl.to_tensor(SIZE) if SIZE > 0 else gl.load(lengths + request)


@gluon.jit
def _chunk_of(
    lengths, batch, chunk, chunks, BATCH: gl.constexpr, LEAST: gl.constexpr, SIZE: gl.constexpr,
    WHOLE: gl.constexpr,
):  # fmt: skip
    """Chunks in use, first and last tile of this one, its first request and where that begins."""
    if SIZE > 0:
        each = (SIZE + TILE - 1) // TILE
        if WHOLE:
            used, request, stop = _share_of(batch, chunk, chunks, 1)
            return used, request * each, stop * each, request, request * each
        used, begin, end = _share_of(batch * each, chunk, chunks, LEAST)
        request = begin // each
        return used, begin, end, request, request * each
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    requests = gl.arange(0, BATCH, layout)
    there = requests < batch
    tiles = gl.where(there, tiles_of(gl.load(lengths + requests, mask=there, other=0)), 0)
    ends = gl.associative_scan(tiles, 0, _add)
    used, begin, end = _share_of(gl.sum(tiles, 0), chunk, chunks, LEAST)
    request = gl.sum((there & (ends <= begin)).to(gl.int32), 0)
    request_begin = gl.sum(gl.where(requests < request, tiles, 0), 0)
    return used, begin, end, request, request_begin


@gluon.jit
def part_of_program(
    lengths, batch, chunks, HEAD_BLOCKS: gl.constexpr, BATCH: gl.constexpr, LEAST: gl.constexpr,
    SIZE: gl.constexpr, WHOLE: gl.constexpr = 0,
):  # fmt: skip
    """Whether this program has work, its chunk, its block of query rows, and the chunk's plan.

    The plan: first and last tile, the first request, and the tile at which that begins. `SIZE`: the
    tokens of each request, if they are equal; `WHOLE`: no chunk ends inside of one.
    """
    chunk = gl.program_id(0) // HEAD_BLOCKS
    block = gl.program_id(0) % HEAD_BLOCKS
    used, begin, end, request, request_begin = _chunk_of(
        lengths, batch, chunk, chunks, BATCH, LEAST, SIZE, WHOLE
    )  # fmt: skip
    return chunk < used, chunk, block, (begin, end, request, request_begin)


@gluon.jit
def span(size, begin, end, request_begin):
    """Tiles low .. high of a request that a chunk has."""
    low = gl.maximum(begin - request_begin, 0)
    high = gl.minimum(end - request_begin, tiles_of(size))
    return low, high
