"""Paged decode attention in one launch, split over the context by the lengths of the batch.

The work of a launch is the list of all visible tokens of all requests, in units of `UNIT` tokens.
It is cut into equal chunks, each a run of neighbouring units that may begin and end inside of
requests. A program attends one chunk for one block of query rows (the rows of one KV head).
A request that lies in one chunk is finished there. Otherwise every chunk leaves its part in the
workspace, and the program that arrives last combines them; it also puts the counter back to zero,
so that the launch can be replayed. Nothing depends on the page but the address of a token.

KV of one byte is read as words of two: the even columns are the low bytes of a tile of words, the
odd columns the high bytes. So tiles move and turn as 16-bit tiles do, and products are of float16.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = tl.constexpr(1.4426950408889634)
WIDE = tl.constexpr(0)
FP8 = tl.constexpr(1)
INT8 = tl.constexpr(2)
LEAST_SCALE = tl.constexpr(1e-30)
LINES_AHEAD = tl.constexpr(32)


@triton.jit
def _unpack(words, KV: tl.constexpr, GPU: tl.constexpr):
    """The low and the high bytes of 16-bit words, each as float16."""
    if GPU:
        if KV == FP8:
            low, high = tl.inline_asm_elementwise(
                """{
                .reg .b16 a, b;
                .reg .b32 x, y;
                mov.b32 {a, b}, $2;
                cvt.rn.f16x2.e4m3x2 x, a;
                cvt.rn.f16x2.e4m3x2 y, b;
                prmt.b32 $0, x, y, 0x5410;
                prmt.b32 $1, x, y, 0x7632;
                }""",
                "=r,=r,r",
                [words],
                dtype=(tl.float16, tl.float16),
                is_pure=True,
                pack=2,
            )
        else:
            # 0x64 above a byte u is the float16 1024 + u; u is the value + 128.
            low, high = tl.inline_asm_elementwise(
                """{
                .reg .b32 u, x, y, c;
                xor.b32 u, $2, 0x80808080;
                prmt.b32 x, u, 0x64646464, 0x4240;
                prmt.b32 y, u, 0x64646464, 0x4341;
                mov.b32 c, 0x64806480;
                sub.f16x2 $0, x, c;
                sub.f16x2 $1, y, c;
                }""",
                "=r,=r,r",
                [words],
                dtype=(tl.float16, tl.float16),
                is_pure=True,
                pack=2,
            )
    else:
        wide = words.to(tl.int32)
        low = _byte(wide & 0xFF, KV)
        high = _byte((wide >> 8) & 0xFF, KV)
    return low, high


@triton.jit
def _byte(byte, KV: tl.constexpr):
    """Bytes in int32 as float16."""
    if KV == FP8:
        bits = ((byte & 0x80) << 8) | ((byte & 0x7F) << 7)
        value = bits.to(tl.uint16).to(tl.float16, bitcast=True) * 256.0
        value = tl.where((byte & 0x7F) == 0x7F, float("nan"), value).to(tl.float16)
    else:
        value = ((byte ^ 0x80) - 128).to(tl.float16)
    return value


@triton.jit
def _prefetch(base, numbers, program):
    """Ask for a program's share of the lines of an array of int32, into L2.

    All programs together cover the first MiB or so; nothing waits, and L2 is never stale.
    """
    line = program * LINES_AHEAD + tl.arange(0, LINES_AHEAD)
    place = base + tl.minimum(line * 32, numbers - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.b32 $0, 0;",
        "=r,l",
        [place.to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _operand(value, GPU: tl.constexpr):
    """An operand of a product; the interpreter would multiply the bits of bfloat16."""
    if not GPU:
        value = value.to(tl.float32)
    return value


@triton.jit
def _rounded(value, dtype: tl.constexpr, GPU: tl.constexpr):
    """float32 rounded to the nearest of a dtype; the interpreter cuts bfloat16 off."""
    if dtype == tl.bfloat16 and not GPU:
        bits = value.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        value = bits.to(tl.float32, bitcast=True)
    return value.to(dtype)


@triton.jit
def _add_scores(scores, q_low, q_high, k, KV: tl.constexpr, GPU: tl.constexpr):
    if KV == WIDE:
        scores = tl.dot(_operand(q_low, GPU), tl.trans(_operand(k, GPU)), scores)
    else:
        low, high = _unpack(k, KV, GPU)
        scores = tl.dot(q_low, tl.trans(low), scores)
        scores = tl.dot(q_high, tl.trans(high), scores)
    return scores


@triton.jit
def _add_values(low_acc, high_acc, p, v, KV: tl.constexpr, GPU: tl.constexpr):
    if KV == WIDE:
        low_acc = tl.dot(_operand(p, GPU), _operand(v, GPU), low_acc)
    else:
        low, high = _unpack(v, KV, GPU)
        low_acc = tl.dot(p, low, low_acc)
        high_acc = tl.dot(p, high, high_acc)
    return low_acc, high_acc


@triton.jit
def _load_tile(rows, live, FIRST: tl.constexpr, WIDTH: tl.constexpr, WORDS: tl.constexpr):
    """Columns FIRST .. FIRST + WIDTH of a tile of tokens; columns from WORDS on are zero."""
    columns = FIRST + tl.arange(0, WIDTH)
    whole: tl.constexpr = FIRST + WIDTH <= WORDS
    mask = live[:, None] if whole else live[:, None] & (columns < WORDS)[None, :]
    return tl.load(
        rows[:, None] + columns[None, :], mask=mask, other=0, eviction_policy="evict_first"
    )


@triton.jit
def _load_queries(
    rows,
    live,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    KV: tl.constexpr,
    BYTE: tl.constexpr,
):
    """Query rows at the columns that a tile of words holds in its low or high bytes."""
    words = FIRST + tl.arange(0, WIDTH)
    columns = words if KV == WIDE else 2 * words + BYTE
    mask = live[:, None] & (words < WORDS)[None, :]
    q = tl.load(rows[:, None] + columns[None, :], mask=mask, other=0)
    if KV != WIDE:
        q = q.to(tl.float16)
    return q


@triton.jit
def _store_values(
    rows,
    live,
    values,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    KV: tl.constexpr,
    BYTE: tl.constexpr,
    GPU: tl.constexpr,
):
    words = FIRST + tl.arange(0, WIDTH)
    columns = words if KV == WIDE else 2 * words + BYTE
    mask = live[:, None] & (words < WORDS)[None, :]
    values = _rounded(values, rows.dtype.element_ty, GPU)
    tl.store(rows[:, None] + columns[None, :], values, mask=mask)


@triton.jit
def _factors(m, mass, sink, HAS_SINKS: tl.constexpr):
    """What accumulated values are multiplied with in the end; 0 for rows that see nothing."""
    if HAS_SINKS:
        most = tl.maximum(m, sink)
        seen = tl.exp2(m - most)
        weight = seen / (mass * seen + tl.exp2(sink - most))
    else:
        weight = 1.0 / tl.where(mass > 0, mass, 1.0)
    return tl.where(mass > 0, weight, 0.0)


@triton.jit
def _load_parts(parts, at, live, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """Sums that chunks left, [parts, rows, WIDTH] from column FIRST on."""
    columns = FIRST + tl.arange(0, WIDTH)
    place = parts + at[:, :, None] + columns[None, None, :]
    return tl.load(place, mask=live[:, :, None], other=0.0, cache_modifier=".cg")


@triton.jit
def _add_parts(acc, part, alpha, weight):
    return acc * alpha[:, None] + tl.sum(part * weight[:, :, None], axis=0)


@triton.jit
def paged_decode_kernel(
    q,
    k_pages,
    v_pages,
    block_table,
    lengths,
    out,
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
    q_batch,
    q_token,
    q_head,
    k_page,
    k_token,
    k_head,
    v_page,
    v_token,
    v_head,
    ks_page,
    ks_token,
    ks_head,
    vs_page,
    vs_token,
    vs_head,
    table_batch,
    out_batch,
    out_token,
    out_head,
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
    GPU: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """One chunk of the batch for one block of query rows; grid: chunks * HEAD_BLOCKS.

    `parts` [2 * chunks, HEAD_BLOCKS, PART_ROWS, width] and `norms` [2 * chunks, HEAD_BLOCKS, 2,
    PART_ROWS] hold unfinished sums, maxima (in powers of two) and denominators of a chunk's first
    request if it began earlier (even slots) and of its last if it goes on (odd slots).
    `arrivals` [batch, HEAD_BLOCKS] is zero before and after.
    """
    BYTES: tl.constexpr = 1 if KV == WIDE else 2  # columns in a word
    WIDTH: tl.constexpr = BYTES * (V_MAIN + V_REST)
    NUMBERS: tl.constexpr = Q_TOKENS * GROUP
    program = tl.program_id(0)
    if AHEAD:
        _prefetch(block_table, batch * table_batch, program)
    if PDL:
        _prefetch(lengths, batch, 0)
        gdc_launch_dependents()
        gdc_wait()
    chunk = program // HEAD_BLOCKS
    block = program % HEAD_BLOCKS
    kv_head = block // ROW_BLOCKS
    first_row = (block % ROW_BLOCKS) * ROWS

    # The plan: where this chunk begins and ends in the list of units, and whose units they are.
    requests = tl.arange(0, BATCH)
    sizes = tl.load(lengths + requests, mask=requests < batch, other=0)
    skipped = tl.zeros_like(sizes)
    if HAS_WINDOW:
        skipped = tl.maximum(sizes - Q_TOKENS + 1 - window, 0) // UNIT
    # A request without a token has a unit too, in which its zeros are written.
    units = tl.maximum(tl.cdiv(sizes, UNIT) - skipped, 1)
    units = tl.where(requests < batch, units, 0)
    ends = tl.cumsum(units, 0)
    total = tl.sum(units, 0).to(tl.int64)
    used = tl.minimum(chunks, tl.cdiv(total, LEAST_UNITS))
    begin = (chunk * total // used).to(tl.int32)
    end = ((chunk + 1) * total // used).to(tl.int32)
    first_request = tl.sum((ends <= begin).to(tl.int32), 0)
    last_request = tl.sum((ends < end).to(tl.int32), 0)
    if chunk >= used:
        last_request = first_request - 1

    row = tl.arange(0, ROWS)
    number = first_row + row
    token_of_row = number // GROUP
    head_of_row = kv_head * GROUP + number % GROUP
    row_is = number < NUMBERS
    tile = tl.arange(0, TILE)
    k_base = k_pages + kv_head * k_head
    v_base = v_pages + kv_head * v_head
    log_scale = scale * LOG2E
    value_scale = 1.0
    if KV == FP8:
        log_scale = log_scale * tl.load(k_scale + kv_head)
        value_scale = tl.load(v_scale + kv_head)

    for request in tl.range(first_request, last_request + 1, num_stages=1):
        size = tl.sum(tl.where(requests == request, sizes, 0), 0)
        skip = tl.sum(tl.where(requests == request, skipped, 0), 0)
        request_end = tl.sum(tl.where(requests == request, ends, 0), 0)
        request_begin = request_end - tl.sum(tl.where(requests == request, units, 0), 0)
        low = (tl.maximum(begin, request_begin) - request_begin + skip) * UNIT
        high = tl.minimum((tl.minimum(end, request_end) - request_begin + skip) * UNIT, size)

        q_request = q + tl.cast(request, tl.int64) * q_batch
        q_rows = q_request + token_of_row * q_token + head_of_row * q_head
        q_main = _load_queries(q_rows, row_is, 0, K_MAIN, K_WORDS, KV, 0)
        q_main_high = 0
        q_rest = 0
        q_rest_high = 0
        if KV != WIDE:
            q_main_high = _load_queries(q_rows, row_is, 0, K_MAIN, K_WORDS, KV, 1)
        if K_REST:
            q_rest = _load_queries(q_rows, row_is, K_MAIN, K_REST, K_WORDS, KV, 0)
            if KV != WIDE:
                q_rest_high = _load_queries(q_rows, row_is, K_MAIN, K_REST, K_WORDS, KV, 1)
        position = size - Q_TOKENS + token_of_row

        m = tl.full([ROWS], float("-inf"), tl.float32)
        mass = tl.zeros([ROWS], tl.float32)
        main = tl.zeros([ROWS, V_MAIN], tl.float32)
        main_high = 0.0
        rest = 0.0
        rest_high = 0.0
        if KV != WIDE:
            main_high = tl.zeros([ROWS, V_MAIN], tl.float32)
        if V_REST:
            rest = tl.zeros([ROWS, V_REST], tl.float32)
            if KV != WIDE:
                rest_high = tl.zeros([ROWS, V_REST], tl.float32)

        table = block_table + tl.cast(request, tl.int64) * table_batch
        pages = tl.load(table + (low + tile) // PAGE, mask=low + tile < high, other=0)
        for token in tl.range(low, high, TILE, num_stages=STAGES):
            at = token + tile
            live = at < high
            page = pages.to(tl.int64)
            # One tile ahead, so that the loads of a tile never wait for its page ids.
            pages = tl.load(table + (at + TILE) // PAGE, mask=at + TILE < high, other=0)
            slot = at % PAGE

            k_rows = k_base + page * k_page + slot * k_token
            k_main = _load_tile(k_rows, live, 0, K_MAIN, K_WORDS)
            scores = tl.zeros([ROWS, TILE], tl.float32)
            scores = _add_scores(scores, q_main, q_main_high, k_main, KV, GPU)
            if K_REST:
                k_rest = _load_tile(k_rows, live, K_MAIN, K_REST, K_WORDS)
                scores = _add_scores(scores, q_rest, q_rest_high, k_rest, KV, GPU)
            if KV == INT8:
                k_scales = tl.load(
                    k_scale + page * ks_page + slot * ks_token + kv_head * ks_head,
                    mask=live,
                    other=0.0,
                )
                scores = scores * k_scales[None, :]
            if HAS_CAP:
                # 2x in powers of two, for tanh(x) = 1 - 2 / (exp(2x) + 1).
                doubled = tl.exp2(tl.minimum(scores * (2.0 * log_scale / soft_cap), 64.0))
                logits = (soft_cap * LOG2E) * (1.0 - 2.0 / (doubled + 1.0))
            else:
                logits = scores * log_scale
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
            if KV == INT8:
                # Scales of values join the exponent: products of any scale stay in float16.
                v_scales = tl.load(
                    v_scale + page * vs_page + slot * vs_token + kv_head * vs_head,
                    mask=live,
                    other=1.0,
                )
                weights = logits + tl.log2(tl.maximum(v_scales, LEAST_SCALE))[None, :]

            most = tl.maximum(m, tl.max(weights, 1))
            shift = tl.where(most == float("-inf"), 0.0, most) if Q_TOKENS > 1 else most
            alpha = tl.exp2(m - shift)
            p = tl.exp2(weights - shift[:, None])
            if KV == INT8:
                mass = mass * alpha + tl.sum(tl.exp2(logits - shift[:, None]), 1)
            else:
                mass = mass * alpha + tl.sum(p, 1)
            m = most
            main = main * alpha[:, None]
            if KV != WIDE:
                main_high = main_high * alpha[:, None]
            if V_REST:
                rest = rest * alpha[:, None]
                if KV != WIDE:
                    rest_high = rest_high * alpha[:, None]

            p = _rounded(p, k_main.dtype if KV == WIDE else tl.float16, GPU)
            if SHARED:
                main, main_high = _add_values(main, main_high, p, k_main, KV, GPU)
            else:
                v_rows = v_base + page * v_page + slot * v_token
                v_main = _load_tile(v_rows, live, 0, V_MAIN, V_WORDS)
                main, main_high = _add_values(main, main_high, p, v_main, KV, GPU)
                if V_REST:
                    v_rest = _load_tile(v_rows, live, V_MAIN, V_REST, V_WORDS)
                    rest, rest_high = _add_values(rest, rest_high, p, v_rest, KV, GPU)

        out_request = out + tl.cast(request, tl.int64) * out_batch
        if (begin <= request_begin) & (end >= request_end):
            sink = 0.0
            if HAS_SINKS:
                sink = tl.load(sinks + head_of_row, mask=row_is, other=0.0) * LOG2E
            factor = _factors(m, mass, sink, HAS_SINKS) * value_scale
            factor = factor[:, None]
            out_rows = out_request + token_of_row * out_token + head_of_row * out_head
            _store_values(out_rows, row_is, main * factor, 0, V_MAIN, V_WORDS, KV, 0, GPU)
            if KV != WIDE:
                _store_values(out_rows, row_is, main_high * factor, 0, V_MAIN, V_WORDS, KV, 1, GPU)
            if V_REST:
                _store_values(out_rows, row_is, rest * factor, V_MAIN, V_REST, V_WORDS, KV, 0, GPU)
                if KV != WIDE:
                    _store_values(
                        out_rows, row_is, rest_high * factor, V_MAIN, V_REST, V_WORDS, KV, 1, GPU
                    )
        else:
            place = 2 * chunk + (begin <= request_begin).to(tl.int32)
            place = place.to(tl.int64) * HEAD_BLOCKS + block
            kept = row < PART_ROWS
            part = parts + (place * PART_ROWS + row) * WIDTH
            _store_values(part, kept, main, 0, V_MAIN, V_MAIN, WIDE, 0, GPU)
            if KV != WIDE:
                _store_values(part + V_MAIN, kept, main_high, 0, V_MAIN, V_MAIN, WIDE, 0, GPU)
            if V_REST:
                _store_values(part + BYTES * V_MAIN, kept, rest, 0, V_REST, V_REST, WIDE, 0, GPU)
                if KV != WIDE:
                    _store_values(
                        part + BYTES * V_MAIN + V_REST,
                        kept,
                        rest_high,
                        0,
                        V_REST,
                        V_REST,
                        WIDE,
                        0,
                        GPU,
                    )
            norm = norms + place * 2 * PART_ROWS + row
            tl.store(norm, m, mask=kept)
            tl.store(norm + PART_ROWS, mass, mask=kept)
            from_chunk = (((request_begin + 1).to(tl.int64) * used - 1) // total).to(tl.int32)
            to_chunk = ((request_end.to(tl.int64) * used - 1) // total).to(tl.int32)
            arrival = arrivals + request * HEAD_BLOCKS + block
            tl.debug_barrier()
            before = tl.atomic_add(arrival, 1, sem="acq_rel")
            if before == to_chunk - from_chunk:
                _combine(
                    out_request,
                    out_token,
                    out_head,
                    sinks,
                    parts,
                    norms,
                    from_chunk,
                    to_chunk,
                    block,
                    kv_head,
                    first_row,
                    value_scale,
                    KV,
                    GROUP,
                    NUMBERS,
                    V_WORDS,
                    V_MAIN,
                    V_REST,
                    HAS_SINKS,
                    HEAD_BLOCKS,
                    PART_ROWS,
                    PART_STEP,
                    GPU,
                )
                tl.store(arrival, 0)


@triton.jit
def _combine(
    out_request,
    out_token,
    out_head,
    sinks,
    parts,
    norms,
    from_chunk,
    to_chunk,
    block,
    kv_head,
    first_row,
    value_scale,
    KV: tl.constexpr,
    GROUP: tl.constexpr,
    NUMBERS: tl.constexpr,
    V_WORDS: tl.constexpr,
    V_MAIN: tl.constexpr,
    V_REST: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr,
    PART_ROWS: tl.constexpr,
    PART_STEP: tl.constexpr,
    GPU: tl.constexpr,
):
    """The parts that chunks from_chunk .. to_chunk left of one request, summed and written."""
    BYTES: tl.constexpr = 1 if KV == WIDE else 2
    WIDTH: tl.constexpr = BYTES * (V_MAIN + V_REST)
    row = tl.arange(0, PART_ROWS)
    steps = tl.arange(0, PART_STEP)
    m = tl.full([PART_ROWS], float("-inf"), tl.float32)
    mass = tl.zeros([PART_ROWS], tl.float32)
    main = tl.zeros([PART_ROWS, V_MAIN], tl.float32)
    main_high = 0.0
    rest = 0.0
    rest_high = 0.0
    if KV != WIDE:
        main_high = tl.zeros([PART_ROWS, V_MAIN], tl.float32)
    if V_REST:
        rest = tl.zeros([PART_ROWS, V_REST], tl.float32)
        if KV != WIDE:
            rest_high = tl.zeros([PART_ROWS, V_REST], tl.float32)
    for first in tl.range(from_chunk, to_chunk + 1, PART_STEP, num_stages=1):
        chunk = first + steps
        there = (chunk <= to_chunk)[:, None] & (row < PART_ROWS)[None, :]
        place = 2 * chunk + (chunk == from_chunk).to(tl.int32)
        place = place.to(tl.int64) * HEAD_BLOCKS + block
        at = ((place * PART_ROWS)[:, None] + row[None, :]) * WIDTH
        # All loads before the first use: they wait for the memory together.
        part_main = _load_parts(parts, at, there, 0, V_MAIN)
        if KV != WIDE:
            part_main_high = _load_parts(parts, at, there, V_MAIN, V_MAIN)
        norm = norms + (place * 2 * PART_ROWS)[:, None] + row[None, :]
        part_m = tl.load(norm, mask=there, other=float("-inf"), cache_modifier=".cg")
        part_l = tl.load(norm + PART_ROWS, mask=there, other=0.0, cache_modifier=".cg")
        most = tl.maximum(m, tl.max(part_m, 0))
        shift = tl.where(most == float("-inf"), 0.0, most)
        alpha = tl.exp2(m - shift)
        weight = tl.exp2(part_m - shift[None, :])
        mass = mass * alpha + tl.sum(part_l * weight, 0)
        m = most
        main = _add_parts(main, part_main, alpha, weight)
        if KV != WIDE:
            main_high = _add_parts(main_high, part_main_high, alpha, weight)
        if V_REST:
            part_rest = _load_parts(parts, at, there, BYTES * V_MAIN, V_REST)
            rest = _add_parts(rest, part_rest, alpha, weight)
            if KV != WIDE:
                part_rest = _load_parts(parts, at, there, BYTES * V_MAIN + V_REST, V_REST)
                rest_high = _add_parts(rest_high, part_rest, alpha, weight)
    number = first_row + row
    head = kv_head * GROUP + number % GROUP
    live = number < NUMBERS
    sink = 0.0
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=live, other=0.0) * LOG2E
    factor = _factors(m, mass, sink, HAS_SINKS) * value_scale
    factor = factor[:, None]
    out_rows = out_request + (number // GROUP) * out_token + head * out_head
    _store_values(out_rows, live, main * factor, 0, V_MAIN, V_WORDS, KV, 0, GPU)
    if KV != WIDE:
        _store_values(out_rows, live, main_high * factor, 0, V_MAIN, V_WORDS, KV, 1, GPU)
    if V_REST:
        _store_values(out_rows, live, rest * factor, V_MAIN, V_REST, V_WORDS, KV, 0, GPU)
        if KV != WIDE:
            _store_values(out_rows, live, rest_high * factor, V_MAIN, V_REST, V_WORDS, KV, 1, GPU)
