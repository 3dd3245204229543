import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, fit_a_hopper, judge  # isort: skip - it chooses the interpreter

import torch

from kvproof.kernels.checks import ArgumentError
from kvproof.kernels.page_formats import pack, per_token_head, unpack
from kvproof.kernels.paged_decode import paged_decode, rules, torch_dense, workspace
from kvproof.kernels.paged_decode.cells import cell
from kvproof.kernels.paged_decode.inputs import lengths_of
from kvproof.kernels.paged_decode.launch import shape_of_problem
from kvproof.kernels.paged_decode.sweep import KERNEL, TORCH, reference
from kvproof.kernels.paged_decode.torch_reference import paged_decode_torch
from kvproof.kernels.source import Source
from kvproof.kernels.spec import cell_name

SMALL = {"batch": 3, "context": 40, "heads": 4, "kv_heads": 2, "head_dim": 64}


def small(**axes):
    return cell(**{**SMALL, **axes})


def problem(case, seed=0):
    return KERNEL.make(case, Source(seed=seed, device=DEVICE)).arguments


def space_for(arguments):
    shape = shape_of_problem(*(arguments[name] for name in ("q", "k_pages", "v_pages", "out")))
    return workspace(shape, device=arguments["q"].device)


@pytest.mark.parametrize(
    "case",
    [
        small(lengths="edges", batch=7),
        small(q_tokens=3, window=6, kv_dtype="fp16"),
        small(latent=48, kv_heads=1),
    ],
    ids=cell_name,
)
@pytest.mark.parametrize("room", [torch_dense._ROOM, 1])
def test_the_dense_way_is_right_at_once_and_one_request_at_a_time(case, room, monkeypatch):
    monkeypatch.setattr(torch_dense, "_ROOM", room)
    assert not TORCH.unsupported(case)
    judge(KERNEL, TORCH, case)


@pytest.mark.parametrize(
    "axes",
    [
        {"kv_dtype": "fp8"},
        {"kv_dtype": "int8"},
        {"kv_dtype": "int4"},
        {"soft_cap": 2.0},
        {"sinks": True},
    ],
)
def test_the_dense_way_says_what_it_cannot_do(axes):
    assert "scaled_dot_product_attention" in TORCH.unsupported(small(**axes))


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "int8", "int4"])
def test_torch_gives_the_same_in_float32(dtype):
    case = small(kv_dtype=dtype, q_tokens=3, window=9, sinks=True, soft_cap=4.0, lengths="edges")
    arguments = problem(case)
    expected = reference(case, arguments)["out"].double()
    paged_decode_torch(**arguments)
    error = (arguments["out"].double() - expected).norm() / expected.norm()
    assert error < 1e-3


def test_the_reference_agrees_with_a_softmax_written_by_hand():
    """One request, one head, three tokens in two pages: independent of every helper."""
    keys = torch.tensor([[[[1.0] * 2]], [[[2.0] * 2]], [[[9.0] * 2]], [[[3.0] * 2]]])
    pages = keys.to(torch.bfloat16)
    out = torch.empty(1, 1, 1, 2, dtype=torch.bfloat16)
    paged_decode_torch(
        torch.ones(1, 1, 1, 2, dtype=torch.bfloat16), pages, pages * 2,
        torch.tensor([[3, 0, 1]], dtype=torch.int32), torch.tensor([3], dtype=torch.int32),
        out=out, scale=0.5, compute=torch.float64,
    )  # fmt: skip
    weights = torch.tensor([3.0, 1.0, 2.0]).exp()
    expected = (weights * torch.tensor([6.0, 2.0, 4.0])).sum() / weights.sum()
    assert torch.allclose(out.float(), expected.expand(1, 1, 1, 2), rtol=4e-3)


@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
def test_a_workspace_serves_any_lengths_and_is_left_as_it_was_made():
    """What a CUDA graph relies on: same buffers, new lengths and tables, no new plan."""
    case = small(batch=7, context=90)
    arguments = problem(case)
    space = space_for(arguments)
    for rule in ("equal", "edges"):
        lengths = torch.tensor(lengths_of({**case, "lengths": rule}), dtype=torch.int32)
        arguments["lengths"].copy_(lengths)
        expected = reference(case, arguments)["out"]
        for _ in range(2):
            arguments["out"].fill_(float("nan"))
            paged_decode(**arguments, space=space)
            assert not space.arrivals.any()
            assert torch.allclose(arguments["out"].double(), expected.double(), atol=2e-2)


def test_a_workspace_serves_any_batch():
    arguments = problem(small(batch=7))
    space = space_for(problem(small()))
    expected = reference({}, arguments)["out"]
    paged_decode(**arguments, space=space)
    assert torch.allclose(arguments["out"].double(), expected.double(), atol=2e-2)


def test_pages_of_any_stride_are_read_in_place():
    """Keys and values of one allocation: [pages, 2, page, heads, dim]."""
    arguments = problem(small())
    expected = reference({}, arguments)["out"]
    both = torch.stack([arguments["k_pages"], arguments["v_pages"]], dim=1)
    arguments.update(k_pages=both[:, 0], v_pages=both[:, 1])
    paged_decode(**arguments)
    assert torch.allclose(arguments["out"].double(), expected.double(), atol=2e-2)


def test_int4_pages_of_vllm_are_read_in_place():
    """Keys, their scale, values and theirs in one row of bytes, as the page format states."""
    form, page, heads, dim = per_token_head("uint4", 32), 8, 2, 32
    rows = torch.randn((5, heads, page, 2 * dim), device=DEVICE)
    raw = pack(form, rows).view(5, heads, page, form.row_bytes).transpose(1, 2).contiguous()
    words, half = raw.view(torch.float32), dim // 2
    table = torch.tensor([[4, 1, 2], [0, 3, 3]], dtype=torch.int32, device=DEVICE)
    q = torch.randn((2, 1, 4, dim), device=DEVICE).bfloat16()
    out, lengths = torch.empty_like(q), torch.tensor([21, 9], dtype=torch.int32, device=DEVICE)
    paged_decode(
        q, raw[..., :half], raw[..., half + 4 : -4], table, lengths, out=out, scale=0.2,
        k_scale=words[..., half // 4], v_scale=words[..., -1],
    )  # fmt: skip
    stored = unpack(form, pack(form, rows), tokens=page)
    for request, length in enumerate((21, 9)):
        tokens = stored[table[request].long()].transpose(1, 2).flatten(0, 1)[:length]
        for head in range(4):
            keys, values = tokens[:, head // 2].double().split(dim, dim=-1)
            weights = torch.softmax(keys @ q[request, 0, head].double() * 0.2, 0)
            assert torch.allclose(out[request, 0, head].double(), weights @ values, atol=1e-2)


@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
def test_the_shape_of_a_launch_does_not_change_the_answer():
    arguments = problem(small(batch=4, context=100, lengths="ragged"))
    expected = reference({}, arguments)["out"].double()
    shape = shape_of_problem(*(arguments[name] for name in ("q", "k_pages", "v_pages", "out")))
    usual = rules.config(shape)
    for changed in (
        {"tile": 16},
        {"tile": 32, "residents": 5},
        {"part_step": 1, "least_units": 1},
        {"fan": 2, "least_units": 1, "residents": 8},
        {"fan": 3, "row_step": 1, "part_step": 2, "least_units": 1},
    ):
        config = usual._replace(**changed)
        space = workspace(shape, device=arguments["q"].device, config=config)
        arguments["out"].fill_(float("nan"))
        paged_decode(**arguments, space=space, config=config)
        assert torch.allclose(arguments["out"].double(), expected, atol=2e-2), changed


def test_an_empty_batch_is_no_launch():
    arguments = problem(small())
    for name in ("q", "out", "lengths", "block_table"):
        arguments[name] = arguments[name][:0]
    paged_decode(**arguments)


WRONG = {
    "q has shape (3, 4, 64)": lambda a: {"q": a["q"][:, 0]},
    "q has 33 query tokens": lambda a: {"q": a["q"].expand(-1, 33, -1, -1)},
    "q is torch.float32": lambda a: {"q": a["q"].float()},
    "k_pages is torch.float16": lambda a: {"k_pages": a["k_pages"].half()},
    "k_pages has shape": lambda a: {"k_pages": a["k_pages"][..., :32]},
    "expected a multiple of the 2 heads": lambda a: {
        "q": a["q"][:, :, :3], "out": a["out"][:, :, :3],
    },
    "v_pages has shape": lambda a: {"v_pages": a["v_pages"][:, :4]},
    "its last dimension must be contiguous": lambda a: {
        "k_pages": a["k_pages"].transpose(2, 3).contiguous().transpose(2, 3)
    },
    "block_table is torch.int64": lambda a: {"block_table": a["block_table"].long()},
    "lengths has shape (2,)": lambda a: {"lengths": a["lengths"][:2]},
    "out has shape": lambda a: {"out": a["out"][:2]},
    "out is torch.float32": lambda a: {"out": a["out"].float()},
    "k_scale is given": lambda a: {"k_scale": a["q"].new_ones(2).float()},
    "sinks has shape (2,)": lambda a: {"sinks": a["q"].new_ones(2).float()},
    "window is -1": lambda _: {"window": -1},
    "soft_cap is -0.5": lambda _: {"soft_cap": -0.5},
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_argument_is_named_with_its_value(message):
    arguments = problem(small())
    with pytest.raises(ArgumentError) as caught:
        paged_decode(**{**arguments, **WRONG[message](arguments)})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("axes", "change", "message"),
    [
        ({"kv_dtype": "fp8"}, {"k_scale": None}, "k_scale is missing"),
        ({"kv_dtype": "int8"}, {"v_scale": None}, "v_scale is missing"),
        ({"kv_dtype": "int4"}, {"k_scale": None}, "k_scale is missing"),
        ({"kv_dtype": "int4", "head_dim": 62}, {}, "62 and 62 columns, expected multiples of 4"),
        ({"latent": 64, "kv_heads": 1}, {"out": torch.empty(3, 1, 4, 80)}, "the keys only 64"),
    ],
)
def test_what_does_not_fit_the_cache_is_named(axes, change, message):
    arguments = problem(small(**axes))
    with pytest.raises(ArgumentError, match=message):
        paged_decode(**{**arguments, **change})


def test_a_workspace_that_is_too_small_is_refused():
    arguments = problem(small(head_dim=128))
    space = space_for(problem(small()))
    with pytest.raises(ArgumentError, match=r"workspace\.parts has \d+ numbers"):
        paged_decode(**arguments, space=space)


WIDEST = [
    {"page": 256, "dtype": "bfloat16", "head_dim": 256, "value_dim": 256, "heads": 32},
    {"page": 64, "dtype": "bfloat16", "head_dim": 576, "value_dim": 512, "heads": 128},
    {"page": 256, "dtype": "int8", "head_dim": 256, "value_dim": 256, "heads": 32},
    {"page": 256, "dtype": "bfloat16", "head_dim": 768, "value_dim": 768, "heads": 4},
]


@pytest.mark.slow(reason="compiles every launch")
def test_the_widest_launches_fit_into_a_hopper_whatever_the_page():
    fit_a_hopper(
        [{"kernel": "portable", **shape, "kv_heads": 1, "q_tokens": 8} for shape in WIDEST]
    )


@pytest.mark.parametrize("kv_bits", [4, 8, 16])
@pytest.mark.parametrize("q_tokens", [1, 4, 8, 32])
def test_tiles_of_every_width_fit_into_a_multiprocessor(kv_bits, q_tokens):
    for dim in range(16 // kv_bits, rules.MOST_HEAD_DIM + 1, 16 // kv_bits):
        shape = rules.Shape(1, q_tokens, 4, 1, dim, dim, kv_bits, latent=False)
        chosen, keys = rules.config(shape), rules.columns(dim, kv_bits=kv_bits)
        row = 2 * (keys.main + keys.rest)
        tiles = 2 * (chosen.stages - 1) * chosen.tile * row
        assert chosen.residents * (tiles + chosen.rows * row * 16 // kv_bits) <= 224 << 10, dim


@pytest.mark.parametrize("kv_heads", [1, 2, 5, 8, 16, 40, 64, 96, 128, 200])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_programs_fill_a_gpu_for_any_number_of_heads(kv_heads, head_dim):
    shape = rules.Shape(8, 1, kv_heads, kv_heads, head_dim, head_dim, 16, latent=False)
    chosen = rules.config(shape)
    programs = rules.chunks(shape, chosen, processors=132) * kv_heads
    waves = programs / (132 * chosen.residents)
    assert waves / -(-programs // (132 * chosen.residents)) >= 0.75


@pytest.mark.parametrize("kv_bits", [4, 8, 16])
def test_every_piece_of_values_is_shared_out_to_the_warps(kv_bits):
    """A product as narrow as its 16 rows is done by every warp: 9 times the time at 64 columns."""
    for dim in range(16 // kv_bits, rules.MOST_HEAD_DIM + 1, 16 // kv_bits):
        cut = rules.value_columns(dim, kv_bits=kv_bits)
        assert cut.words <= cut.main + cut.rest, dim
        assert cut.main >= 32, dim
        assert cut.rest in {0, *range(32, 1024)}, dim
