"""Scores and weights of one tile after the other in the Hopper kernel."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kvproof.kernels.paged_prefill.arguments import MOST_TREE

LOG2E = gl.constexpr(1.4426950408889634)
BITS = gl.constexpr(MOST_TREE)


@gluon.jit
def inner(
    cached, new, row, low, end, GROUP: gl.constexpr, ROWS: gl.constexpr, WINDOW: gl.constexpr,
    TILE: gl.constexpr, TREE: gl.constexpr,
):  # fmt: skip
    """Tiles in [inner_low, inner_end) need no mask; the first tile of an item always does."""
    inner_low = low
    if WINDOW > 0:
        highest = cached + gl.minimum((row + ROWS - 1) // GROUP, new - 1)
        inner_low = (gl.maximum(highest - WINDOW + 1, 0) + TILE - 1) // TILE
    inner_low = gl.minimum(gl.maximum(inner_low, low), end - 1)
    inner_end = (cached if TREE else cached + row // GROUP + 1) // TILE
    return inner_low, gl.minimum(gl.maximum(inner_end, inner_low), end - 1)


@gluon.jit
def weights_of(
    s, top, total, tile, place, factor, cap, WINDOW: gl.constexpr, CAPPED: gl.constexpr,
    TREE: gl.constexpr, layout: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Unnormalised weights of one tile of scores, and the factor for the earlier ones."""
    TILE: gl.constexpr = s.shape[1]
    if CAPPED:
        s = cap - 2.0 * cap / (1.0 + gl.exp2(s * (factor / cap * 2.0 * LOG2E)))
        scale = LOG2E
    else:
        scale = factor * LOG2E
    if MASKED:
        own, length, _, cached, bits = place
        key = tile * TILE + gl.arange(0, TILE, gl.SliceLayout(0, layout))[None, :]
        visible = (key <= own[:, None]) & (key < length)
        if TREE:
            bit = gl.minimum(gl.maximum(key - cached, 0), BITS - 1).to(gl.int64)
            known = (key < cached) | (key >= cached + BITS)
            visible = visible & (known | (((bits[:, None] >> bit) & 1) == 1))
        if WINDOW > 0:
            visible = visible & (key > own[:, None] - WINDOW)
        s = gl.where(visible, s, float("-inf"))
    new_top = gl.maximum(top, gl.max(s, axis=1))
    base = new_top * scale
    if MASKED:
        base = gl.where(new_top == float("-inf"), 0.0, base)
    p = gl.exp2(s * scale - base[:, None])
    shrink = gl.exp2(top * scale - base)
    total = total * shrink + gl.sum(p, axis=1)
    return p, new_top, total, shrink


@gluon.jit
def start_scores(q_kept, q_tile, k_tile, layout: gl.constexpr, KEPT: gl.constexpr):
    """Start the scores of a tile: products of the columns in registers, then of the others."""
    HALF: gl.constexpr = q_tile.shape[0]
    REST: gl.constexpr = q_tile.shape[1] - KEPT
    TILE: gl.constexpr = k_tile.shape[0]
    s = gl.zeros([HALF, TILE], gl.float32, layout)
    if KEPT > 0:
        turned = k_tile.slice(0, KEPT, 1).permute([1, 0])
        s = warpgroup_mma(q_kept, turned, s, use_acc=False, is_async=True)
        turned = k_tile.slice(KEPT, REST, 1).permute([1, 0])
        s = warpgroup_mma(q_tile.slice(KEPT, REST, 1), turned, s, is_async=True)
    else:
        s = warpgroup_mma(q_tile, k_tile.permute([1, 0]), s, use_acc=False, is_async=True)
    return s


@gluon.jit
def paired(w, HALVES: gl.constexpr):
    """Weights of two columns, rounded, in a word.

    Halves of words that live from one pass of a loop to the next would take a register each.
    """
    low, high = gl.split(w.reshape([w.shape[0], w.shape[1] // 2, 2]))
    return gl.inline_asm_elementwise(
        "cvt.rn." + HALVES + "x2.f32 $0, $2, $1;", "=r,f,f", [low, high],
        dtype=gl.int32, is_pure=True, pack=1,
    )  # fmt: skip


@gluon.jit
def apart(pairs, dtype: gl.constexpr, layout: gl.constexpr):
    """The weights of words, as the operand of a product."""
    low = pairs.to(gl.int16).to(dtype, bitcast=True)
    high = (pairs >> 16).to(gl.int16).to(dtype, bitcast=True)
    wide = gl.join(low, high).reshape([pairs.shape[0], pairs.shape[1] * 2])
    return gl.convert_layout(wide, layout)


@gluon.jit
def step(
    state, tile, at, q_kept, q_tile, ring, place, factor, cap, WINDOW: gl.constexpr,
    CAPPED: gl.constexpr, TREE: gl.constexpr, s_layout: gl.constexpr, o_layout: gl.constexpr,
    KEPT: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """Scores of a tile, and their weights while those of the tile before are applied."""
    acc, pairs, shrink, top, total = state
    k_smem, v_smem, k_full, k_empty, v_full, v_empty = ring
    low = place[2]
    STAGES: gl.constexpr = k_smem.shape[0]
    HALVES: gl.constexpr = "bf16" if q_tile.dtype == gl.bfloat16 else "f16"
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    stage = at % STAGES
    before = (at - 1) % STAGES
    s = start_scores(q_kept, q_tile, k_smem.index(stage), s_layout, KEPT)
    acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
    mbarrier.wait(v_full.index(before), ((at - 1) // STAGES) & 1)
    p = apart(pairs, q_tile.dtype, p_layout)
    acc = warpgroup_mma(p, v_smem.index(before), acc, is_async=True)
    s = warpgroup_mma_wait(1, deps=[s])
    mbarrier.arrive(k_empty.index(stage))
    w, top, total, shrink = weights_of(
        s, top, total, tile, place, factor, cap, WINDOW, CAPPED, TREE, s_layout, MASKED
    )
    # This wait also keeps ptxas from moving the next one above the softmax: it ends a basic block.
    after = at + 1
    mbarrier.wait(k_full.index(after % STAGES), (after // STAGES) & 1, pred=tile > low)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_empty.index(before))
    pairs = paired(w, HALVES)
    return acc, pairs, shrink, top, total
