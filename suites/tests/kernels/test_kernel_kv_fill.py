from dataclasses import replace

import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, judge, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels.checks import ArgumentError
from kvproof.kernels.kv_fill import kv_fill
from kvproof.kernels.kv_fill.cells import cell
from kvproof.kernels.kv_fill.launch import choose
from kvproof.kernels.kv_fill.sweep import KERNEL, OURS
from kvproof.kernels.page_formats import pack, per_token_head, unpack
from kvproof.kernels.page_formats.numbers import zero_points
from kvproof.kernels.spec import EXACT

OURSELVES = replace(KERNEL, tolerance=lambda _: EXACT)
"""The kernel allows other providers a step of fp8, and ours nothing."""


@pytest.mark.parametrize("seed", range(3))
def test_another_seed_finds_nothing_new(seed):
    ragged = cell(tokens=60, requests=12, batch="ragged", heads=2, head_dim=32, cache="int8")
    judge(OURSELVES, OURS, ragged, seed=seed)


def test_more_requests_than_are_compared_at_once():
    judge(OURSELVES, OURS, cell(tokens=400, requests=300, heads=1, head_dim=16, batch="ragged"))


def every_float(dtype):
    """Every value of a dtype of 16 bits up to 1e30, as rows of 256."""
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(dtype)
    return torch.where(values.abs() < 1e30, values, 0).to(DEVICE, dtype).view(-1, 1, 256)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("factor", [1.0, 0.37, 3e-3])
def test_every_value_becomes_the_nearest_of_float8(dtype, factor):
    rows = every_float(dtype)
    pages = torch.zeros((16, 16, 1, 256), dtype=torch.float8_e4m3fn, device=DEVICE)
    scale = torch.full((1,), factor, device=DEVICE)
    slots = torch.arange(256, device=DEVICE)
    kv_fill(rows, None, pages, None, slots=slots, k_scale=scale)
    wanted = (rows.float() * (1 / scale)).clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(pages.view(torch.uint8).flatten(), wanted.view(torch.uint8).flatten())


def test_int8_is_off_by_half_a_step_at_most():
    rows = torch.randn((64, 3, 80), device=DEVICE)
    pages = torch.zeros((4, 3, 16, 80), dtype=torch.int8, device=DEVICE)
    scales = torch.full((4, 16, 3), -1.0, device=DEVICE)
    slots = torch.randperm(64, device=DEVICE)
    kv_fill(rows, None, pages, None, slots=slots, layout="HND", k_scales=scales)
    stored = pages.transpose(1, 2).reshape(64, 3, 80)[slots] * scales.view(64, 3)[slots][..., None]
    error = (stored - rows).abs() / scales.view(64, 3)[slots][..., None]
    assert error.max() <= 0.5 + 1e-4
    assert torch.allclose(scales.view(64, 3)[slots], rows.abs().amax(-1) / 127)


@pytest.mark.parametrize("moved", [0.0, 10.0, -10.0])
def test_int4_is_off_by_half_a_step_at_most(moved):
    """Also rows of one sign: their range is without zero, and zero points end at 15."""
    rows = torch.randn((64, 3, 80), device=DEVICE) + moved
    pages = torch.zeros((4, 3, 16, 40), dtype=torch.uint8, device=DEVICE)
    scales = torch.zeros((4, 16, 3), device=DEVICE)
    slots = torch.randperm(64, device=DEVICE)
    kv_fill(rows, None, pages, None, slots=slots, layout="HND", k_scales=scales)
    raw, words = pages.transpose(1, 2).reshape(64, 3, 40)[slots], scales.view(64, 3)[slots]
    steps, zeros = zero_points(words)
    levels = torch.stack((raw & 15, raw >> 4), -1).flatten(-2)
    error = ((levels - zeros[..., None].float()) * steps[..., None] - rows).abs()
    # The zero point is rounded, too, and the scale lost four bits.
    assert (error / steps[..., None]).max() <= 1.0 + 1e-3
    apart = rows.amax(-1).clamp_min(0) - rows.amin(-1).clamp_max(0)
    assert torch.allclose(steps, apart / 15, rtol=1e-5)


def test_int4_rows_of_both_signs_are_those_of_the_page_format():
    form, rows = per_token_head("uint4", 64), torch.randn((16, 1, 128), device=DEVICE)
    pages = torch.zeros((1, 16, 1, form.row_bytes), dtype=torch.uint8, device=DEVICE)
    words, slots = pages.view(torch.float32), torch.arange(16, device=DEVICE)
    for part, at in ((rows[..., :64], 0), (rows[..., 64:], 36)):
        kv_fill(
            part, None, pages[..., at : at + 32], None, slots=slots,
            k_scales=words[..., at // 4 + 8],
        )  # fmt: skip
    mine, wanted = (unpack(form, each, tokens=16) for each in (
        pages.view(1, -1), pack(form, rows.transpose(0, 1))
    ))  # fmt: skip
    # A value in the middle of two levels may be rounded to either, by division or by product.
    assert (mine != wanted).float().mean() < 0.01
    assert torch.equal(
        words[0, :, 0, 8], pack(form, rows.transpose(0, 1)).view(16, -1).view(torch.float32)[:, 8]
    )


def test_a_row_of_zeros_has_scale_zero():
    rows = torch.zeros((1, 2, 64), device=DEVICE)
    pages = torch.full((1, 4, 2, 64), 7, dtype=torch.int8, device=DEVICE)
    scales = torch.ones((1, 4, 2), device=DEVICE)
    kv_fill(rows, None, pages, None, slots=torch.tensor([2], device=DEVICE), k_scales=scales)
    assert not pages[0, 2].any()
    assert scales[0].tolist() == [[1, 1], [1, 1], [0, 0], [1, 1]]


def test_nothing_to_write_is_no_launch():
    pages = torch.zeros((1, 4, 2, 64), device=DEVICE)
    none = torch.zeros((0, 2, 64), device=DEVICE)
    kv_fill(
        none, none, pages, pages.clone(), slots=torch.zeros(0, dtype=torch.int32, device=DEVICE)
    )
    assert not pages.any()


def arguments(**changed):
    """A fill that fits, but for what is changed."""
    rows = torch.zeros((3, 2, 64), device=DEVICE)
    pages = torch.zeros((2, 4, 2, 64), device=DEVICE)
    slots = torch.tensor([0, 5, -1], dtype=torch.int32, device=DEVICE)
    fits = {"k": rows, "v": rows, "k_pages": pages, "v_pages": pages.clone(), "slots": slots}
    return fits | changed


def integers(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


TABLE = {"slots": None, "block_table": integers([0, 1]), "starts": integers(2)}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"k": torch.zeros((3, 3, 64), device=DEVICE)}, r"k has shape \(3, 3, 64\)"),
        ({"v": torch.zeros((2, 2, 64), device=DEVICE)}, r"v has shape \(2, 2, 64\)"),
        ({"v": None}, "must be given together"),
        ({"k": torch.zeros((3, 2, 64), device=DEVICE).half()}, "k is torch.float16 and k_pages"),
        ({"k": torch.zeros((3, 2, 128), device=DEVICE)[..., ::2]}, "must be contiguous"),
        ({"layout": "NDH"}, "layout is 'NDH'"),
        ({"slots": None}, "slots are needed, or all of"),
        ({"slots": integers(0, 1)}, r"slots has shape \(2,\)"),
        ({"starts": integers(0)}, "must be left out"),
        ({"slots": torch.zeros(3, device=DEVICE)}, "slots is torch.float32"),
        ({"slots": integers(0, 1, 8), "check_ids": True}, "ids 0 to 8, expected -1 to 7"),
        ({"k_scale": torch.ones(2, device=DEVICE)}, "expected float8_e4m3fn"),
        ({"k_scales": torch.ones((2, 4, 2), device=DEVICE)}, "expected int8 or uint8"),
        (TABLE | {"query_starts": integers(0, 4), "check_ids": True}, "query_starts holds ids"),
        (TABLE | {"query_starts": integers(1, 3), "check_ids": True}, "must begin with 0"),
        (TABLE | {"query_starts": integers(0, 3), "starts": integers(6), "check_ids": True},
         "starts and the new tokens"),
        (TABLE | {"query_starts": integers(0, 1, 3)}, r"query_starts has shape \(3,\)"),
    ],
)  # fmt: skip
def test_an_argument_that_does_not_fit_is_named(changed, words):
    with pytest.raises(ArgumentError, match=words):
        kv_fill(**arguments(**changed))


def test_a_table_and_its_slots_say_the_same():
    table = TABLE | {"query_starts": integers(0, 3), "check_ids": True}
    with_table, with_slots = arguments(**table), arguments(slots=integers(2, 3, 4))
    rows = torch.randn((3, 2, 64), device=DEVICE)
    for each in (with_table, with_slots):
        kv_fill(**each | {"k": rows, "v": -rows})
    for name in ("k_pages", "v_pages"):
        assert torch.equal(with_table[name], with_slots[name])


@pytest.mark.parametrize("searched", [True, False])
def test_small_problems_are_spread_and_large_ones_are_not(searched):
    counts = (1, 8, 64, 1 << 16)
    device = torch.device("cpu")
    rows = [choose(count, 256, device, searched=searched).rows for count in counts]
    assert rows == sorted(rows)
    assert rows[0] == 1
    assert rows[-1] == 16
