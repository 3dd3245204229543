"""Combines the parts that chunks have left of requests which do not lie in one of them."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_wait

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _chunk_of(tile, share, longer):
    """The chunk that a tile is in, if the first `longer` chunks have share + 1 tiles."""
    most = longer * (share + 1)
    return tl.where(tile < most, tile // (share + 1), longer + (tile - most) // share)


@triton.jit
def _slot(place, first, block, HEAD_BLOCKS: tl.constexpr):
    """Where the `place`-th chunk of a request that begins in chunk `first` has left its part."""
    return (2 * (first + place) + (place == 0).to(tl.int32)) * HEAD_BLOCKS + block


@triton.jit(do_not_specialize=["batch", "chunks"])
def latent_combine(
    parts, norms, sinks, out, lse, lengths, batch, chunks, out_row,
    NUMBERS: tl.constexpr, HEADS: tl.constexpr, HEAD_BLOCKS: tl.constexpr, BATCH: tl.constexpr,
    LEAST: tl.constexpr, SIZE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    VALUES: tl.constexpr, COLUMNS: tl.constexpr, MOST: tl.constexpr, STEP: tl.constexpr,
    EACH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`EACH` query rows of a request, `COLUMNS` of their values; grid: slices of rows, batch.

    The cut of the batch is that of `triton_kernel_chunks`; `parts` and `norms` are those of
    `latent_decode_hopper`. A request that lies in one chunk is finished already.
    """
    request = tl.program_id(1)
    if SIZE:
        each = tl.cdiv(SIZE, TILE)
        total = batch * each
        start = request * each
        stop = start + each
    else:
        requests = tl.arange(0, BATCH)
        there = requests < batch
        sizes = tl.load(lengths + requests, mask=there, other=0)
        tiles = tl.where(there, tl.maximum(tl.cdiv(sizes, TILE), 1), 0)
        total = tl.sum(tiles, 0)
        start = tl.sum(tl.where(requests < request, tiles, 0), 0)
        stop = start + tl.sum(tl.where(requests == request, tiles, 0), 0)
    used = tl.minimum(chunks, tl.cdiv(total, LEAST))
    share = total // used
    longer = total - share * used
    first = _chunk_of(start, share, longer)
    count = _chunk_of(stop - 1, share, longer) + 1 - first
    if count == 1:
        return
    if PDL:
        gdc_wait()
    SLICES: tl.constexpr = VALUES // COLUMNS
    column = tl.program_id(0) % SLICES * COLUMNS + tl.arange(0, COLUMNS)
    all_places = tl.arange(0, MOST)
    for i in tl.range(0, EACH, num_stages=1):
        number = tl.program_id(0) // SLICES * EACH + i
        if number < NUMBERS:
            block = number // ROWS
            row = number % ROWS
            all_norms = tl.load(
                norms + _slot(all_places, first, block, HEAD_BLOCKS) * ROWS + row,
                mask=all_places < count,
                other=float("-inf"),
            )
            top = tl.max(all_norms, 0)
            top = tl.where(top == float("-inf"), 0.0, top)
            mass = tl.sum(tl.exp2(all_norms - top), 0)
            nothing = float("-inf")
            if sinks is not None:
                nothing = tl.load(sinks + number % HEADS) * LOG2E
                mass = tl.where(mass > 0, mass + tl.exp2(nothing - top), 0.0)
            if lse is not None:
                found = tl.where(mass > 0, top + tl.log2(tl.where(mass > 0, mass, 1.0)), nothing)
                tl.store(lse + (request * NUMBERS + number).to(tl.int64), found / LOG2E)
            acc = tl.zeros([COLUMNS], tl.float32)
            for begin in tl.range(0, count, STEP, num_stages=1):
                place = begin + tl.arange(0, STEP)
                at = _slot(place, first, block, HEAD_BLOCKS).to(tl.int64) * ROWS + row
                live = place < count
                norm = tl.load(norms + at, mask=live, other=float("-inf"))
                part = tl.load(
                    parts + at[:, None] * VALUES + column[None, :], mask=live[:, None], other=0.0
                )
                acc += tl.sum(part * tl.exp2(norm - top)[:, None], 0)
            acc = acc / tl.where(mass > 0, mass, 1.0)
            target = out + (request * NUMBERS + number).to(tl.int64) * out_row
            tl.store(target + column, acc.to(out.dtype.element_ty))
