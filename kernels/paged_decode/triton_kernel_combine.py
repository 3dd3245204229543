"""Parts of a request, found by several programs of a decode launch, into one answer."""

import triton
import triton.language as tl

from kvproof.kernels.paged_decode.triton_kernel_tiles import rounded

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def factors(m, mass, sink, HAS_SINKS: tl.constexpr):
    """What accumulated values are multiplied with in the end; 0 for rows that see nothing."""
    if HAS_SINKS:
        most = tl.maximum(m, sink)
        seen = tl.exp2(m - most)
        weight = seen / (mass * seen + tl.exp2(sink - most))
    else:
        weight = 1.0 / tl.where(mass > 0, mass, 1.0)
    return tl.where(mass > 0, weight, 0.0)


@triton.jit
def log_sum(m, mass, sink, HAS_SINKS: tl.constexpr):
    """Natural logarithm of the sum of the exponentials of all logits, the sink among them."""
    total = tl.where(mass > 0, m + tl.log2(tl.where(mass > 0, mass, 1.0)), float("-inf"))
    if HAS_SINKS:
        most = tl.maximum(total, sink)
        total = most + tl.log2(tl.exp2(total - most) + tl.exp2(sink - most))
    return total / LOG2E


@triton.jit
def place_of(chunk, from_chunk, block, HEAD_BLOCKS: tl.constexpr):
    """Where a chunk keeps its part of a request that began in chunk `from_chunk`."""
    slot = 2 * chunk + (chunk == from_chunk).to(tl.int32)
    return slot * HEAD_BLOCKS + block


@triton.jit
def combine(
    request,
    lse,
    first,
    count,
    done,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    NUMBERS: tl.constexpr,
    VALUES: tl.constexpr,
    OUT_TOKEN: tl.constexpr,
    OUT_HEAD: tl.constexpr,
    LSE_BATCH: tl.constexpr,
    LSE_TOKEN: tl.constexpr,
    LSE_HEAD: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr,
    PART_ROWS: tl.constexpr,
    PART_STEP: tl.constexpr,
    ROW_STEP: tl.constexpr,
    GPU: tl.constexpr,
):
    """Parts of chunks first, first + STEP, ..., `count` of them, into the answer or the first.

    `request` is a tuple: where its answer and its parts lie, and which rows these are.
    """
    (
        out_request, number_of_request, sinks, parts, norms, from_chunk, block, kv_head, first_row,
        value_scale,
    ) = request  # fmt: skip
    COLUMNS: tl.constexpr = triton.next_power_of_2(VALUES)
    column = tl.arange(0, COLUMNS)
    steps = tl.arange(0, PART_STEP)
    target = place_of(first, from_chunk, block, HEAD_BLOCKS)
    for start in tl.range(0, PART_ROWS, ROW_STEP, num_stages=1):
        row = start + tl.arange(0, ROW_STEP)
        most = tl.full([ROW_STEP], float("-inf"), tl.float32)
        mass = tl.zeros([ROW_STEP], tl.float32)
        acc = tl.zeros([ROW_STEP, COLUMNS], tl.float32)
        for member in tl.range(0, count, PART_STEP, num_stages=1):
            there = (member + steps < count)[None, :] & (row < PART_ROWS)[:, None]
            place = place_of(first + (member + steps) * STEP, from_chunk, block, HEAD_BLOCKS)
            at = place[None, :] * PART_ROWS + row[:, None]
            # Both loads before the first use: they wait for the memory together. Rows come
            # first, so that every thread has all parts of its sum.
            norm = tl.load(norms + at, mask=there, other=float("-inf"), cache_modifier=".cg")
            mask = there[:, :, None]
            if COLUMNS > VALUES:
                mask = mask & (column < VALUES)[None, None, :]
            part = tl.load(
                parts + at[:, :, None] * VALUES + column[None, None, :],
                mask=mask,
                other=0.0,
                cache_modifier=".cg",
            )
            new = tl.maximum(most, tl.max(norm, 1))
            shift = tl.where(new == float("-inf"), 0.0, new)
            alpha = tl.exp2(most - shift)
            weight = tl.exp2(norm - shift[:, None])
            mass = mass * alpha + tl.sum(weight, 1)
            acc = acc * alpha[:, None] + tl.sum(part * weight[:, :, None], 1)
            most = new
        number = first_row + row
        live = (number < NUMBERS)[:, None] & (column < VALUES)[None, :]
        if done:
            head = kv_head * GROUP + number % GROUP
            sink = 0.0
            if HAS_SINKS:
                sink = tl.load(sinks + head, mask=number < NUMBERS, other=0.0) * LOG2E
            if lse is not None:
                sums = lse + tl.cast(number_of_request, tl.int64) * LSE_BATCH
                sums += (number // GROUP) * LSE_TOKEN + head * LSE_HEAD
                found = log_sum(most, mass, sink, HAS_SINKS)
                tl.store(sums, found, mask=(number < NUMBERS) & (row < PART_ROWS))
            acc = acc * (factors(most, mass, sink, HAS_SINKS) * value_scale)[:, None]
            rows = out_request + (number // GROUP) * OUT_TOKEN + head * OUT_HEAD
            values = rounded(acc, rows.dtype.element_ty, GPU)
            tl.store(rows[:, None] + column[None, :], values, mask=live)
        else:
            some = tl.where(mass > 0, mass, 1.0)
            norm = tl.where(mass > 0, most + tl.log2(some), float("-inf"))
            at = target * PART_ROWS + row
            tl.store(norms + at, norm, mask=row < PART_ROWS)
            place = parts + at[:, None] * VALUES + column[None, :]
            tl.store(place, acc / some[:, None], mask=live)
