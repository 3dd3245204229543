"""The highest scores of a row: a threshold is found, and the scores that reach it are written.

A program holds a chunk of a row in registers. A row of several chunks takes several levels: of each
chunk the best are kept, and of those the best. Of equal scores the earlier position is chosen, so
the choice does not depend on how a row is cut.
"""

import triton
import triton.language as tl

DEAD = tl.constexpr(-2147483648)
MOST = tl.constexpr(2147483646)
"""Key of what may not be chosen, below that of every score, and the greatest of a score."""


@triton.jit
def _key(score):
    """An integer that is ordered as scores are; both zeros are one."""
    bits = tl.where(score == 0.0, 0.0, score).to(tl.int32, bitcast=True)
    return tl.minimum(tl.maximum(bits ^ ((bits >> 31) & 0x7FFFFFFF), DEAD + 1), MOST)


@triton.jit
def _threshold(key, live, all_live, count):
    """The greatest number that at least `count` keys reach, or one that exactly `count` reach.

    Where between two numbers it must be is guessed from how many keys reach either (regula falsi,
    with the Illinois rule); each fourth guess is the middle, so that no scores take many.
    """
    low = tl.min(tl.where(live, key, MOST), 0).to(tl.int64)
    high = tl.max(key, 0).to(tl.int64) + 1
    reached = all_live
    beyond = 0
    low_weight = 1.0
    high_weight = 1.0
    side = 0
    guesses = 0
    while (reached != count) & (high - low > 1):
        above = (reached - count).to(tl.float32) * low_weight
        below = (count - beyond).to(tl.float32) * high_weight
        share = tl.where(guesses % 4 == 3, 0.5, above / (above + below))
        guess = low + ((high - low).to(tl.float32) * share).to(tl.int64)
        guess = tl.minimum(tl.maximum(guess, low + 1), high - 1)
        found = tl.sum((key >= guess.to(tl.int32)).to(tl.int32), 0)
        enough = found >= count
        # An end that stays where it is twice weighs half.
        high_weight = tl.where(enough & (side == 1), high_weight * 0.5, 1.0)
        low_weight = tl.where((found < count) & (side == 2), low_weight * 0.5, 1.0)
        side = tl.where(enough, 1, 2)
        low = tl.where(enough, guess, low)
        reached = tl.where(enough, found, reached)
        high = tl.where(enough, high, guess)
        beyond = tl.where(enough, beyond, found)
        guesses += 1
    return low.to(tl.int32), reached


@triton.jit
def _chosen(key, live, all_live, count):
    """Which keys are the `count` highest, the earlier of equal ones first."""
    least, reached = _threshold(key, live, all_live, count)
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
    all_live = tl.sum(live.to(tl.int32), 0)
    count = tl.minimum(all_live, COUNT)
    if count > 0:
        score = tl.load(scores + source + at, mask=live, other=0.0)
        key = tl.where(live, _key(score), DEAD)
        chosen = _chosen(key, live, all_live, count)
        column = tl.cumsum(chosen.to(tl.int32), 0) - 1
        table = block_table + request.to(tl.int64) * table_row
        _write(target, kept_target, table, column, position, score, chosen, PAGE)
    column = tl.arange(0, COLUMNS)
    tl.store(target + column, -1, mask=(column >= count) & (column < COUNT))
