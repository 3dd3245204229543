"""The highest scores of a row: a threshold is found bit by bit, and what reaches it is written.

A program holds a chunk of a row in registers. A row of several chunks takes several levels: of each
chunk the best are kept, and of those the best. Of equal scores the earlier position is chosen, so
the choice does not depend on how a row is cut.
"""

import triton
import triton.language as tl

DEAD = tl.constexpr(-2147483648)
"""Key of what may not be chosen: below that of every score."""


@triton.jit
def _key(score):
    """An integer that is ordered as scores are; both zeros are one."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return tl.maximum(bits ^ ((bits >> 31) & 0x7FFFFFFF), DEAD + 1)


@triton.jit
def _threshold(key, count):
    """The greatest number that at least `count` keys reach, or one that exactly `count` reach."""
    least = DEAD
    reached = -1
    bit = 31
    while (bit >= 0) & (reached != count):
        tried = least ^ (1 << bit)
        found = tl.sum((key >= tried).to(tl.int32), 0)
        least = tl.where(found >= count, tried, least)
        reached = tl.where(found >= count, found, reached)
        bit -= 1
    return least, reached


@triton.jit
def _chosen(key, count):
    """Which keys are the `count` highest, the earlier of equal ones first."""
    least, reached = _threshold(key, count)
    chosen = key >= least
    if reached != count:
        equal = key == least
        missing = count - tl.sum((key > least).to(tl.int32), 0)
        chosen = (key > least) | (equal & (tl.cumsum(equal.to(tl.int32), 0) <= missing))
    return chosen


@triton.jit
def _write(out, kept, table, column, position, score, mask, PAGE: tl.constexpr):
    """A position, or its slot; and its score, if there is a next level."""
    found = position
    if PAGE > 0:
        page = tl.load(table + position // PAGE, mask=mask, other=0)
        found = page * PAGE + position % PAGE
    tl.store(out + column, found, mask=mask)
    if kept is not None:
        tl.store(kept + column, score, mask=mask)


@triton.jit
def topk(
    scores, positions, lengths, block_table, out, kept, q_tokens, width, table_row, out_row,
    COUNT: tl.constexpr, COLUMNS: tl.constexpr, CHUNK: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """The `COUNT` best of a chunk of a row; grid: rows, chunks.

    `scores` [rows, width] and, but at the first level, `positions` of the same shape, -1 for none.
    `out` and, but at the last level, `kept` are [rows, chunks * COUNT]: positions, and their
    scores. With `PAGE` positions become slots.
    """
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    request = row // q_tokens
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    source = row.to(tl.int64) * width
    if positions is None:
        seen = tl.load(lengths + request) - (q_tokens - 1 - row % q_tokens)
        live = at < tl.minimum(seen, width)
        position = at
    else:
        position = tl.load(positions + source + at, mask=at < width, other=-1)
        live = position >= 0
    target = out + row.to(tl.int64) * out_row + chunk * COUNT
    kept_target = None if kept is None else kept + row.to(tl.int64) * out_row + chunk * COUNT
    count = tl.minimum(tl.sum(live.to(tl.int32), 0), COUNT)
    if count > 0:
        score = tl.load(scores + source + at, mask=live, other=0.0)
        key = tl.where(live, _key(score), DEAD)
        chosen = _chosen(key, count)
        column = tl.cumsum(chosen.to(tl.int32), 0) - 1
        table = block_table + request.to(tl.int64) * table_row
        _write(target, kept_target, table, column, position, score, chosen, PAGE)
    column = tl.arange(0, COLUMNS)
    tl.store(target + column, -1, mask=(column >= count) & (column < COUNT))
