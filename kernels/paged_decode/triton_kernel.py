"""Paged decode attention in one launch, split over the context by the lengths of the batch.

The work of a launch is the list of all visible tokens of all requests, in units of `UNIT` tokens.
It is cut into equal chunks, each a run of neighbouring units that may begin and end inside of
requests. A program attends one chunk for one block of query rows (the rows of one KV head).
A request that lies in one chunk is finished there. Otherwise every chunk leaves its part in the
workspace, and the program that arrives last combines them; it also puts the counter back to zero,
so that the launch can be replayed. Nothing depends on the page but the address of a token.

KV of one byte is read as words of two: the even columns are the low bytes of a tile of words, the
odd columns the high bytes. So tiles move and turn as 16-bit tiles do, and products are of float16.

The file is long because Triton has no structures: every helper takes what it needs one by one.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOG2E = tl.constexpr(1.4426950408889634)
WIDE = tl.constexpr(0)
FP8 = tl.constexpr(1)
INT8 = tl.constexpr(2)
LEAST_SCALE = tl.constexpr(1e-30)
FEW = tl.constexpr(32)
FEW_MORE = tl.constexpr(36)
FEW_UNITS = tl.constexpr(1024)


@triton.jit
def _unpack(words, KV: tl.constexpr, ASM: tl.constexpr):
    """The low and the high bytes of 16-bit words, each as float16."""
    if ASM:
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
def _prefetch(rows, live, WORDS: tl.constexpr):
    """Ask for rows of memory, into L2, which is never stale; nothing waits for them."""
    LINES: tl.constexpr = max(1, WORDS // 64)
    lines = rows[:, None] + 64 * tl.arange(0, LINES)[None, :]
    asked, lines = tl.broadcast(live[:, None].to(tl.int32), lines.to(tl.int64))
    tl.inline_asm_elementwise(
        """{
        .reg .pred p;
        setp.ne.b32 p, $2, 0;
        @p prefetch.global.L2 [$1];
        mov.b32 $0, 0;
        }""",
        "=r,l,r",
        [lines, asked],
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
def _add_scores(scores, q_low, q_high, k, KV: tl.constexpr, GPU: tl.constexpr, ASM: tl.constexpr):
    if KV == WIDE:
        scores = tl.dot(_operand(q_low, GPU), tl.trans(_operand(k, GPU)), scores)
    else:
        low, high = _unpack(k, KV, ASM)
        scores = tl.dot(q_low, tl.trans(low), scores)
        scores = tl.dot(q_high, tl.trans(high), scores)
    return scores


@triton.jit
def _add_values(low_acc, high_acc, p, v, KV: tl.constexpr, GPU: tl.constexpr, ASM: tl.constexpr):
    if KV == WIDE:
        low_acc = tl.dot(_operand(p, GPU), _operand(v, GPU), low_acc)
    else:
        low, high = _unpack(v, KV, ASM)
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
    base 2 of the sums of weights. `arrivals`, a number for each such place and, `later` behind
    them, another, is zero before and after.
    """
    BYTES: tl.constexpr = 1 if KV == WIDE else 2  # columns in a word
    VALUES: tl.constexpr = BYTES * V_WORDS
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
                # What the kernel before has not written anew is already right in L2.
                for ahead in tl.static_range(AHEAD):
                    at = low + ahead * TILE + tile
                    page = _load_pages(table, at, high, PAGE).to(tl.int64)
                    slot = (at.to(tl.uint32) % PAGE).to(tl.int32)
                    _prefetch(k_base + page * K_PAGE + slot * K_TOKEN, at < high, K_MAIN)
                    if not SHARED:
                        _prefetch(v_base + page * V_PAGE + slot * V_TOKEN, at < high, V_MAIN)
        if PDL and EARLY:
            gdc_wait()
        q_request = q + tl.cast(request, tl.int64) * Q_BATCH
        q_rows = q_request + token_of_row * Q_TOKEN + head_of_row * Q_HEAD
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

        for token in tl.range(low, high, TILE, num_stages=STAGES):
            at = token + tile
            live = at < high
            page = pages.to(tl.int64)
            # One tile ahead, so that the loads of a tile never wait for its page ids.
            pages = _load_pages(table, at + TILE, high, PAGE)
            slot = (at.to(tl.uint32) % PAGE).to(tl.int32)

            k_rows = k_base + page * K_PAGE + slot * K_TOKEN
            k_main = _load_tile(k_rows, live, 0, K_MAIN, K_WORDS)
            scores = tl.zeros([ROWS, TILE], tl.float32)
            scores = _add_scores(scores, q_main, q_main_high, k_main, KV, GPU, ASM)
            if K_REST:
                k_rest = _load_tile(k_rows, live, K_MAIN, K_REST, K_WORDS)
                scores = _add_scores(scores, q_rest, q_rest_high, k_rest, KV, GPU, ASM)
            if KV == INT8:
                k_scales = tl.load(
                    k_scale + page * KS_PAGE + slot * KS_TOKEN + kv_head * KS_HEAD,
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
                    v_scale + page * VS_PAGE + slot * VS_TOKEN + kv_head * VS_HEAD,
                    mask=live,
                    other=1.0,
                )
                v_scales = tl.maximum(v_scales, LEAST_SCALE)
                weights = logits + tl.log2(v_scales)[None, :]

            most = tl.maximum(m, tl.max(weights, 1))
            shift = tl.where(most == float("-inf"), 0.0, most) if Q_TOKENS > 1 else most
            alpha = tl.exp2(m - shift)
            p = tl.exp2(weights - shift[:, None])
            if KV == INT8:
                mass = mass * alpha + tl.sum(p / v_scales[None, :], 1)
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
                main, main_high = _add_values(main, main_high, p, k_main, KV, GPU, ASM)
            else:
                v_rows = v_base + page * V_PAGE + slot * V_TOKEN
                v_main = _load_tile(v_rows, live, 0, V_MAIN, V_WORDS)
                main, main_high = _add_values(main, main_high, p, v_main, KV, GPU, ASM)
                if V_REST:
                    v_rest = _load_tile(v_rows, live, V_MAIN, V_REST, V_WORDS)
                    rest, rest_high = _add_values(rest, rest_high, p, v_rest, KV, GPU, ASM)

        if PDL == 2:  # noqa: SIM102 - one is known to the compiler, the other is not
            if request == last_request:
                gdc_launch_dependents()
        out_request = out + tl.cast(request, tl.int64) * OUT_BATCH
        if (begin <= request_begin) & (end >= request_end):
            sink = 0.0
            if HAS_SINKS:
                sink = tl.load(sinks + head_of_row, mask=row_is, other=0.0) * LOG2E
            factor = _factors(m, mass, sink, HAS_SINKS) * value_scale
            factor = factor[:, None]
            out_rows = out_request + token_of_row * OUT_TOKEN + head_of_row * OUT_HEAD
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
            inverse = 1.0 / tl.where(mass > 0, mass, 1.0)
            norm = tl.where(mass > 0, m + tl.log2(tl.where(mass > 0, mass, 1.0)), float("-inf"))
            from_chunk = 0
            to_chunk = used - 1
            if BATCH > 1:
                from_chunk = _chunk_of(request_begin, share, longer)
                to_chunk = _chunk_of(request_end - 1, share, longer)
            place = _place(chunk, from_chunk, block, HEAD_BLOCKS)
            kept = row < PART_ROWS
            tl.store(norms + place * PART_ROWS + row, norm, mask=kept)
            part = parts + (place * PART_ROWS + row) * VALUES
            inverse = inverse[:, None]
            _store_values(part, kept, main * inverse, 0, V_MAIN, V_WORDS, KV, 0, GPU)
            if KV != WIDE:
                _store_values(part, kept, main_high * inverse, 0, V_MAIN, V_WORDS, KV, 1, GPU)
            if V_REST:
                _store_values(part, kept, rest * inverse, V_MAIN, V_REST, V_WORDS, KV, 0, GPU)
                if KV != WIDE:
                    _store_values(
                        part, kept, rest_high * inverse, V_MAIN, V_REST, V_WORDS, KV, 1, GPU
                    )

            # The last of some chunks to arrive combines them; if there are many chunks, the last
            # of those that have combined some combines all.
            first = from_chunk + (chunk - from_chunk) // FAN * FAN
            count = tl.minimum(FAN, to_chunk + 1 - first)
            alone = to_chunk - from_chunk < FAN
            arrival = arrivals + _place(first, from_chunk, block, HEAD_BLOCKS)
            tl.debug_barrier()
            if tl.atomic_add(arrival, 1, sem="acq_rel") == count - 1:
                _combine(
                    out_request,
                    sinks,
                    parts,
                    norms,
                    from_chunk,
                    first,
                    count,
                    alone,
                    block,
                    kv_head,
                    first_row,
                    value_scale,
                    1,
                    GROUP,
                    NUMBERS,
                    VALUES,
                    OUT_TOKEN,
                    OUT_HEAD,
                    HAS_SINKS,
                    HEAD_BLOCKS,
                    PART_ROWS,
                    PART_STEP,
                    ROW_STEP,
                    GPU,
                )
                tl.store(arrival, 0)
                if not alone:
                    first = from_chunk
                    count = tl.cdiv(to_chunk + 1 - from_chunk, FAN)
                    arrival = arrivals + later + _place(first, from_chunk, block, HEAD_BLOCKS)
                    tl.debug_barrier()
                    if tl.atomic_add(arrival, 1, sem="acq_rel") == count - 1:
                        _combine(
                            out_request,
                            sinks,
                            parts,
                            norms,
                            from_chunk,
                            first,
                            count,
                            True,  # noqa: FBT003 - kernels are called by position
                            block,
                            kv_head,
                            first_row,
                            value_scale,
                            FAN,
                            GROUP,
                            NUMBERS,
                            VALUES,
                            OUT_TOKEN,
                            OUT_HEAD,
                            HAS_SINKS,
                            HEAD_BLOCKS,
                            PART_ROWS,
                            PART_STEP,
                            ROW_STEP,
                            GPU,
                        )
                        tl.store(arrival, 0)


@triton.jit
def _place(chunk, from_chunk, block, HEAD_BLOCKS: tl.constexpr):
    """Where a chunk keeps its part of a request that began in chunk `from_chunk`."""
    slot = 2 * chunk + (chunk == from_chunk).to(tl.int32)
    return slot * HEAD_BLOCKS + block


@triton.jit
def _combine(
    out_request,
    sinks,
    parts,
    norms,
    from_chunk,
    first,
    count,
    done,
    block,
    kv_head,
    first_row,
    value_scale,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    NUMBERS: tl.constexpr,
    VALUES: tl.constexpr,
    OUT_TOKEN: tl.constexpr,
    OUT_HEAD: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HEAD_BLOCKS: tl.constexpr,
    PART_ROWS: tl.constexpr,
    PART_STEP: tl.constexpr,
    ROW_STEP: tl.constexpr,
    GPU: tl.constexpr,
):
    """Parts of chunks first, first + STEP, ..., `count` of them, into the answer or the first."""
    COLUMNS: tl.constexpr = triton.next_power_of_2(VALUES)
    column = tl.arange(0, COLUMNS)
    steps = tl.arange(0, PART_STEP)
    target = _place(first, from_chunk, block, HEAD_BLOCKS)
    for start in tl.range(0, PART_ROWS, ROW_STEP, num_stages=1):
        row = start + tl.arange(0, ROW_STEP)
        most = tl.full([ROW_STEP], float("-inf"), tl.float32)
        mass = tl.zeros([ROW_STEP], tl.float32)
        acc = tl.zeros([ROW_STEP, COLUMNS], tl.float32)
        for member in tl.range(0, count, PART_STEP, num_stages=1):
            there = (member + steps < count)[None, :] & (row < PART_ROWS)[:, None]
            place = _place(first + (member + steps) * STEP, from_chunk, block, HEAD_BLOCKS)
            at = place[None, :] * PART_ROWS + row[:, None]
            # Both loads before the first use: they wait for the memory together. Rows come
            # first, so that every thread has all parts of what it sums.
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
            acc = acc * (_factors(most, mass, sink, HAS_SINKS) * value_scale)[:, None]
            rows = out_request + (number // GROUP) * OUT_TOKEN + head * OUT_HEAD
            values = _rounded(acc, rows.dtype.element_ty, GPU)
            tl.store(rows[:, None] + column[None, :], values, mask=live)
        else:
            some = tl.where(mass > 0, mass, 1.0)
            norm = tl.where(mass > 0, most + tl.log2(some), float("-inf"))
            at = target * PART_ROWS + row
            tl.store(norms + at, norm, mask=row < PART_ROWS)
            place = parts + at[:, None] * VALUES + column[None, :]
            tl.store(place, acc / some[:, None], mask=live)
