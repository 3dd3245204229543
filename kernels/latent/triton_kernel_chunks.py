"""How a batch is cut: the tiles of all requests, one after the other, in equal chunks.

A tile is `TILE` tokens of a request; a request without a token has one too, in which its zeros are
written. The combine kernel cuts the batch in the same way.
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
def chunk_of(lengths, batch, chunk, chunks, BATCH: gl.constexpr, LEAST: gl.constexpr):
    """Chunks in use, first and last tile of this one, its first request and where that begins."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    requests = gl.arange(0, BATCH, layout)
    there = requests < batch
    tiles = gl.where(there, tiles_of(gl.load(lengths + requests, mask=there, other=0)), 0)
    ends = gl.associative_scan(tiles, 0, _add)
    total = gl.sum(tiles, 0)
    used = gl.minimum(chunks, (total + LEAST - 1) // LEAST)
    # The first `longer` chunks have a tile more than the others.
    share = total // used
    longer = total - share * used
    begin = chunk * share + gl.minimum(chunk, longer)
    end = begin + share + (chunk < longer).to(gl.int32)
    request = gl.sum((there & (ends <= begin)).to(gl.int32), 0)
    request_begin = gl.sum(gl.where(requests < request, tiles, 0), 0)
    return used, begin, end, request, request_begin


@gluon.jit
def span(size, begin, end, request_begin):
    """Tiles low .. high of a request that a chunk has."""
    low = gl.maximum(begin - request_begin, 0)
    high = gl.minimum(end - request_begin, tiles_of(size))
    return low, high
