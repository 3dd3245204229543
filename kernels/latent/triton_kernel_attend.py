"""The two warp groups that attend a chunk for 64 query rows.

Each has 256 of the 512 value columns: all of them would not fit into its registers. They take
turns with the scores: a warp group computes those of every other tile, leaves the weights in shared
memory, and both add their columns of that tile's values. So while one works on its softmax the
other's products, or the copies of the tiles after, go on.

The design is FlashMLA's (DeepSeek, 2025) as published; the order of the steps is our own.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kvproof.kernels.latent.triton_kernel_chunks import TILE, size_of, span, tiles_of

LOG2E = gl.constexpr(1.4426950408889634)
ROWS = gl.constexpr(64)
HALF = gl.constexpr(256)
NO_TOP = gl.constexpr(-1e30)
"""Greatest logit of rows that have seen nothing; finite, so that no difference is NaN."""

S_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16]))
O_LAYOUT = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16]))
S_OPERAND = gl.constexpr(gl.DotOperandLayout(0, S_LAYOUT.value, 2))
O_OPERAND = gl.constexpr(gl.DotOperandLayout(0, O_LAYOUT.value, 2))
S_ROW = gl.constexpr(gl.SliceLayout(1, S_LAYOUT.value))
O_ROW = gl.constexpr(gl.SliceLayout(1, O_LAYOUT.value))


@gluon.jit
def masked(s, tile, limit, size, first_row, HEADS: gl.constexpr, Q_TOKENS: gl.constexpr):
    """Scores of a tile, those of positions that a row does not see being -inf."""
    layout: gl.constexpr = s.type.layout
    at = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(0, layout))
    last = gl.zeros([ROWS], gl.int32, gl.SliceLayout(1, layout)) + (limit - 1)
    if Q_TOKENS > 1:
        row = first_row + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        last = gl.minimum(last, size - Q_TOKENS + row // HEADS)
    return gl.where(at[None, :] <= last[:, None], s, float("-inf"))


@gluon.jit
def _zero_beyond(part, start, limit):
    """Zero the rows of positions that do not exist: 0 times NaN would be NaN."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [1, 32], [4, 1], [1, 0])
    CHUNK: gl.constexpr = 16
    for c in gl.static_range(TILE // CHUNK):
        rows = part.slice(c * CHUNK, CHUNK)
        here = start + c * CHUNK + gl.arange(0, CHUNK, gl.SliceLayout(1, layout))
        rows.store(gl.where((here < limit)[:, None], rows.load(layout), 0.0))


@gluon.jit
def _scaled(acc, factor):
    """Accumulated values times a factor of each row."""
    return acc * gl.convert_layout(factor, O_ROW)[:, None]


@gluon.jit
def _start_scores(turn, queries, operand, ring, WHICH: gl.constexpr):
    """Start the scores of this warp group's tile, part by part as they arrive."""
    left, left_full, _ = ring[0]
    right, right_full, _ = ring[1]
    rope, rope_full, _ = ring[2]
    q_left, q_right = queries
    phase = turn & 1
    # Always 0, which the compiler cannot know: else it computes the descriptors of all 36 products
    # before the loop and has no registers to keep them in.
    far = turn >> 30
    mbarrier.wait(rope_full.index(WHICH), phase)
    s = gl.zeros([ROWS, TILE], gl.float32, S_LAYOUT)
    k_tile = rope.index(far + WHICH).permute([1, 0])
    s = warpgroup_mma(operand, k_tile, s, use_acc=False, is_async=True)
    mbarrier.wait(left_full.index(WHICH), phase)
    k_tile = left.index(far + WHICH).permute([1, 0])
    s = warpgroup_mma(q_left.index(far), k_tile, s, is_async=True)
    mbarrier.wait(right_full.index(WHICH), phase)
    k_tile = right.index(far + WHICH).permute([1, 0])
    return warpgroup_mma(q_right.index(far), k_tile, s, is_async=True)


@gluon.jit
def _start_values_of_other(acc, top, mass, turn, half, links, WHICH: gl.constexpr):
    """Start the values of the tile whose weights the other warp group finds."""
    tops, weights, top_ready, weights_ready = links
    tiles, full, _ = half
    OTHER: gl.constexpr = 1 - WHICH
    phase = turn & 1
    mbarrier.wait(top_ready.index(OTHER), phase)
    new_top = tops.index(OTHER).load(S_ROW)
    shrink = gl.exp2(top - new_top)
    acc = _scaled(acc, shrink)
    mbarrier.wait(full.index(OTHER), phase)
    mbarrier.wait(weights_ready.index(OTHER), phase)
    acc = warpgroup_mma(weights[OTHER], tiles.index(OTHER), acc, is_async=True)
    return acc, new_top, mass * shrink


@gluon.jit
def _find_weights(
    s, top, mass, tile, newest, limit, size, first_row, scale, ring, links,
    HEADS: gl.constexpr, Q_TOKENS: gl.constexpr, WHICH: gl.constexpr, ALONE: gl.constexpr,
):  # fmt: skip
    """Compute the softmax weights of this warp group's tile, for both groups.

    The last result is the factor that rescales the accumulated values. Only the newest tile has
    positions that do not exist, and only it and that before it some that a query token does not
    see.
    """
    tops, weights, top_ready, weights_ready = links
    if ALONE:
        s = masked(s, tile, limit, size, first_row, HEADS, Q_TOKENS)
    elif WHICH == 1 and Q_TOKENS > 1:  # noqa: SIM102 - likewise below
        if tile == newest:
            s = masked(s, tile, limit, size, first_row, HEADS, Q_TOKENS)
    new_top = gl.maximum(top, gl.max(s, 1) * scale)
    tops.index(WHICH).store(new_top)
    mbarrier.arrive(top_ready.index(WHICH))
    if ALONE:  # noqa: SIM102 - one is known to the compiler, the other is not
        if (tile + 1) * TILE > limit:
            _zero_beyond(ring[0][0].index(WHICH), tile * TILE, limit)
            _zero_beyond(ring[1][0].index(WHICH), tile * TILE, limit)
    p = gl.exp2(s * scale - new_top[:, None])
    rounded = p.to(weights[WHICH].dtype)
    weights[WHICH].store(rounded)
    fence_async_shared()
    mbarrier.arrive(weights_ready.index(WHICH))
    shrink = gl.exp2(top - new_top)
    return gl.convert_layout(rounded, O_OPERAND), new_top, mass * shrink + gl.sum(p, 1), shrink


@gluon.jit
def _step(
    acc, top, mass, turn, other_turn, tile, newest, limit, size, first_row, scale, queries,
    operand, ring, links, biases, HEADS: gl.constexpr, Q_TOKENS: gl.constexpr, WHICH: gl.constexpr,
    ALONE: gl.constexpr,
):  # fmt: skip
    """Values of the other warp group's tile, if there is one before; then this one's tile.

    `turn` and `other_turn` count the tiles that the buffers of the two have held.
    """
    half = ring[WHICH]
    tiles, _, empty = half
    if not ALONE:
        acc, top, mass = _start_values_of_other(acc, top, mass, other_turn, half, links, WHICH)
    s = _start_scores(turn, queries, operand, ring, WHICH)
    if not ALONE:
        acc = warpgroup_mma_wait(3, deps=[acc])
        mbarrier.arrive(empty.index(1 - WHICH))
    s = warpgroup_mma_wait(0, deps=[s])
    if biases is not None:
        s = s + biases.index(WHICH).load(gl.SliceLayout(0, S_LAYOUT))[None, :]
    mbarrier.arrive(ring[2][2].index(WHICH))
    weights, top, mass, shrink = _find_weights(
        s, top, mass, tile, newest, limit, size, first_row, scale, ring, links,
        HEADS, Q_TOKENS, WHICH, ALONE,
    )  # fmt: skip
    acc = warpgroup_mma(weights, tiles.index(WHICH), _scaled(acc, shrink), is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(empty.index(WHICH))
    return acc, top, mass


@gluon.jit
def _store(
    acc, top, mass, out, lse, parts, norms, sinks, factor, request, block, chunk, numbers, low,
    high, size, out_row, HEADS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, WHICH: gl.constexpr,
):  # fmt: skip
    """Finish a request that lies in this chunk; of another, leave a part."""
    row = gl.arange(0, ROWS, O_ROW)
    column = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(0, O_LAYOUT))
    live = (block * ROWS + row < numbers)[:, None]
    if (low == 0) & (high == tiles_of(size)):
        whole = mass
        number = block * ROWS + gl.arange(0, ROWS, S_ROW)
        nothing = gl.full([ROWS], float("-inf"), gl.float32, S_ROW)
        if sinks is not None:
            nothing = gl.load(sinks + number % HEADS) * LOG2E
            whole = gl.where(mass > 0.0, mass + gl.exp2(nothing - top), 0.0)
        if lse is not None:
            some_whole = gl.where(mass > 0.0, whole, 1.0)
            found = gl.where(mass > 0.0, top + gl.log2(some_whole), nothing) / LOG2E
            at_lse = lse + (request * numbers).to(gl.int64) + number
            gl.store(at_lse, found, mask=(number < numbers) & (WHICH == 0))
        share = 1.0 / gl.where(whole > 0.0, whole, 1.0)
        if factor is not None:
            share = share * factor
        target = out + (request * numbers + block * ROWS).to(gl.int64) * out_row
        place = target + row[:, None] * out_row + column[None, :]
        gl.store(place, _scaled(acc, share).to(out.dtype.element_ty), mask=live)
    else:
        # A chunk has at most two parts: of a request that began before it, and of one that ends
        # after it.
        slot = (2 * chunk + (low == 0).to(gl.int32)) * HEAD_BLOCKS + block
        some = gl.where(mass > 0.0, mass, 1.0)
        part = parts + slot.to(gl.int64) * (ROWS * 2 * HALF)
        at = part + row[:, None] * (2 * HALF) + column[None, :]
        share = 1.0 / some
        if factor is not None:
            share = share * factor
        gl.store(at, _scaled(acc, share), mask=live)
        if WHICH == 0:
            norm = gl.where(mass > 0.0, top + gl.log2(some), float("-inf"))
            gl.store(norms + slot * ROWS + gl.arange(0, ROWS, S_ROW), norm)


@gluon.jit
def attend_chunk(
    out, lse, parts, norms, sinks, lengths, scale, shared, biases, factor, plan, chunk, block,
    out_row,
    HEADS: gl.constexpr, Q_TOKENS: gl.constexpr, HEAD_BLOCKS: gl.constexpr, SIZE: gl.constexpr,
    WHICH: gl.constexpr, SMALLER: gl.constexpr = 1.0,
):  # fmt: skip
    """Half of the value columns of all tiles of a chunk, and the scores of every other tile.

    `biases` [2, 64] in shared memory, if given, are added to scores: -inf where a token is none.
    Answers are multiplied by `factor`, if given. Values are `SMALLER` than the rotary columns; so
    are those of the queries made.
    """
    begin, end, request, request_begin = plan
    ring, query, links, masses = shared
    queries, q_rope, q_full, q_empty = query
    mass_of, mass_ready, q_kept = masses
    first_row = block * ROWS
    half = ring[WHICH]
    turn = 0
    other_turn = 0
    served = 0
    while request_begin < end:
        size = size_of(lengths, request, SIZE)
        low, high = span(size, begin, end, request_begin)
        limit = gl.minimum(size, high * TILE)
        # The newest tile is the left one's, and the last of an odd number.
        count = (high - low + 1 - WHICH) // 2
        other_count = high - low - count
        newest = high - 1 - WHICH
        top = gl.full([ROWS], NO_TOP, gl.float32, S_ROW)
        mass = gl.zeros([ROWS], gl.float32, S_ROW)
        acc = gl.zeros([ROWS, HALF], gl.float32, O_LAYOUT)
        mbarrier.wait(q_full, served & 1)
        operand = q_rope.load(S_OPERAND)
        if SMALLER != 1.0:
            operand = (operand.to(gl.float32) * SMALLER).to(q_rope.dtype)
        # The first weights lie where the rotary columns of the queries were.
        if WHICH == 1:
            mbarrier.arrive(q_kept)
        else:
            mbarrier.wait(q_kept, served & 1)
        if WHICH == 0:
            acc, top, mass = _step(
                acc, top, mass, turn, other_turn, newest, newest, limit, size, first_row, scale,
                queries, operand, ring, links, biases, HEADS, Q_TOKENS, WHICH, ALONE=True,
            )  # fmt: skip
            # Its second tile comes after the first of the other.
            other_turn -= 1
        for i in range(1 - WHICH, count):
            acc, top, mass = _step(
                acc, top, mass, turn + i, other_turn + i, newest - 2 * i, newest, limit, size,
                first_row, scale, queries, operand, ring, links, biases, HEADS, Q_TOKENS, WHICH,
                ALONE=False,
            )  # fmt: skip
        turn += count
        other_turn += other_count + (1 - WHICH)
        # The last tile of all, if it is the other's.
        for _ in range(1 - WHICH + other_count - count):
            acc, top, mass = _start_values_of_other(
                acc, top, mass, other_turn - 1, half, links, WHICH
            )  # fmt: skip
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(half[2].index(1 - WHICH))
        mbarrier.arrive(q_empty)
        mass_of.index(WHICH).store(mass)
        mbarrier.arrive(mass_ready.index(WHICH))
        mbarrier.wait(mass_ready.index(1 - WHICH), served & 1)
        _store(
            acc, top, mass + mass_of.index(1 - WHICH).load(S_ROW), out, lse, parts, norms,
            sinks, factor, request, block, chunk, Q_TOKENS * HEADS, low, high, size, out_row, HEADS,
            HEAD_BLOCKS, WHICH,
        )  # fmt: skip
        served += 1
        request_begin += tiles_of(size)
        request += 1
