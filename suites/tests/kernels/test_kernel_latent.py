import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, fit_a_hopper, judge  # isort: skip - it chooses the interpreter

import torch

from kvproof.kernels.interpreter import let_tensors_bound_loops
from kvproof.kernels.latent import launch as latent
from kvproof.kernels.paged_decode import paged_decode, rules, workspace
from kvproof.kernels.paged_decode.cells import cell
from kvproof.kernels.paged_decode.launch import shape_of_problem
from kvproof.kernels.paged_decode.sweep import KERNEL, OURS
from kvproof.kernels.source import Source

INTERPRETED = pytest.mark.slow(reason="runs kernels in Triton's interpreter")
NUMBERS = {"scale": 0.05, "window": 0, "soft_cap": 0.0}
WIDE = {"head_dim": 576, "latent": 512, "kv_heads": 1, "heads": 16, "batch": 3, "context": 50}


def tensors(**axes):
    made = KERNEL.make(cell(**{**WIDE, **axes}), Source(seed=0, device=DEVICE))
    return {**made.arguments, "lse": None}


@pytest.fixture
def hopper(monkeypatch):
    monkeypatch.setattr(latent, "is_hopper", lambda _: True)


@pytest.mark.parametrize("page", [8, 16, 24, 48, 64, 128, 200, 256])
def test_on_hopper_wide_latent_rows_have_a_kernel_of_their_own(hopper, page):
    assert latent.takes(tensors(page=page), NUMBERS)
    assert latent.takes(tensors(page=page, kv_dtype="fp16", q_tokens=4, sinks=True), NUMBERS)
    assert latent.TILE % latent.box(page) == page % latent.box(page) == 0


@pytest.mark.parametrize("page", [1, 4, 12, 64, 200])
def test_so_have_rows_of_fp8_whatever_the_page(hopper, page):
    given = tensors(page=page, kv_dtype="fp8")
    assert latent.takes(given, NUMBERS)
    assert not latent.takes({**given, "q": given["q"].half()}, NUMBERS)
    pages = given["k_pages"].view(torch.uint8)
    wider = torch.zeros(*pages.shape[:3], 584, dtype=torch.uint8)[..., :576]
    assert not latent.takes({**given, "k_pages": wider.view(torch.float8_e4m3fn)}, NUMBERS)


@pytest.mark.parametrize(
    "axes", [{"page": 4}, {"page": 12}, {"kv_dtype": "int8"}, {"latent": 256}, {"head_dim": 640}]
)
def test_what_copies_cannot_bring_stays_with_the_portable_kernel(hopper, axes):
    assert not latent.takes(tensors(**axes), NUMBERS)


@pytest.mark.parametrize("change", [{"window": 9}, {"soft_cap": 3.0}, {"scale": 0.0}])
def test_so_do_windows_soft_caps_and_scales_that_are_not_above_zero(hopper, change):
    assert latent.takes(tensors(), NUMBERS)
    assert not latent.takes(tensors(), {**NUMBERS, **change})


def test_queries_answers_and_pages_lie_as_the_copies_want_them(hopper):
    given = tensors()
    apart = torch.zeros(3, 1, 16, 1152, dtype=torch.bfloat16)
    assert not latent.takes({**given, "q": apart[..., ::2]}, NUMBERS)
    assert not latent.takes({**given, "out": apart[..., :512]}, NUMBERS)
    pages = given["k_pages"]
    shifted = torch.zeros(pages.numel() + 8, dtype=pages.dtype)
    assert latent.takes({**given, "k_pages": shifted[8:].view(pages.shape)}, NUMBERS)
    assert not latent.takes({**given, "k_pages": shifted[1:-7].view(pages.shape)}, NUMBERS)
    wider = torch.zeros(*pages.shape[:2], 1, 640, dtype=pages.dtype)
    assert latent.takes({**given, "k_pages": wider[..., :576]}, NUMBERS)
    gap = torch.zeros(len(pages), 16 * 576 + 64, dtype=pages.dtype)
    strides = (gap.stride(0), 576, 576, 1)
    assert not latent.takes({**given, "k_pages": gap.as_strided(pages.shape, strides)}, NUMBERS)


def test_without_a_hopper_nothing_is_taken():
    if DEVICE == "cpu":
        assert not latent.takes(tensors(), NUMBERS)


@pytest.mark.parametrize(
    ("rows", "blocks", "chunks"),
    [(1, 1, 132), (64, 1, 132), (65, 2, 66), (128, 2, 66), (1024, 16, 8), (10000, 157, 1)],
)
def test_programs_fill_the_gpu_once(rows, blocks, chunks):
    cut = latent.cut(rows, processors=132)
    assert cut == (blocks, chunks)
    assert cut.part_rows == 2 * blocks * chunks * 64


@pytest.mark.parametrize(
    ("rows", "batch", "chunks"),
    [(16, 128, 128), (32, 128, 128), (16, 64, 128), (16, 60, 132), (33, 128, 132), (16, 200, 132),
     (16, 44, 132), (16, 1, 132)],
)  # fmt: skip
def test_equal_requests_with_few_rows_have_chunks_of_their_own(rows, batch, chunks):
    assert latent.cut(rows, processors=132, batch=batch).chunks == chunks


@pytest.mark.parametrize(
    ("rows", "batch", "is_whole"),
    [(128, 128, True), (128, 130, True), (128, 2048, True), (128, 67, False), (64, 128, True),
     (64, 64, False), (64, 200, False), (128, 1, False)],
)  # fmt: skip
def test_equal_requests_lie_in_one_chunk_each_if_few_programs_idle_then(rows, batch, is_whole):
    assert latent.whole(batch, latent.cut(rows, processors=132)) == is_whole


def test_a_workspace_has_room_for_either_kernel():
    given = tensors(heads=128, q_tokens=2)
    shape = shape_of_problem(*(given[name] for name in ("q", "k_pages", "v_pages", "out")))
    space = workspace(shape, device=given["q"].device)
    rows = latent.cut(256, processors=rules.processors(given["q"].device)).part_rows
    assert space.parts.numel() >= rows * 512
    assert space.norms.numel() >= rows
    assert space.arrivals.numel()


def test_the_cell_is_right_here_too():
    judge(KERNEL, OURS, cell(**{**WIDE, "page": 64, "q_tokens": 2, "lengths": "edges"}))


def parts_of(lengths, shape, heads, q_tokens):
    """Random parts as the chunks leave them, and what they say together, in float64."""
    torch.manual_seed(1)
    rows = heads * q_tokens
    tiles = [max(1, -(-length // 64)) for length in lengths]
    used = min(shape.chunks, -(-sum(tiles) // latent.LEAST_TILES))
    share, longer = divmod(sum(tiles), used)
    owner = [c for c in range(used) for _ in range(share + (c < longer))]
    norms = torch.full((2 * shape.chunks, shape.head_blocks, 64), float("nan"), device=DEVICE)
    parts = torch.full((*norms.shape, 512), float("nan"), device=DEVICE)
    expected, start = {}, 0
    for request, count in enumerate(tiles):
        mine = sorted(set(owner[start : start + count]))
        start += count
        if len(mine) == 1:
            continue
        slots = [2 * chunk + (chunk == mine[0]) for chunk in mine]
        norms[slots] = torch.randn(len(mine), shape.head_blocks, 64, device=DEVICE) * 3
        parts[slots] = torch.randn(len(mine), shape.head_blocks, 64, 512, device=DEVICE)
        weights = torch.softmax(norms[slots].double() * 0.6931471805599453, 0)
        mixed = (parts[slots].double() * weights[..., None]).sum(0)
        expected[request] = mixed.flatten(0, 1)[:rows].view(q_tokens, heads, 512)
    return parts, norms, expected


@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
@pytest.mark.parametrize(
    ("lengths", "chunks", "heads", "q_tokens"),
    [
        pytest.param([3000], 20, 16, 1, marks=INTERPRETED),
        pytest.param([700, 0, 5, 1400, 64], 6, 80, 1, marks=INTERPRETED),
        ([900, 300], 5, 24, 3),
    ],
)
def test_parts_of_chunks_become_answers(lengths, chunks, heads, q_tokens):
    """A request in one chunk is finished already: its rows are left alone."""
    let_tensors_bound_loops()
    shape = latent.Cut(-(-heads * q_tokens // 64), chunks)
    parts, norms, expected = parts_of(lengths, shape, heads, q_tokens)
    out = torch.full((len(lengths), q_tokens, heads, 512), 7.0, device=DEVICE)
    latent.combine(
        out, torch.tensor(lengths, dtype=torch.int32, device=DEVICE), None, shape,
        parts=parts, norms=norms, ahead=False,
    )  # fmt: skip
    assert expected
    for request in range(len(lengths)):
        if request in expected:
            assert torch.allclose(out[request].double(), expected[request], atol=1e-4)
        else:
            assert bool((out[request] == 7).all())


def test_a_sink_takes_weight_when_parts_are_combined():
    let_tensors_bound_loops()
    shape = latent.Cut(1, 4)
    parts, norms, expected = parts_of([600], shape, 8, 1)
    sinks = torch.linspace(-2, 3, 8, device=DEVICE)
    out = torch.zeros(1, 1, 8, 512, device=DEVICE)
    latent.combine(
        out, torch.tensor([600], dtype=torch.int32, device=DEVICE), sinks, shape,
        parts=parts, norms=norms, ahead=False,
    )  # fmt: skip
    used = [1, 2, 4, 6]
    mass = torch.exp2(norms[used, 0, :8].double()).sum(0)
    share = mass / (mass + sinks.double().exp())
    assert torch.allclose(out[0, 0].double(), expected[0][0] * share[:, None], atol=1e-4)


def test_the_portable_kernel_is_asked_for_by_a_config(hopper, monkeypatch):
    """So it can be measured beside the other on one machine."""
    given = tensors(context=20)
    monkeypatch.setattr(latent, "launch", lambda *_, **__: pytest.fail("the other kernel"))
    shape = shape_of_problem(*(given[name] for name in ("q", "k_pages", "v_pages", "out")))
    paged_decode(**given, config=rules.config(shape))
    assert not bool(given["out"].isnan().any())


LAUNCHES = [
    {"kernel": "latent", "page": 64, "heads": 128, "q_tokens": 1, "sinks": False},
    {"kernel": "latent", "page": 8, "heads": 40, "q_tokens": 4, "sinks": True},
    {"kernel": "narrow", "page": 12, "heads": 40, "q_tokens": 4},
    {"kernel": "fp8", "page": 64, "heads": 128, "q_tokens": 1, "sinks": False},
    {"kernel": "fp8", "page": 8, "heads": 40, "q_tokens": 4, "sinks": True},
    {"kernel": "fp8", "page": 64, "heads": 128, "q_tokens": 1, "sinks": True, "terms": 1},
    {"kernel": "sparse", "heads": 128, "chosen": 2048},
    {"kernel": "sparse", "heads": 40, "chosen": 65},
    {"kernel": "sparse", "heads": 128, "chosen": 2048, "wide": True},
    {"kernel": "sparse_wide", "page": 1, "chosen": 33, "even": ["q_token", "q_head"]},
    {"kernel": "sparse_wide", "page": 64, "chosen": 2048,
     "even": ["q_token", "q_head", "out_token", "out_head", "indices_row", "page_step"]},
    {"kernel": "combine", "columns": 64, "step": 64, "each": 1},
    {"kernel": "combine", "columns": 512, "step": 4, "each": 8},
]  # fmt: skip


@pytest.mark.slow(reason="compiles every launch")
def test_it_compiles_for_a_hopper_and_fits_into_its_shared_memory():
    """Triton's interpreter knows no Gluon, so without a GPU nothing else is seen of it."""
    fit_a_hopper(LAUNCHES)


@pytest.mark.parametrize(
    ("batch", "entries", "fp8_queries", "wanted"),
    [
        (1, 512, False, False), (2, 512, False, True), (8, 64, False, False),
        (32, 64, False, True), (1, 512, True, True), (2, 64, True, False),
    ],
)  # fmt: skip
def test_few_tokens_over_fp8_pages_are_widened(batch, entries, fp8_queries, wanted):
    """The faster kernel on an H200, with 128 heads and pages of 64."""
    tensors = {
        "k_pages": torch.zeros((4, 64, 1, 576), dtype=torch.float8_e4m3fn),
        "block_table": torch.zeros((batch, entries), dtype=torch.int32),
    }
    cut = latent.cut(128, processors=132, batch=batch)
    assert latent.by_products(tensors, {"fp8_queries": fp8_queries}, cut) is wanted
