"""Paged decode attention in one launch, split over the context by the lengths of the batch.

The work of a launch is the list of all visible tokens of all requests, in units of `UNIT` tokens.
It is cut into equal chunks, each a run of neighbouring units that may begin and end inside of
requests. A program attends one chunk for one block of query rows (the rows of one KV head).
A request that lies in one chunk is finished there. Otherwise every chunk leaves its part in the
workspace, and the program that arrives last combines them; it also puts the counter back to zero,
so that the launch can be replayed. Nothing depends on the page but the address of a token.

The loads, products and stores of tiles are in `triton_kernel_tiles`, the combining of parts in
`triton_kernel_combine`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from kvproof.kernels.paged_decode.triton_kernel_combine import (
    LOG2E,
    combine,
    factors,
    log_sum,
    place_of,
)
from kvproof.kernels.paged_decode.triton_kernel_tiles import (
    FP8,
    INT4,
    INT8,
    MIDDLE,
    WIDE,
    add_scores,
    add_values,
    load_queries,
    load_tile,
    planes_of,
    prefetch,
    rounded,
    store_row,
    times,
    zeros_of,
)

LEAST_SCALE = tl.constexpr(1e-30)
FEW = tl.constexpr(32)
"""Chunks of a batch of few units that would have up to `FEW_MORE`: `combine` reads 32 parts at
once, and a second pass over the last of them takes longer than the units that the others gain."""
FEW_MORE = tl.constexpr(36)
FEW_UNITS = tl.constexpr(1024)
"""Units up to which this holds: 16,384 tokens."""


@triton.jit
def _skipped(size, window, Q_TOKENS: tl.constexpr, UNIT: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """Units at the start of a request that no position sees."""
    skipped = size * 0
    if HAS_WINDOW:
        skipped = tl.maximum(size - Q_TOKENS + 1 - window, 0) // UNIT
    return skipped


@triton.jit
def _units(size, skipped, UNIT: tl.constexpr):
    """Units of a request; one without a token has one too, in which its zeros are written."""
    return tl.maximum(tl.cdiv(size, UNIT) - skipped, 1)


@triton.jit
def _load_pages(table, at, high, PAGE: tl.constexpr):
    """Ids of the pages that positions lie in; nothing is read from `high` on."""
    index = at.to(tl.uint32) // PAGE
    return tl.load(table + index, mask=at < high, other=0)


@triton.jit
def _scales(at, live, OTHER: tl.constexpr, KV: tl.constexpr):
    """Scales of tokens, and their zero points less `MIDDLE`, which INT4 has in the low 4 bits."""
    scales = tl.load(at, mask=live, other=OTHER)
    zeros = 0.0
    if KV == INT4:
        bits = scales.to(tl.int32, bitcast=True)
        zeros = ((bits & 15) - MIDDLE).to(tl.float32)
        scales = (bits & -16).to(tl.float32, bitcast=True)
    return scales, zeros


@triton.jit
def _sum_of(q, KV: tl.constexpr):
    """Sums of the columns of query rows, over their planes."""
    total = tl.sum(q[0].to(tl.float32), 1)
    for i in tl.static_range(1, planes_of(KV)):
        total += tl.sum(q[i].to(tl.float32), 1)
    return total


@triton.jit
def _less(sums, by, KV: tl.constexpr):
    """Every plane of accumulators less a number of its rows."""
    found = ()
    for i in tl.static_range(planes_of(KV)):
        found = found + (sums[i] - by[:, None],)  # noqa: RUF005 - Triton has no starred tuples
    return found


@triton.jit
def _chunk_of(unit, share, longer):
    """The chunk that a unit is in, if the first `longer` chunks have share + 1 units."""
    most = longer * (share + 1)
    return tl.where(unit < most, unit // (share + 1), longer + (unit - most) // share)


@triton.jit
def paged_decode_kernel(
    q,
    k_pages,
    v_pages,
    block_table,
    lengths,
    out,
    lse,
    sinks,
    k_scale,
    v_scale,
    arrivals,
    parts,
    norms,
    scale,
    soft_cap,
    window,
    batch,
    chunks,
    later,
    table_batch,
    Q_BATCH: tl.constexpr,
    Q_TOKEN: tl.constexpr,
    Q_HEAD: tl.constexpr,
    K_PAGE: tl.constexpr,
    K_TOKEN: tl.constexpr,
    K_HEAD: tl.constexpr,
    V_PAGE: tl.constexpr,
    V_TOKEN: tl.constexpr,
    V_HEAD: tl.constexpr,
    KS_PAGE: tl.constexpr,
    KS_TOKEN: tl.constexpr,
    KS_HEAD: tl.constexpr,
    VS_PAGE: tl.constexpr,
    VS_TOKEN: tl.constexpr,
    VS_HEAD: tl.constexpr,
    OUT_BATCH: tl.constexpr,
    OUT_TOKEN: tl.constexpr,
    OUT_HEAD: tl.constexpr,
    LSE_BATCH: tl.constexpr,
    LSE_TOKEN: tl.constexpr,
    LSE_HEAD: tl.constexpr,
    PAGE: tl.constexpr,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    Q_TOKENS: tl.constexpr,
    K_WORDS: tl.constexpr,
    K_MAIN: tl.constexpr,
    K_REST: tl.constexpr,
    V_WORDS: tl.constexpr,
    V_MAIN: tl.constexpr,
    V_REST: tl.constexpr,
    SHARED: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    BATCH: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr,
    ROW_BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    UNIT: tl.constexpr,
    LEAST_UNITS: tl.constexpr,
    STAGES: tl.constexpr,
    PART_ROWS: tl.constexpr,
    PART_STEP: tl.constexpr,
    ROW_STEP: tl.constexpr,
    FAN: tl.constexpr,
    GPU: tl.constexpr,
    ASM: tl.constexpr,
    AHEAD: tl.constexpr,
    EARLY: tl.constexpr,
    PDL: tl.constexpr,
):
    """One chunk of the batch for one block of query rows; grid: chunks * HEAD_BLOCKS.

    `parts` [2 * chunks, HEAD_BLOCKS, PART_ROWS, values] and `norms` [2 * chunks, HEAD_BLOCKS,
    PART_ROWS] hold what a chunk found of its first request if that began earlier (even places) and
    of a request that began in it and goes on (odd places): weighted means, and the logarithms to
    base 2 of the sums of weights. `arrivals`, a number for each such place and, `later` after
    them, another, is zero before and after.
    """
    VALUES: tl.constexpr = planes_of(KV) * V_WORDS
    OF_TOKENS: tl.constexpr = KV == INT8 or KV == INT4  # whether each has its scales
    NUMBERS: tl.constexpr = Q_TOKENS * GROUP
    program = tl.program_id(0)
    if PDL == 1:
        gdc_launch_dependents()
    if PDL and not EARLY:
        gdc_wait()
    chunk = program // HEAD_BLOCKS
    block = program % HEAD_BLOCKS
    kv_head = block // ROW_BLOCKS
    first_row = (block % ROW_BLOCKS) * ROWS

    # The plan: where this chunk begins and ends in the list of units, and whose units they are.
    if BATCH == 1:
        size = tl.load(lengths)
        skip = _skipped(size, window, Q_TOKENS, UNIT, HAS_WINDOW)
        total = _units(size, skip, UNIT)
    else:
        requests = tl.arange(0, BATCH)
        there = requests < batch
        sizes = tl.load(lengths + requests, mask=there, other=0)
        skipped = _skipped(sizes, window, Q_TOKENS, UNIT, HAS_WINDOW)
        units = tl.where(there, _units(sizes, skipped, UNIT), 0)
        ends = tl.cumsum(units, 0)
        total = tl.sum(units, 0)
    used = tl.minimum(chunks, tl.cdiv(total, LEAST_UNITS))
    if (total <= FEW_UNITS) & (used <= FEW_MORE):
        used = tl.minimum(used, FEW)
    if chunk >= used:
        return
    # The first `longer` chunks have a unit more than the others.
    share = total // used
    longer = total - share * used
    begin = chunk * share + tl.minimum(chunk, longer)
    end = begin + share + (chunk < longer).to(tl.int32)
    first_request = 0
    last_request = 0
    if BATCH > 1:
        first_request = tl.sum((ends <= begin).to(tl.int32), 0)
        last_request = tl.sum((ends < end).to(tl.int32), 0)

    row = tl.arange(0, ROWS)
    number = first_row + row
    token_of_row = number // GROUP
    head_of_row = kv_head * GROUP + number % GROUP
    row_is = number < NUMBERS
    tile = tl.arange(0, TILE)
    k_base = k_pages + kv_head * K_HEAD
    v_base = v_pages + kv_head * V_HEAD
    log_scale = scale * LOG2E
    value_scale = 1.0
    if KV == FP8:
        log_scale = log_scale * tl.load(k_scale + kv_head)
        value_scale = tl.load(v_scale + kv_head)

    for request in tl.range(first_request, last_request + 1, num_stages=1):
        request_begin = 0
        request_end = total
        if BATCH > 1:
            it = requests == request
            size = tl.sum(tl.where(it, sizes, 0), 0)
            skip = tl.sum(tl.where(it, skipped, 0), 0)
            request_end = tl.sum(tl.where(it, ends, 0), 0)
            request_begin = request_end - tl.sum(tl.where(it, units, 0), 0)
        low = (tl.maximum(begin, request_begin) - request_begin + skip) * UNIT
        high = tl.minimum((tl.minimum(end, request_end) - request_begin + skip) * UNIT, size)

        table = block_table + tl.cast(request, tl.int64) * table_batch
        pages = _load_pages(table, low + tile, high, PAGE)
        if AHEAD:  # noqa: SIM102 - one is known to the compiler, the other is not
            if request == first_request:
                # Bytes that the kernel before has not rewritten are already right in L2.
                for ahead in tl.static_range(AHEAD):
                    at = low + ahead * TILE + tile
                    page = _load_pages(table, at, high, PAGE).to(tl.int64)
                    slot = (at.to(tl.uint32) % PAGE).to(tl.int32)
                    prefetch(k_base + page * K_PAGE + slot * K_TOKEN, at < high, K_MAIN)
                    if not SHARED:
                        prefetch(v_base + page * V_PAGE + slot * V_TOKEN, at < high, V_MAIN)
        if PDL and EARLY:
            gdc_wait()
        q_request = q + tl.cast(request, tl.int64) * Q_BATCH
        q_rows = q_request + token_of_row * Q_TOKEN + head_of_row * Q_HEAD
        q_main = load_queries(q_rows, row_is, 0, K_MAIN, K_WORDS, KV)
        q_rest = ()
        if K_REST:
            q_rest = load_queries(q_rows, row_is, K_MAIN, K_REST, K_WORDS, KV)
        if KV == INT4:
            q_sum = _sum_of(q_main, KV)
            if K_REST:
                q_sum += _sum_of(q_rest, KV)
        position = size - Q_TOKENS + token_of_row

        m = tl.full([ROWS], float("-inf"), tl.float32)
        # Of tokens with scales a column each: sums over tokens would wait for all warps.
        mass = tl.zeros([ROWS, TILE] if OF_TOKENS else [ROWS], tl.float32)
        main = zeros_of(ROWS, V_MAIN, KV)
        rest = ()
        if V_REST:
            rest = zeros_of(ROWS, V_REST, KV)
        below = 0.0
        if KV == INT4:
            below = tl.zeros([ROWS, TILE], tl.float32)

        for token in tl.range(low, high, TILE, num_stages=STAGES):
            at = token + tile
            live = at < high
            page = pages.to(tl.int64)
            # One tile ahead, so that the loads of a tile never wait for its page ids.
            pages = _load_pages(table, at + TILE, high, PAGE)
            slot = (at.to(tl.uint32) % PAGE).to(tl.int32)

            k_rows = k_base + page * K_PAGE + slot * K_TOKEN
            k_main = load_tile(k_rows, live, 0, K_MAIN, K_WORDS)
            scores = tl.zeros([ROWS, TILE], tl.float32)
            by = log_scale
            scores = add_scores(scores, q_main, k_main, KV, GPU, ASM)
            if K_REST:
                k_rest = load_tile(k_rows, live, K_MAIN, K_REST, K_WORDS)
                scores = add_scores(scores, q_rest, k_rest, KV, GPU, ASM)
            if OF_TOKENS:
                scale_at = k_scale + page * KS_PAGE + slot * KS_TOKEN + kv_head * KS_HEAD
                k_scales, k_zeros = _scales(scale_at, live, 0.0, KV)
                if KV == INT4:
                    scores = scores - q_sum[:, None] * k_zeros[None, :]
                by = (k_scales * log_scale)[None, :]
            if HAS_CAP:
                # 2x in powers of two, for tanh(x) = 1 - 2 / (exp(2x) + 1).
                doubled = tl.exp2(tl.minimum(scores * (2.0 * by / soft_cap), 64.0))
                logits = (soft_cap * LOG2E) * (1.0 - 2.0 / (doubled + 1.0))
            else:
                logits = scores * by
            if Q_TOKENS == 1:
                seen = live[None, :]
                if HAS_WINDOW:
                    seen = seen & (at > size - 1 - window)[None, :]
            else:
                seen = live[None, :] & (at[None, :] <= position[:, None])
                if HAS_WINDOW:
                    seen = seen & (at[None, :] > position[:, None] - window)
            logits = tl.where(seen, logits, float("-inf"))
            weights = logits
            if OF_TOKENS:
                # Powers of two in the scales of values join the exponent: products of any scale
                # stay in float16.
                scale_at = v_scale + page * VS_PAGE + slot * VS_TOKEN + kv_head * VS_HEAD
                v_scales, v_zeros = _scales(scale_at, live, 1.0, KV)
                v_bits = tl.maximum(v_scales, LEAST_SCALE).to(tl.int32, bitcast=True)
                power = v_bits >> 23
                weights = logits + (power - 127).to(tl.float32)[None, :]

            most = tl.maximum(m, tl.max(weights, 1))
            shift = tl.where(most == float("-inf"), 0.0, most) if Q_TOKENS > 1 else most
            alpha = tl.exp2(m - shift)
            p = tl.exp2(weights - shift[:, None])
            if OF_TOKENS:
                without = ((254 - power) << 23).to(tl.float32, bitcast=True)
                mass = mass * alpha[:, None] + p * without[None, :]
                p = p * ((v_bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)[None, :]
            else:
                mass = mass * alpha + tl.sum(p, 1)
            m = most
            main = times(main, alpha, KV)
            if V_REST:
                rest = times(rest, alpha, KV)

            p = rounded(p, k_main.dtype if KV == WIDE else tl.float16, GPU)
            if KV == INT4:
                below = below * alpha[:, None] + p.to(tl.float32) * v_zeros[None, :]
            if SHARED:
                main = add_values(main, p, k_main, KV, GPU, ASM)
            else:
                v_rows = v_base + page * V_PAGE + slot * V_TOKEN
                v_main = load_tile(v_rows, live, 0, V_MAIN, V_WORDS)
                main = add_values(main, p, v_main, KV, GPU, ASM)
                if V_REST:
                    v_rest = load_tile(v_rows, live, V_MAIN, V_REST, V_WORDS)
                    rest = add_values(rest, p, v_rest, KV, GPU, ASM)

        if PDL == 2:  # noqa: SIM102 - one is known to the compiler, the other is not
            if request == last_request:
                gdc_launch_dependents()
        if OF_TOKENS:
            mass = tl.sum(mass, 1)
        if KV == INT4:
            below = tl.sum(below, 1)
            main = _less(main, below, KV)
            if V_REST:
                rest = _less(rest, below, KV)
        out_request = out + tl.cast(request, tl.int64) * OUT_BATCH
        if (begin <= request_begin) & (end >= request_end):
            sink = 0.0
            if HAS_SINKS:
                sink = tl.load(sinks + head_of_row, mask=row_is, other=0.0) * LOG2E
            if lse is not None:
                sums = lse + tl.cast(request, tl.int64) * LSE_BATCH
                sums += token_of_row * LSE_TOKEN + head_of_row * LSE_HEAD
                tl.store(sums, log_sum(m, mass, sink, HAS_SINKS), mask=row_is)
            factor = factors(m, mass, sink, HAS_SINKS) * value_scale
            out_rows = out_request + token_of_row * OUT_TOKEN + head_of_row * OUT_HEAD
            store_row(out_rows, row_is, main, factor, 0, V_MAIN, V_WORDS, KV, GPU)
            if V_REST:
                store_row(out_rows, row_is, rest, factor, V_MAIN, V_REST, V_WORDS, KV, GPU)
        else:
            inverse = 1.0 / tl.where(mass > 0, mass, 1.0)
            norm = tl.where(mass > 0, m + tl.log2(tl.where(mass > 0, mass, 1.0)), float("-inf"))
            from_chunk = 0
            to_chunk = used - 1
            if BATCH > 1:
                from_chunk = _chunk_of(request_begin, share, longer)
                to_chunk = _chunk_of(request_end - 1, share, longer)
            place = place_of(chunk, from_chunk, block, HEAD_BLOCKS)
            kept = row < PART_ROWS
            tl.store(norms + place * PART_ROWS + row, norm, mask=kept)
            part = parts + (place * PART_ROWS + row) * VALUES
            store_row(part, kept, main, inverse, 0, V_MAIN, V_WORDS, KV, GPU)
            if V_REST:
                store_row(part, kept, rest, inverse, V_MAIN, V_REST, V_WORDS, KV, GPU)

            # The last of some chunks to arrive combines them; if there are many chunks, the last
            # of those that have combined some combines all.
            first = from_chunk + (chunk - from_chunk) // FAN * FAN
            count = tl.minimum(FAN, to_chunk + 1 - first)
            alone = to_chunk - from_chunk < FAN
            arrival = arrivals + place_of(first, from_chunk, block, HEAD_BLOCKS)
            whole = (
                out_request, request, sinks, parts, norms, from_chunk,
                block, kv_head, first_row, value_scale,
            )  # fmt: skip
            tl.debug_barrier()
            if tl.atomic_add(arrival, 1, sem="acq_rel") == count - 1:
                combine(
                    whole, lse, first, count, alone, 1, GROUP, NUMBERS, VALUES, OUT_TOKEN, OUT_HEAD,
                    LSE_BATCH, LSE_TOKEN, LSE_HEAD, HAS_SINKS, HEAD_BLOCKS, PART_ROWS, PART_STEP,
                    ROW_STEP, GPU,
                )  # fmt: skip
                tl.store(arrival, 0)
                if not alone:
                    first = from_chunk
                    count = tl.cdiv(to_chunk + 1 - from_chunk, FAN)
                    arrival = arrivals + later + place_of(first, from_chunk, block, HEAD_BLOCKS)
                    tl.debug_barrier()
                    if tl.atomic_add(arrival, 1, sem="acq_rel") == count - 1:
                        combine(
                            whole, lse, first, count, True, FAN, GROUP, NUMBERS, VALUES, OUT_TOKEN,  # noqa: FBT003 - kernels are called by position
                            OUT_HEAD, LSE_BATCH, LSE_TOKEN, LSE_HEAD, HAS_SINKS, HEAD_BLOCKS,
                            PART_ROWS, PART_STEP, ROW_STEP, GPU,
                        )  # fmt: skip
                        tl.store(arrival, 0)
