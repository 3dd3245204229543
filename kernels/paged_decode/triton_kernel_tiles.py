"""Tiles of a paged cache: loads, products and stores of rows of 16-bit words.

KV of one byte is read as words of two columns, INT4 as words of four. A plane is what one place of
every word holds: of bytes, the even or the odd columns. So tiles move and turn as 16-bit tiles do,
and products are of planes in float16; queries and accumulators are tuples of planes, too.
"""

import triton
import triton.language as tl

WIDE = tl.constexpr(0)
FP8 = tl.constexpr(1)
INT8 = tl.constexpr(2)
INT4 = tl.constexpr(3)
MIDDLE = tl.constexpr(8)
"""Planes of INT4 are nibbles less this."""


@triton.constexpr_function
def planes_of(kv):
    """Columns in a word."""
    return (1, 2, 2, 4)[kv]


@triton.jit
def _unpack(words, KV: tl.constexpr, ASM: tl.constexpr):
    """The planes of 16-bit words: themselves, or bytes, or nibbles less `MIDDLE`, as float16."""
    if KV == WIDE:
        planes = (words,)
    elif KV == INT4:
        planes = _nibbles(words, ASM)
    else:
        planes = _bytes(words, KV, ASM)
    return planes


@triton.jit
def _nibbles(words, ASM: tl.constexpr):
    if ASM:
        # 0x64 above a nibble n is the float16 1024 + n, and 1024 + 16 n if it is 4 bits higher.
        planes = tl.inline_asm_elementwise(
            """{
            .reg .b32 u, a, b, c, d, less, by, off, magic;
            mov.b32 magic, 0x64006400;
            mov.b32 less, 0x64086408;
            mov.b32 by, 0x2C002C00;
            mov.b32 off, 0xD480D480;
            shr.u32 u, $4, 8;
            lop3.b32 a, $4, 0x000F000F, magic, 0xEA;
            lop3.b32 b, $4, 0x00F000F0, magic, 0xEA;
            lop3.b32 c, u, 0x000F000F, magic, 0xEA;
            lop3.b32 d, u, 0x00F000F0, magic, 0xEA;
            sub.f16x2 $0, a, less;
            fma.rn.f16x2 $1, b, by, off;
            sub.f16x2 $2, c, less;
            fma.rn.f16x2 $3, d, by, off;
            }""",
            "=r,=r,=r,=r,r",
            [words],
            dtype=(tl.float16, tl.float16, tl.float16, tl.float16),
            is_pure=True,
            pack=2,
        )
    else:
        wide = words.to(tl.int32)
        planes = (_nibble(wide, 0), _nibble(wide, 4), _nibble(wide, 8), _nibble(wide, 12))
    return planes


@triton.jit
def _nibble(wide, BIT: tl.constexpr):
    return (((wide >> BIT) & 15) - MIDDLE).to(tl.float16)


@triton.jit
def _bytes(words, KV: tl.constexpr, ASM: tl.constexpr):
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
    return (low, high)


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
def add_scores(scores, q, k, KV: tl.constexpr, GPU: tl.constexpr, ASM: tl.constexpr):
    """Add q times k to scores [rows, tokens], each plane of words times its own."""
    planes = _unpack(k, KV, ASM)
    for i in tl.static_range(planes_of(KV)):
        scores = tl.dot(operand(q[i], GPU), tl.trans(operand(planes[i], GPU)), scores)
    return scores


@triton.jit
def add_values(sums, p, v, KV: tl.constexpr, GPU: tl.constexpr, ASM: tl.constexpr):
    """The accumulators of the planes with p times v added."""
    planes = _unpack(v, KV, ASM)
    found = ()
    for i in tl.static_range(planes_of(KV)):
        found = found + (tl.dot(operand(p, GPU), operand(planes[i], GPU), sums[i]),)  # noqa: RUF005 - Triton has no starred tuples
    return found


@triton.jit
def zeros_of(ROWS: tl.constexpr, WIDTH: tl.constexpr, KV: tl.constexpr):
    """Accumulators of all planes."""
    found = ()
    for _ in tl.static_range(planes_of(KV)):
        found = found + (tl.zeros([ROWS, WIDTH], tl.float32),)  # noqa: RUF005 - likewise
    return found


@triton.jit
def times(sums, by, KV: tl.constexpr):
    """Every plane of accumulators times a factor of its rows."""
    found = ()
    for i in tl.static_range(planes_of(KV)):
        found = found + (sums[i] * by[:, None],)  # noqa: RUF005 - likewise
    return found


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
    PLANE: tl.constexpr,
):
    """Columns of a plane of a tile of words, and which of them exist."""
    words = FIRST + tl.arange(0, WIDTH)
    return planes_of(KV) * words + PLANE, live[:, None] & (words < WORDS)[None, :]


@triton.jit
def load_queries(
    rows,
    live,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    KV: tl.constexpr,
):
    """The planes of query rows, at the columns that those of a tile of words have."""
    found = ()
    for i in tl.static_range(planes_of(KV)):
        columns, mask = _columns(live, FIRST, WIDTH, WORDS, KV, i)
        q = tl.load(rows[:, None] + columns[None, :], mask=mask, other=0)
        if KV != WIDE:
            q = q.to(tl.float16)
        found = found + (q,)  # noqa: RUF005 - likewise
    return found


@triton.jit
def store_row(
    rows,
    live,
    values,
    factor,
    FIRST: tl.constexpr,
    WIDTH: tl.constexpr,
    WORDS: tl.constexpr,
    KV: tl.constexpr,
    GPU: tl.constexpr,
):
    """Store the planes of values times a factor of their rows."""
    for i in tl.static_range(planes_of(KV)):
        columns, mask = _columns(live, FIRST, WIDTH, WORDS, KV, i)
        found = rounded(values[i] * factor[:, None], rows.dtype.element_ty, GPU)
        tl.store(rows[:, None] + columns[None, :], found, mask=mask)
