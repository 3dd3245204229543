"""Tiles of a paged cache: loads, products and stores of rows of 16-bit words.

KV of one byte is read as words of two: the even columns are the low bytes of a tile of words, the
odd columns the high bytes. So tiles move and turn as 16-bit tiles do, and products are of float16.
"""

import triton
import triton.language as tl

WIDE = tl.constexpr(0)
FP8 = tl.constexpr(1)
INT8 = tl.constexpr(2)


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
def prefetch(rows, live, WORDS: tl.constexpr):
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
def operand(value, GPU: tl.constexpr):
    """An operand of a product; the interpreter would multiply the bits of bfloat16."""
    if not GPU:
        value = value.to(tl.float32)
    return value


@triton.jit
def rounded(value, dtype: tl.constexpr, GPU: tl.constexpr):
    """float32 rounded to the nearest of a dtype; the interpreter cuts bfloat16 off."""
    if dtype == tl.bfloat16 and not GPU:
        bits = value.to(tl.uint32, bitcast=True)
        bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
        value = bits.to(tl.float32, bitcast=True)
    return value.to(dtype)


@triton.jit
def add_scores(scores, q_low, q_high, k, KV: tl.constexpr, GPU: tl.constexpr, ASM: tl.constexpr):
    """Add q times k to scores [rows, tokens]; of words of two bytes, each with its own."""
    if KV == WIDE:
        scores = tl.dot(operand(q_low, GPU), tl.trans(operand(k, GPU)), scores)
    else:
        low, high = _unpack(k, KV, ASM)
        scores = tl.dot(q_low, tl.trans(low), scores)
        scores = tl.dot(q_high, tl.trans(high), scores)
    return scores


@triton.jit
def add_values(low_acc, high_acc, p, v, KV: tl.constexpr, GPU: tl.constexpr, ASM: tl.constexpr):
    """Add p times v to the accumulators of the even and, for words of two bytes, odd columns."""
    if KV == WIDE:
        low_acc = tl.dot(operand(p, GPU), operand(v, GPU), low_acc)
    else:
        low, high = _unpack(v, KV, ASM)
        low_acc = tl.dot(p, low, low_acc)
        high_acc = tl.dot(p, high, high_acc)
    return low_acc, high_acc


@triton.jit
def load_tile(rows, live, FIRST: tl.constexpr, WIDTH: tl.constexpr, WORDS: tl.constexpr):
    """Columns FIRST .. FIRST + WIDTH of a tile of tokens; columns from WORDS on are zero."""
    columns = FIRST + tl.arange(0, WIDTH)
    whole: tl.constexpr = FIRST + WIDTH <= WORDS
    mask = live[:, None] if whole else live[:, None] & (columns < WORDS)[None, :]
    return tl.load(
        rows[:, None] + columns[None, :], mask=mask, other=0, eviction_policy="evict_first"
    )


@triton.jit
def _columns(
    live,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    KV: tl.constexpr,
    BYTE: tl.constexpr,
):
    """Columns that a tile of words holds in its low or high bytes, and which of them exist."""
    words = FIRST + tl.arange(0, WIDTH)
    columns = words if KV == WIDE else 2 * words + BYTE
    return columns, live[:, None] & (words < WORDS)[None, :]


@triton.jit
def load_queries(
    rows,
    live,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    KV: tl.constexpr,
    BYTE: tl.constexpr,
):
    """Query rows at the columns that a tile of words holds in its low or high bytes."""
    columns, mask = _columns(live, FIRST, WIDTH, WORDS, KV, BYTE)
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
    columns, mask = _columns(live, FIRST, WIDTH, WORDS, KV, BYTE)
    values = rounded(values, rows.dtype.element_ty, GPU)
    tl.store(rows[:, None] + columns[None, :], values, mask=mask)


@triton.jit
def store_row(
    rows,
    live,
    main,
    main_high,
    rest,
    rest_high,
    factor,
    MAIN: tl.constexpr,
    REST: tl.constexpr,
    WORDS: tl.constexpr,
    KV: tl.constexpr,
    GPU: tl.constexpr,
):
    """Store values times `factor` [rows, 1]; the high bytes and the rest where there are any."""
    _store_values(rows, live, main * factor, 0, MAIN, WORDS, KV, 0, GPU)
    if KV != WIDE:
        _store_values(rows, live, main_high * factor, 0, MAIN, WORDS, KV, 1, GPU)
    if REST:
        _store_values(rows, live, rest * factor, MAIN, REST, WORDS, KV, 0, GPU)
        if KV != WIDE:
            _store_values(rows, live, rest_high * factor, MAIN, REST, WORDS, KV, 1, GPU)
