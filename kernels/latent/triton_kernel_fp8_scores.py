"""Scores and weights of latent decode over FP8 rows: the warp group that `triton_kernel_fp8` feeds.

Scores are products of FP8: a query is the sum of two float8_e4m3 numbers, the second the rest of
the first, with one scale a row, which is as exact as bfloat16.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kvproof.kernels.latent.triton_kernel_attend import LOG2E, NO_TOP, ROWS, masked
from kvproof.kernels.latent.triton_kernel_chunks import TILE, span, tiles_of

KEYS = gl.constexpr(576)
VALUES = gl.constexpr(512)
ROPE = gl.constexpr(64)

WIDENED = gl.constexpr(2.0**120)
"""Factor that widened values lack: the bits of a float8, four places lower, are a bfloat16."""

RAISED = gl.constexpr(40.0)
"""Weights are larger by this power of 2, so that their products with widened values are normal."""

SLACK = gl.constexpr(8.0)
"""Answers are rescaled when a logit exceeds the greatest one so far by this power of 2."""

LARGEST = gl.constexpr(448.0)
"""Greatest float8_e4m3."""

S_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 32]))
S_ROW = gl.constexpr(gl.SliceLayout(1, S_LAYOUT.value))
Q_WIDE = gl.constexpr(gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0]))
Q_ROPE = gl.constexpr(gl.BlockedLayout([1, 2], [1, 32], [4, 1], [1, 0]))
Q_ROW = gl.constexpr(gl.SliceLayout(1, Q_WIDE.value))
Q_ROPE_ROW = gl.constexpr(gl.SliceLayout(1, Q_ROPE.value))


@gluon.jit
def _store_terms(terms, numbers, FIRST: gl.constexpr, TERMS: gl.constexpr):
    """Store numbers of at most 448 as the sum of float8 terms."""
    left = numbers
    for term in gl.static_range(TERMS):
        rounded = left.to(gl.float8e4nv)
        terms.index(term).slice(FIRST, rounded.shape[0]).store(rounded)
        left = left - rounded.to(gl.float32)


@gluon.jit
def _divide_rows(start, queries, live_rows, FIRST: gl.constexpr, TERMS: gl.constexpr):
    """Eight query rows as terms, with a scale each."""
    values, ropes, scales = queries
    row = FIRST + gl.arange(0, 8, Q_ROW)
    rope_row = FIRST + gl.arange(0, 8, Q_ROPE_ROW)
    column = gl.arange(0, VALUES, gl.SliceLayout(0, Q_WIDE))
    rope_column = VALUES + gl.arange(0, ROPE, gl.SliceLayout(0, Q_ROPE))
    live = (row < live_rows)[:, None] & (column >= 0)[None, :]
    rope_live = (rope_row < live_rows)[:, None] & (rope_column >= 0)[None, :]
    place = start + row[:, None] * KEYS + column[None, :]
    rope_place = start + rope_row[:, None] * KEYS + rope_column[None, :]
    wide = gl.load(place, mask=live, other=0.0).to(gl.float32)
    rope = gl.load(rope_place, mask=rope_live, other=0.0).to(gl.float32)
    most_rope = gl.convert_layout(gl.max(gl.abs(rope), 1), Q_ROW)
    most = gl.maximum(gl.max(gl.abs(wide), 1), most_rope)
    scale = gl.maximum(most, 1e-30) / LARGEST
    scales.slice(FIRST, 8).store(scale)
    rope_scale = gl.convert_layout(scale, Q_ROPE_ROW)
    _store_terms(values, wide / scale[:, None], FIRST, TERMS)
    _store_terms(ropes, rope / rope_scale[:, None], FIRST, TERMS)


@gluon.jit
def _divide_queries(q, queries, request, block, numbers, TERMS: gl.constexpr):
    """The query rows of a block as terms."""
    start = q + (request * numbers + block * ROWS).to(gl.int64) * KEYS
    for c in gl.static_range(ROWS // 8):
        _divide_rows(start, queries, numbers - block * ROWS, 8 * c, TERMS)
    fence_async_shared()


@gluon.jit
def _start_scores(turn, queries, ring, TERM: gl.constexpr, STAGES: gl.constexpr):
    """Start the scores of a tile by one term of the queries, as soon as the tile is there."""
    values, ropes, _ = queries
    tiles, rope_tiles, full, _ = ring
    stage = turn % STAGES
    # Always 0, which the compiler cannot know: see `triton_kernel_attend`.
    far = turn >> 30
    mbarrier.wait(full.index(stage), turn // STAGES & 1)
    s = gl.zeros([ROWS, TILE], gl.float32, S_LAYOUT)
    keys = rope_tiles.index(stage).permute([1, 0])
    s = warpgroup_mma(ropes.index(far + TERM), keys, s, use_acc=False, is_async=True)
    keys = tiles.index(stage).permute([1, 0])
    return warpgroup_mma(values.index(far + TERM), keys, s, is_async=True)


@gluon.jit
def _with_rest(s, turn, queries, ring, TERMS: gl.constexpr, STAGES: gl.constexpr):
    """Scores with those by the other terms.

    These have sums of their own, because matrix units add products of FP8 with about 14 bits.
    """
    for term in gl.static_range(1, TERMS):
        rest = _start_scores(turn, queries, ring, term, STAGES)
        s += warpgroup_mma_wait(0, deps=[rest])
    return s


@gluon.jit
def _publish(
    s, top, mass, turn, tile, limit, size, first_row, scales, links,
    HEADS: gl.constexpr, Q_TOKENS: gl.constexpr,
):  # fmt: skip
    """Find the weights of a tile and leave them to the groups that add values."""
    weights, factors, ready, free = links
    s = s * scales[:, None]
    if (tile + 1) * TILE > gl.minimum(limit, size - Q_TOKENS + 1):
        s = masked(s, tile, limit, size, first_row, HEADS, Q_TOKENS)
    most = gl.max(s, 1) - RAISED
    new_top = gl.where(most > top + SLACK, most, top)
    shrink = gl.exp2(top - new_top)
    p = gl.exp2(s - new_top[:, None])
    place = turn & 1
    mbarrier.wait(free.index(place), (turn // 2 & 1) ^ 1)
    weights.index(place).store(p.to(gl.bfloat16))
    factors.index(place).store(shrink)
    fence_async_shared()
    mbarrier.arrive(ready.index(place))
    return new_top, mass * shrink + gl.sum(p, 1)


@gluon.jit
def _share(
    top, mass, lse, norms, sinks, factor, shares, request, block, chunk, numbers, is_whole, is_end,
    HEADS: gl.constexpr, HEAD_BLOCKS: gl.constexpr,
):  # fmt: skip
    """Leave the factors of answers; store the logarithms of the sums of weights."""
    row = gl.arange(0, ROWS, S_ROW)
    number = block * ROWS + row
    whole = mass
    nothing = gl.full([ROWS], float("-inf"), gl.float32, S_ROW)
    if sinks is not None:
        nothing = gl.load(sinks + number % HEADS, mask=number >= 0) * LOG2E
        whole = gl.where(mass > 0.0, mass + gl.exp2(nothing - top), 0.0)
    if is_whole:
        if lse is not None:
            some_whole = gl.where(mass > 0.0, whole, 1.0)
            found = gl.where(mass > 0.0, top + gl.log2(some_whole), nothing) / LOG2E
            gl.store(lse + (request * numbers).to(gl.int64) + number, found, mask=number < numbers)
    else:
        # A chunk has at most two parts: of a request that began before it, and of one that ends
        # after it.
        slot = (2 * chunk + is_end) * HEAD_BLOCKS + block
        whole = mass
        norm = gl.where(mass > 0.0, top + gl.log2(gl.where(mass > 0.0, mass, 1.0)), float("-inf"))
        gl.store(norms + slot * ROWS + row, norm)
    shares.store(gl.where(whole > 0.0, WIDENED / whole, 0.0) * factor)


@gluon.jit
def score(
    q, lse, norms, sinks, lengths, scale, factor, shared, plan, chunk, block,
    HEADS: gl.constexpr, Q_TOKENS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, TERMS: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Weights of all tiles of a chunk; scores of the next tile are found meanwhile."""
    begin, end, request, request_begin = plan
    ring, queries, links, ends = shared
    shares, shares_ready, shares_free = ends
    numbers = Q_TOKENS * HEADS
    first_row = block * ROWS
    turn = 0
    served = 0
    while request_begin < end:
        size = gl.load(lengths + request)
        low, high = span(size, begin, end, request_begin)
        limit = gl.minimum(size, high * TILE)
        _divide_queries(q, queries, request, block, numbers, TERMS)
        scales = gl.maximum(queries[2].load(S_ROW) * scale, 1e-30)
        top = gl.full([ROWS], NO_TOP, gl.float32, S_ROW)
        mass = gl.zeros([ROWS], gl.float32, S_ROW)
        s = warpgroup_mma_wait(0, deps=[_start_scores(turn, queries, ring, 0, STAGES)])
        s = _with_rest(s, turn, queries, ring, TERMS, STAGES)
        for i in range(1, high - low):
            after = _start_scores(turn + i, queries, ring, 0, STAGES)
            top, mass = _publish(
                s, top, mass, turn + i - 1, high - i, limit, size, first_row, scales, links, HEADS,
                Q_TOKENS,
            )  # fmt: skip
            s = warpgroup_mma_wait(0, deps=[after])
            s = _with_rest(s, turn + i, queries, ring, TERMS, STAGES)
        turn += high - low
        top, mass = _publish(
            s, top, mass, turn - 1, low, limit, size, first_row, scales, links, HEADS, Q_TOKENS
        )  # fmt: skip
        mbarrier.wait(shares_free, (served & 1) ^ 1)
        _share(
            top, mass, lse, norms, sinks, factor, shares, request, block, chunk, numbers,
            (low == 0) & (high == tiles_of(size)), (low == 0).to(gl.int32), HEADS, HEAD_BLOCKS,
        )  # fmt: skip
        mbarrier.arrive(shares_ready)
        served += 1
        request_begin += tiles_of(size)
        request += 1
