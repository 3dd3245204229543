"""Query rows and results of the Hopper kernel: how a warp group loads, merges and stores them."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared
from triton.language.extra.cuda import gdc_wait

from kvproof.kernels.gluon import barrier
from kvproof.kernels.paged_prefill.triton_kernel_hopper_scores import LOG2E


@gluon.jit
def loaded(
    q, start, first, rows_left, kv_head, q_row, q_head, WHICH: gl.constexpr, GROUP: gl.constexpr,
    DIM: gl.constexpr, HALF: gl.constexpr, COLUMNS: gl.constexpr,
):  # fmt: skip
    """The rows of a warp group; zero are those that do not exist, and columns from DIM on.

    Those columns of keys belong to the next head.
    """
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    row = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, layout))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, layout))
    packed = first + row
    head = kv_head * GROUP + packed % GROUP
    rows = q + (start + packed // GROUP).to(gl.int64) * q_row + head * q_head
    mask = (row < rows_left)[:, None] & (column < DIM)[None, :]
    return gl.load(rows[:, None] + column[None, :], mask=mask, other=0.0)


@gluon.jit
def keep(q_tile, rows):
    """Store query rows where products read them."""
    q_tile.store(rows)
    fence_async_shared()
    barrier()


@gluon.jit
def zero_beyond(v_tile, start, length):
    """Zero the rows of positions that do not exist: 0 times NaN would be NaN."""
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    CHUNK: gl.constexpr = 16
    for c in gl.static_range(v_tile.shape[0] // CHUNK):
        part = v_tile.slice(c * CHUNK, CHUNK)
        here = start + c * CHUNK + gl.arange(0, CHUNK, gl.SliceLayout(1, layout))
        part.store(gl.where((here < length)[:, None], part.load(layout), 0.0))
    fence_async_shared()
    barrier()


@gluon.jit
def shares(weight, other):
    """The base-2 logarithm of the sum of two, and the share of each; none of nothing."""
    top = gl.maximum(weight, other)
    base = gl.where(top > float("-inf"), top, 0.0)
    mine = gl.exp2(weight - base)
    theirs = gl.exp2(other - base)
    whole = gl.where(top > float("-inf"), mine + theirs, 1.0)
    return gl.where(top > float("-inf"), base + gl.log2(whole), top), mine / whole, theirs / whole


@gluon.jit
def _store_lines(
    value, place, out, start, first, rows_left, kv_head, out_row, out_head,
    WHICH: gl.constexpr, GROUP: gl.constexpr, DIM: gl.constexpr,
):  # fmt: skip
    """Store results by way of the memory of the queries: 16 bytes of a row with each access.

    Short blocks take up to 8 % less time. Three warp groups have no registers for it.
    """
    HALF: gl.constexpr = place.shape[0]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    place.store(value)
    barrier()
    row = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, layout))
    column = gl.arange(0, place.shape[1], gl.SliceLayout(0, layout))
    packed = first + row
    head = kv_head * GROUP + packed % GROUP
    rows = out + (start + packed // GROUP).to(gl.int64) * out_row + head * out_head
    mask = (row < rows_left)[:, None] & (column < DIM)[None, :]
    gl.store(rows[:, None] + column[None, :], place.load(layout), mask=mask)


@gluon.jit
def store(
    acc, top, total, tensors, strides, item, q_tile, factor, s_layout: gl.constexpr,
    o_layout: gl.constexpr, CAPPED: gl.constexpr, WHICH: gl.constexpr, GROUP: gl.constexpr,
    GROUPS: gl.constexpr, DIM: gl.constexpr, DEPENDENT: gl.constexpr,
):  # fmt: skip
    """Divide the sums of a warp group by their weights and store them."""
    _, more, out, parts, weights, lse, sinks, v_scale, _ = tensors
    _, part, part_lse, part_row, part_lse_row = more
    _, _, out_row, out_head, lse_row, lse_head = strides
    start, first, rows_left, _, kv_head, slot, _ = item
    HALF: gl.constexpr = q_tile.shape[0]
    COLUMNS: gl.constexpr = q_tile.shape[1]
    short = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, s_layout))
    scale = LOG2E if CAPPED else factor * LOG2E
    short_head = kv_head * GROUP + (first + short) % GROUP
    base = gl.where(top > float("-inf"), top * scale, 0.0)
    if sinks is not None:
        sink = gl.exp2(gl.load(sinks + short_head) * LOG2E - base)
        total += gl.where(slot < 0, sink, 0.0)
    # Rows that see nothing of a part weigh nothing when the parts are merged.
    weight = gl.where(total > 0.0, base + gl.log2(total), float("-inf"))
    total = gl.where(total > 0.0, total, 1.0)
    if v_scale is not None:
        acc = acc * gl.load(v_scale + kv_head)
    acc = acc / gl.convert_layout(total, gl.SliceLayout(1, o_layout))[:, None]
    row = WHICH * HALF + gl.arange(0, HALF, gl.SliceLayout(1, o_layout))
    column = gl.arange(0, COLUMNS, gl.SliceLayout(0, o_layout))
    mask = (row < rows_left)[:, None] & (column < DIM)[None, :]
    head = kv_head * GROUP + (first + row) % GROUP
    token_row = (start + (first + row) // GROUP).to(gl.int64)
    if DEPENDENT:
        gdc_wait()
    if part is not None:
        # Of a block in pieces the kernel that merges these adds the other part.
        live = gl.where(slot < 0, rows_left, 0)
        sums = part_lse + (start + (first + short) // GROUP).to(gl.int64) * part_lse_row
        other = gl.load(sums + short_head, mask=short < live, other=float("-inf")) * LOG2E
        weight, mine, theirs = shares(weight, other)
        read = gl.convert_layout(other, gl.SliceLayout(1, o_layout)) > float("-inf")
        there = part + (token_row * part_row + head * DIM)[:, None] + column[None, :]
        addend = gl.load(there, mask=mask & read[:, None], other=0.0).to(gl.float32)
        acc = acc * gl.convert_layout(mine, gl.SliceLayout(1, o_layout))[:, None]
        acc += addend * gl.convert_layout(theirs, gl.SliceLayout(1, o_layout))[:, None]
    if slot < 0:
        value = acc.to(out.dtype.element_ty)
        if COLUMNS > 64 and value.dtype == q_tile.dtype:
            _store_lines(
                value, q_tile, out, start, first, rows_left, kv_head, out_row, out_head,
                WHICH, GROUP, DIM,
            )  # fmt: skip
        else:
            rows = out + token_row * out_row + head * out_head
            gl.store(rows[:, None] + column[None, :], value, mask=mask)
        if lse is not None:
            token = (start + (first + short) // GROUP).to(gl.int64)
            at = lse + token * lse_row + short_head * lse_head
            gl.store(at, weight / LOG2E, mask=short < rows_left)
    else:
        kept = slot.to(gl.int64) * GROUPS * HALF
        gl.store(parts + (kept + row)[:, None] * DIM + column[None, :], acc, mask=mask)
        gl.store(weights + kept + short, weight, mask=short < rows_left)
