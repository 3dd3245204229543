import math
import struct

import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels.block_transfer import gather, paged_layers, scatter
from kvproof.kernels.checks import ArgumentError
from kvproof.kernels.page_formats import FORMATS, pack, per_token_head, reformat, unpack

TOKENS = 5


def e4m3(byte):
    exponent, mantissa, sign = (byte >> 3) & 15, byte & 7, -1.0 if byte & 128 else 1.0
    if byte & 127 == 127:
        return math.nan
    return sign * (
        mantissa * 2.0**-9 if not exponent else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    )


def e8m0(byte):
    return math.nan if byte == 255 else 2.0 ** (byte - 127)


def e2m1(code):
    return (-1.0 if code & 8 else 1.0) * (0, 0.5, 1, 1.5, 2, 3, 4, 6)[code & 7]


def half(page, at, column):
    return page[at + column // 2] >> 4 if column % 2 else page[at + column // 2] & 15


def bf16(page, at):
    return struct.unpack("<f", bytes((0, 0, page[at], page[at + 1])))[0]


def f32(page, at):
    return struct.unpack("<f", bytes(page[at : at + 4]))[0]


def v32(page, t, c):
    at = 656 * t
    if c >= 512:
        return bf16(page, at + 528 + 2 * (c - 512))
    return e4m3(page[at + c]) * f32(page, at + 512 + 4 * (c // 128))


def v4(page, t, c):
    at = 576 * t
    if c >= 448:
        return bf16(page, at + 448 + 2 * (c - 448))
    return e4m3(page[at + c]) * e8m0(page[576 * TOKENS + 8 * t + c // 64])


def v41_old(page, t, c):
    return e4m3(page[512 * t + c]) * e8m0(page[512 * TOKENS + 16 * t + c // 32])


def v41(page, t, c):
    return e4m3(page[528 * t + c]) * e8m0(page[528 * t + 512 + c // 32])


def v41_fp4_old(page, t, c):
    return e2m1(half(page, 256 * t, c)) * e4m3(page[256 * TOKENS + 32 * t + c // 16])


def v41_fp4(page, t, c):
    return e2m1(half(page, 288 * t, c)) * e4m3(page[288 * t + 256 + c // 16])


def nvfp4(page, t, c):
    at = 352 * t
    if c >= 512:
        return e4m3(page[at + 256 + c - 512])
    group = c // 16
    return e2m1(half(page, at, c)) * e4m3(page[at + 320 + 8 * (group & 3) + (group >> 2)])


def indexer(page, t, c):
    return e4m3(page[128 * t + c]) * f32(page, 128 * TOKENS + 4 * t)


def eight(page, t, c, read):
    at, c = 264 * t + 132 * (c // 128), c % 128
    return read(page[at + c]) * f32(page, at + 128)


def four(page, t, c):
    at, c = 136 * t + 68 * (c // 128), c % 128
    word = struct.unpack("<I", bytes(page[at + 64 : at + 68]))[0]
    scale = struct.unpack("<f", struct.pack("<I", word & ~15))[0]
    return (half(page, at, c) - (word & 15)) * scale


READERS = {
    "mla-v3.2/1": v32, "mla-v4/1": v4, "mla-v4.1/1": v41_old, "mla-v4.1/2": v41,
    "mla-v4.1-fp4/1": v41_fp4_old, "mla-v4.1-fp4/2": v41_fp4, "mla-nvfp4/1": nvfp4,
    "indexer-v3.2/1": indexer,
    "per-token-head-int8-128/1": lambda p, t, c: eight(p, t, c, lambda b: b - 256 * (b > 127)),
    "per-token-head-float8_e4m3-128/1": lambda p, t, c: eight(p, t, c, e4m3),
    "per-token-head-uint4-128/1": four,
}  # fmt: skip
"""One column of one token, from the bytes that the engines' sources name."""

EACH = pytest.mark.parametrize("name", FORMATS)


def columns_of(name, *shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    found = torch.randn(*shape, TOKENS, FORMATS[name].columns, generator=draw) * 3
    found[..., 1, :] = 0
    return found


def test_every_format_has_a_reader_of_its_own():
    assert READERS.keys() == FORMATS.keys()


@EACH
def test_every_number_lies_where_the_engine_has_it(name):
    form = FORMATS[name]
    pages = pack(form, columns_of(name, 2))
    found = unpack(form, pages, tokens=TOKENS, dtype=torch.float64)
    for page, rows in zip(pages.tolist(), found.tolist(), strict=True):
        expected = [[READERS[name](page, t, c) for c in range(form.columns)] for t in range(TOKENS)]
        assert rows == expected


@EACH
def test_random_bytes_are_read_as_the_engine_reads_them(name):
    form, draw = FORMATS[name], torch.Generator().manual_seed(3)
    page = torch.randint(0, 256, (form.page_bytes(TOKENS),), generator=draw, dtype=torch.uint8)
    found = unpack(form, page, tokens=TOKENS, dtype=torch.float64)
    raw = page.tolist()
    expected = torch.tensor(
        [[READERS[name](raw, t, c) for c in range(form.columns)] for t in range(TOKENS)],
        dtype=torch.float64,
    )
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(0, 0, 0), expected.nan_to_num(0, 0, 0))


@EACH
def test_what_was_packed_comes_back_as_exactly_as_its_numbers_allow(name):
    form, columns = FORMATS[name], columns_of(name, 3, 2, seed=1)
    back = unpack(form, pack(form, columns), tokens=TOKENS, dtype=torch.float64)
    error = (back - columns).norm() / columns.norm()
    four_bits = any(field.dtype in ("float4_e2m1", "uint4") for field in form.fields)
    assert error < (0.12 if four_bits else 0.03)
    # Of neighbours, none is nearer: numbers that a page holds are packed without a change.
    again = unpack(form, pack(form, back), tokens=TOKENS, dtype=torch.float64)
    assert (again - back).norm() / back.norm() < (0.03 if four_bits else 1e-6)


@pytest.mark.parametrize(
    ("name", "row", "page"),
    [("mla-v3.2/1", 656, 41984), ("mla-v4/1", 584, 37440), ("mla-v4.1/1", 528, 33792),
     ("mla-v4.1/2", 528, 33792), ("mla-v4.1-fp4/2", 288, 18432), ("mla-nvfp4/1", 352, 22528),
     ("indexer-v3.2/1", 132, 8448)],
)  # fmt: skip
def test_rows_and_pages_are_as_long_as_engines_state(name, row, page):
    assert (FORMATS[name].row_bytes, FORMATS[name].page_bytes(64)) == (row, page)


IDENTITIES = {
    "mla-v3.2/1": "ef83a3a5799d97e2", "mla-v4/1": "b0a094f8dd41db40",
    "mla-v4.1/1": "40af0341e53d4377", "mla-v4.1/2": "1654610cb64b579d",
    "mla-v4.1-fp4/1": "a21e9ac1431559e7", "mla-v4.1-fp4/2": "c1ebc831d8fd4f18",
    "mla-nvfp4/1": "424b7adcac6bf655", "indexer-v3.2/1": "ff6a5ac8789abb61",
    "per-token-head-int8-128/1": "655ebe7c8372de05",
    "per-token-head-float8_e4m3-128/1": "6d8daa23b0c11654",
    "per-token-head-uint4-128/1": "c6412765673d61dc",
}  # fmt: skip
"""Part of the keys of stored objects: a declaration that changes needs a new version."""


def test_a_declaration_never_changes_under_its_version():
    assert {name: form.identity.split()[1] for name, form in FORMATS.items()} == IDENTITIES


@pytest.mark.parametrize("name", ["mla-v4.1", "mla-v4.1-fp4"])
def test_the_two_versions_of_v41_are_as_long_and_misread_each_other(name):
    old, new = FORMATS[f"{name}/1"], FORMATS[f"{name}/2"]
    columns = columns_of(f"{name}/1", 2)
    pages = pack(old, columns)
    misread = unpack(new, pages, tokens=TOKENS)
    assert (misread - columns).norm() / columns.norm() > 0.5
    assert torch.equal(reformat(old, new, pages, tokens=TOKENS), pack(new, columns))
    assert torch.equal(reformat(new, old, pack(new, columns), tokens=TOKENS), pages)


def test_ties_go_to_the_even_number_and_signs_stay():
    form = FORMATS["mla-v4.1-fp4/2"]
    columns = torch.zeros(1, 512)
    columns[0, :9] = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.0, -6.0])
    codes = pack(form, columns)[:5].tolist()
    assert codes == [0x20, 0x42, 0x64, 0x86, 0x0F]


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if not form.per_head])
def test_pages_are_moved_by_the_byte(name):
    form = FORMATS[name]
    data, *scales = form.regions
    layout = "indexer" if scales else "latent"
    pages = pack(form, columns_of(name, 4)).to(DEVICE)
    back = torch.full_like(pages, 0xA5)

    def layers(raw):
        rows = raw[:, : TOKENS * form.row_bytes].unflatten(1, (TOKENS, form.row_bytes))
        return paged_layers([rows], layout, scale_bytes=sum(scales) or 4)

    ids = torch.tensor([[1, 3]], dtype=torch.int32, device=DEVICE)
    moved = torch.zeros((1, 1, 1, 2 * TOKENS, form.row_bytes), dtype=torch.uint8, device=DEVICE)
    gather(layers(pages), ids, moved)
    scatter(layers(back), ids, moved)
    whole = TOKENS * form.row_bytes
    assert torch.equal(back[[1, 3], :whole], pages[[1, 3], :whole])
    assert bool((back[[0, 2]] == 0xA5).all())
    if scales:  # an object has each token's scales behind its values
        first = moved[0, 0, 0, 0].tolist()
        assert first[data:] == pages[1, data * TOKENS :][: scales[0]].tolist()


@pytest.mark.parametrize("layout", ["nhd", "hnd"])
@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if form.per_head])
def test_pages_of_heads_are_moved_by_the_byte(name, layout):
    """Objects hold tokens before heads, whatever the page does: a head's bytes stay together."""
    form, heads = FORMATS[name], 3
    rows = pack(form, columns_of(name, 4, heads)).unflatten(-1, (TOKENS, form.row_bytes))
    pages = (rows if layout == "hnd" else rows.transpose(1, 2).contiguous()).to(DEVICE)
    back = torch.full_like(pages, 0xA5)
    ids = torch.tensor([[1, 3]], dtype=torch.int32, device=DEVICE)
    shape = (1, 1, 1, 2 * TOKENS, heads * form.row_bytes)
    moved = torch.zeros(shape, dtype=torch.uint8, device=DEVICE)
    gather(paged_layers([pages], layout), ids, moved)
    scatter(paged_layers([back], layout), ids, moved)
    assert torch.equal(back[[1, 3]], pages[[1, 3]])
    assert bool((back[[0, 2]] == 0xA5).all())
    objects = moved.view(2, TOKENS, heads, form.row_bytes).cpu()
    assert torch.equal(objects, rows[[1, 3]].transpose(1, 2))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda form, page: pack(form, torch.zeros(3, 511)), "columns has shape"),
        (lambda form, page: pack(form, torch.zeros(512)), "columns has 1 dimensions"),
        (lambda form, page: unpack(form, page[:-1], tokens=TOKENS), "pages has shape"),
        (lambda form, page: unpack(form, page.int(), tokens=TOKENS), "pages is torch.int32"),
        (lambda form, page: unpack(form, page, tokens=0), "tokens is 0"),
        (
            lambda form, page: reformat(form, FORMATS["mla-v3.2/1"], page, tokens=TOKENS),
            "is no version of",
        ),
    ],
)
def test_what_does_not_fit_is_refused(wrong, message):
    form = FORMATS["mla-v4.1/2"]
    page = torch.zeros(form.page_bytes(TOKENS), dtype=torch.uint8)
    with pytest.raises(ArgumentError, match=message):
        wrong(form, page)


def test_heads_of_other_widths():
    form = per_token_head("int8", 64)
    assert (form.row_bytes, form.columns) == (136, 128)
    columns = torch.randn(2, 3, 128)
    back = unpack(form, pack(form, columns), tokens=3)
    assert (back - columns).norm() / columns.norm() < 0.01
