"""Scores of cached keys: the sum over heads of weight * relu(query * key), times the key's scale.

Both factors of the products are FP8. Keys are the rows of a product and heads its columns, so that
the sum over heads stays within a few threads.
"""

import triton
import triton.language as tl

WIDTH = tl.constexpr(128)


@triton.jit
def _load_keys(values, scales, table, first, limit, PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr,
               TILE: tl.constexpr):  # fmt: skip
    """Values and scales of a tile of keys; zeros where there is none."""
    at = first + tl.arange(0, TILE)
    there = at < limit
    page = tl.load(table + at // PAGE, mask=there, other=0).to(tl.int64)
    offset = at % PAGE
    column = tl.arange(0, WIDTH)
    rows = page * PAGE_BYTES + offset * WIDTH
    keys = tl.load(values + rows[:, None] + column[None, :], mask=there[:, None], other=0.0)
    scale = page * (PAGE_BYTES // 4) + (PAGE * WIDTH // 4 + offset)
    return keys, tl.load(scales + scale, mask=there, other=0.0)


@triton.jit
def _load_query(q, weights, row, heads, HEADS: tl.constexpr):
    """Queries of all heads, and their weights; zeros beyond the last head."""
    head = tl.arange(0, HEADS)
    column = tl.arange(0, WIDTH)
    at = row.to(tl.int64) * heads + head
    there = head < heads
    query = tl.load(q + at[:, None] * WIDTH + column[None, :], mask=there[:, None], other=0.0)
    return query, tl.load(weights + at, mask=there, other=0.0)


@triton.jit
def _scored(keys, scale, query, weight):
    products = tl.dot(keys, tl.trans(query))
    return tl.sum(tl.maximum(products, 0.0) * weight[None, :], 1) * scale


@triton.jit
def score_few(
    q, weights, values, scales, block_table, lengths, scores, heads, table_row, width,
    Q_TOKENS: tl.constexpr, HEADS: tl.constexpr, PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr,
    TILE: tl.constexpr, EACH: tl.constexpr,
):  # fmt: skip
    """`EACH` tiles of a request for a few query tokens; grid: requests, slices of the context."""
    request = tl.program_id(0)
    length = tl.load(lengths + request)
    begin = tl.program_id(1) * (TILE * EACH)
    if begin >= length:
        return
    queries = ()
    for i in tl.static_range(Q_TOKENS):
        queries = queries + (_load_query(q, weights, request * Q_TOKENS + i, heads, HEADS),)  # noqa: RUF005 - Triton has no starred expressions
    table = block_table + request.to(tl.int64) * table_row
    end = tl.minimum(begin + TILE * EACH, length)
    for first in tl.range(begin, end, TILE, num_stages=3):
        keys, scale = _load_keys(values, scales, table, first, length, PAGE, PAGE_BYTES, TILE)
        at = first + tl.arange(0, TILE)
        for i in tl.static_range(Q_TOKENS):
            found = _scored(keys, scale, queries[i][0], queries[i][1])
            row = (request * Q_TOKENS + i).to(tl.int64) * width
            tl.store(scores + row + at, found, mask=at < length - (Q_TOKENS - 1 - i))


@triton.jit
def score_many(
    q, weights, values, scales, block_table, lengths, scores, heads, table_row, width, q_tokens,
    HEADS: tl.constexpr, PAGE: tl.constexpr, PAGE_BYTES: tl.constexpr, TILE: tl.constexpr,
    EACH: tl.constexpr,
):  # fmt: skip
    """A tile of a request for `EACH` query tokens; grid: tiles, slices of tokens, requests."""
    request = tl.program_id(2)
    length = tl.load(lengths + request)
    first = tl.program_id(0) * TILE
    begin = tl.program_id(1) * EACH
    end = tl.minimum(begin + EACH, q_tokens)
    # The first query token of the slice that sees the tile.
    begin = tl.maximum(begin, first - (length - q_tokens))
    if begin >= end:
        return
    table = block_table + request.to(tl.int64) * table_row
    keys, scale = _load_keys(values, scales, table, first, length, PAGE, PAGE_BYTES, TILE)
    at = first + tl.arange(0, TILE)
    for i in tl.range(begin, end, num_stages=3):
        row = request * q_tokens + i
        query, weight = _load_query(q, weights, row, heads, HEADS)
        found = _scored(keys, scale, query, weight)
        tl.store(scores + row.to(tl.int64) * width + at, found, mask=at <= length - q_tokens + i)
