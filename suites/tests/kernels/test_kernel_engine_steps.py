"""Steps of engines in one call, and parts of attention that merge."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, close, torch

from kvproof.kernels.checks import ArgumentError  # isort: skip - after the interpreter is chosen
from kvproof.kernels.paged_decode import cells as decode_cells, drafts, paged_decode, rules  # isort: skip - likewise
from kvproof.kernels.paged_decode.launch import shape_of_problem  # isort: skip - likewise
from kvproof.kernels.paged_decode.sweep import KERNEL as DECODE  # isort: skip - likewise
from kvproof.kernels.paged_decode.torch_reference import paged_decode_torch  # isort: skip - likewise
from kvproof.kernels.paged_prefill import Plan, paged_prefill, plans, prefill_work, torch_reference  # isort: skip - likewise
from kvproof.kernels.paged_prefill.arguments import Inputs  # isort: skip - likewise
from kvproof.kernels.paged_prefill.cells import cell  # isort: skip - likewise
from kvproof.kernels.paged_prefill.sweep import HOST_ONLY, KERNEL  # isort: skip - likewise
from kvproof.kernels.paged_prefill.work import divided  # isort: skip - likewise
from kvproof.kernels.part_merge import merge_parts  # isort: skip - likewise
from kvproof.kernels.source import Source  # isort: skip - likewise
from kvproof.kernels.sparse_latent import sparse_latent  # isort: skip - likewise
from kvproof.kernels.sparse_latent.cells import cell as sparse_cell  # isort: skip - likewise
from kvproof.kernels.sparse_latent.sweep import KERNEL as SPARSE  # isort: skip - likewise
from kvproof.kernels.sparse_latent.torch_reference import sparse_latent_torch  # isort: skip - likewise

STEP = cell(page=4, head_dim=16, heads=6, kv_heads=2, batch=12, context=200, new=30, lengths="step")
ROWS = TILE = 16


def arguments_of(case, kernel=KERNEL):
    return kernel.make(case, Source(seed=1, device=DEVICE)).arguments


def items_of(case, **options):
    """The division of a cell: arguments, items and blocks to merge."""
    arguments = arguments_of(case)
    given = Inputs(**{name: arguments[name] for name in Inputs._fields if name in arguments})
    plan = Plan(rows=ROWS, tile=TILE, stages=1, **{"programs": 20, **options})
    work = divided(given, arguments["longest"], plan)
    count, merges = work.counts[:2].tolist()
    return arguments, work.items[:count].tolist(), work.merges[:merges].tolist()


def seen_tiles(arguments, window):
    """KV head, request, block of rows -> the tiles that its rows see."""
    found, group = {}, arguments["q"].shape[1] // arguments["k_pages"].shape[2]
    starts = arguments["query_starts"].tolist()
    for request, length in enumerate(arguments["lengths"].tolist()):
        new = starts[request + 1] - starts[request]
        for row in range(0, new * group, ROWS):
            tokens = range(row // group, min(row + ROWS - 1, new * group - 1) // group + 1)
            own = [length - new + token for token in tokens]
            low = max(0, own[0] - window + 1) if window else 0
            for head in range(arguments["k_pages"].shape[2]):
                found[head, request, row] = list(range(low // TILE, own[-1] // TILE + 1))
    return found


@pytest.mark.parametrize("pieces", [0, 1, 3])
@pytest.mark.parametrize("window", [0, 25])
@pytest.mark.parametrize("lengths", ["step", "decodes", "drafts", "edges", "equal"])
def test_every_tile_of_every_block_is_attended_once(lengths, window, pieces):
    case = {**STEP, "lengths": lengths, "window": window}
    arguments, items, _ = items_of(case, pieces=pieces)
    attended = {}
    for _, _, _, request, row, low, end, _, head, *_ in items:
        assert low < end
        attended.setdefault((head, request, row), []).extend(range(low, end))
    assert {block: sorted(tiles) for block, tiles in attended.items()} == seen_tiles(
        arguments, window
    )


@pytest.mark.parametrize("pieces", [0, 3])
def test_programs_that_stay_attend_the_same_items_the_longest_first(pieces):
    case = {**STEP, "lengths": "decodes"}
    once, kept = (
        items_of(case, pieces=pieces, persistent=persistent)[1] for persistent in (False, True)
    )
    # Places of parts follow the order of blocks.
    assert sorted(item[:7] + item[8:10] for item in once) == sorted(
        item[:7] + item[8:10] for item in kept
    )
    group, shares = STEP["heads"] // STEP["kv_heads"], {}
    for _, new, _, request, row, low, end, *_ in kept:
        weight = 2 if min(ROWS, new * group - row) > ROWS // 2 else 1
        shares[request, row] = max(shares.get((request, row), 0), weight * (end - low))
    times = [shares[item[3], item[4]] for item in kept]
    assert times == sorted(times, reverse=True)


def test_a_long_context_is_cut_where_programs_would_wait_and_parts_have_places():
    case = {**STEP, "batch": 4, "context": 3000, "new": 4, "lengths": "drafts"}
    _, items, merges = items_of(case)
    slots = sorted(item[7] for item in items if item[7] >= 0 and item[8] == 0)
    assert slots == list(range(len(slots)))
    assert len(slots) == sum(merge[3] for merge in merges) > 0
    assert max(item[6] - item[5] for item in items) < 3000 // TILE // 2
    _, items, merges = items_of({**STEP, "batch": 40, "lengths": "equal"})
    assert not merges, "with many equal blocks nothing waits"


def test_blocks_of_many_rows_start_first_and_others_stand_between_them():
    case = {**STEP, "batch": 20, "context": 400, "new": 60, "lengths": "decodes"}
    _, items, _ = items_of(case, pieces=1)
    full = [item[1] * 3 - item[4] > ROWS // 2 for item in items]
    assert full[0]
    assert not any(full[-3:])
    middle = full[: 2 * sum(full)]
    assert 0 < sum(middle[: len(middle) // 2]) < len(middle) // 2


def test_a_division_serves_all_layers_of_a_step_and_no_other_shape():
    arguments = arguments_of(STEP)
    names = ("q", "k_pages", "v_pages", "block_table", "lengths", "query_starts",
             "longest_query", "longest", "window")  # fmt: skip
    work = prefill_work(**{name: arguments[name] for name in names})
    expected = KERNEL.reference(STEP, arguments)["out"]
    for _ in range(2):
        arguments["out"].fill_(float("nan"))
        paged_prefill(**arguments, work=work)
        close(arguments["out"], expected, KERNEL.tolerance(STEP), "out")
    with pytest.raises(ArgumentError, match=r"work is for \(.*, 12, 0, True\), the arguments are"):
        paged_prefill(**{**arguments, "window": 9}, work=work)


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("changed", [{}, {"sinks": True, "soft_cap": 5.0}, {"kv_dtype": "int8"}])
def test_prefill_returns_natural_logarithms_of_sums(changed, pieces):
    arguments = arguments_of({**STEP, "batch": 5, **changed})
    sums = torch.full(arguments["q"].shape[:2], float("nan"), device=DEVICE).T.contiguous().T
    plan = Plan(rows=ROWS, tile=TILE, stages=1, pieces=pieces)
    paged_prefill(**arguments, lse=sums, plan=plan)
    given = {name: value for name, value in arguments.items() if name not in HOST_ONLY}
    expected = torch_reference.paged_prefill(**given)[1]
    assert (sums - expected).abs().max() < 1e-2


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("q_tokens", [1, 20])
def test_decode_returns_natural_logarithms_of_sums(q_tokens, sinks):
    case = decode_cells.cell(page=4, head_dim=20, heads=4, kv_heads=2, batch=7, context=70,
                             lengths="edges", q_tokens=q_tokens, sinks=sinks)  # fmt: skip
    arguments = arguments_of(case, DECODE)
    sums = torch.full(arguments["q"].shape[:3], float("nan"), device=DEVICE)
    paged_decode(**arguments, lse=sums)
    expected = torch.empty_like(sums)
    out = torch.empty_like(arguments["out"])
    paged_decode_torch(**{**arguments, "out": out}, lse=expected, compute=torch.float64)
    assert sums.isinf().any() == (not sinks), "a request without tokens"
    assert torch.equal(sums.isinf(), expected.isinf())
    assert (sums - expected).nan_to_num().abs().max() < 1e-2


def test_sparse_decode_returns_them_too():
    case = sparse_cell(tokens=2, heads=3, context=150, chosen=33, holes="all", sinks=True)
    arguments = arguments_of(case, SPARSE)
    sums = torch.full(arguments["q"].shape[:2], float("nan"), device=DEVICE)
    sparse_latent(**arguments, lse=sums)
    expected = torch.empty_like(sums)
    sparse_latent_torch(**{**arguments, "out": torch.empty_like(arguments["out"])}, lse=expected)
    assert (sums - expected).abs().max() < 1e-3


def test_halves_of_a_context_merge_to_the_whole():
    case = decode_cells.cell(page=4, head_dim=64, heads=4, kv_heads=2, batch=3, context=50)
    arguments = arguments_of(case, DECODE)
    whole, table = arguments["out"], arguments["block_table"]
    paged_decode(**arguments)
    parts = torch.full((3, *whole.shape), float("nan"), dtype=whole.dtype, device=DEVICE)
    sums = torch.full((3, *whole.shape[:3]), float("nan"), device=DEVICE)
    for part, (first, tokens) in enumerate(((0, 20), (5, 30), (0, 0))):
        lengths = torch.full_like(arguments["lengths"], tokens)
        some = {"block_table": table[:, first:], "lengths": lengths, "out": parts[part]}
        paged_decode(**{**arguments, **some}, lse=sums[part])
    found = torch.full_like(whole[:, 0], float("nan"))
    merge_parts(parts[:, :, 0].contiguous(), sums[:, :, 0].contiguous(), out=found)
    close(found, whole[:, 0], DECODE.tolerance(case), "out")


def test_empty_parts_give_exact_zeros_and_are_not_read():
    parts = torch.full((2, 3, 2, 7), float("nan"), device=DEVICE)
    sums = torch.full((2, 3, 2), float("-inf"), device=DEVICE)
    sums[1, 0], parts[1, 0] = 1.5, 4.0
    out, whole = torch.full((3, 2, 7), 9.0, device=DEVICE), torch.zeros(3, 2, device=DEVICE)
    merge_parts(parts, sums, out=out, out_sums=whole)
    assert (out[0] == 4).all()
    assert (out[1:] == 0).all()
    assert (whole[0] - 1.5).abs().max() < 1e-6
    assert (whole[1:] == float("-inf")).all()


def test_a_part_that_does_not_fit_is_refused():
    parts, sums = torch.zeros(2, 3, 2, 8, device=DEVICE), torch.zeros(2, 3, 2, device=DEVICE)
    for changed, message in (({"sums": sums[:1]}, "sums has shape"), ({"parts": parts[..., ::2]},
                             "parts has shape"), ({"out": parts}, "out has shape")):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            merge_parts(**{"parts": parts, "sums": sums, "out": parts[0], **changed})


@pytest.fixture
def hopper(monkeypatch):
    """The rules of a machine of compute capability 9."""
    monkeypatch.setattr(plans, "_is_hopper", lambda _: True)


def goes_to_prefill(case):
    made = {**arguments_of({**case, "batch": 1, "context": 40}, DECODE), "lse": None}
    shape = shape_of_problem(*(made[name] for name in ("q", "k_pages", "v_pages", "out")))
    return drafts.takes(made, shape)


def test_the_sweep_has_a_cell_on_either_side_of_what_many_drafts_need(hopper):
    pairs = [pair for pair in decode_cells.borders_of_kernels() if not pair[0]["latent"]]
    assert len(pairs) == 5
    for inside, outside in pairs:
        assert goes_to_prefill(inside), inside
        assert not goes_to_prefill(outside), outside
    named = {str(case) for case in decode_cells.SETS["gpu"]()}
    assert {str(case) for pair in pairs for case in pair} <= named


def test_sizes_of_heads_and_drafts_are_drawn_from_the_documented_range():
    drawn = [case for case in decode_cells.random_cells(30000, seed=1) if not case["latent"]]
    wide = {case["head_dim"] for case in drawn if case["kv_dtype"] in ("bf16", "fp16")}
    assert wide >= set(range(1, 257))
    assert max(wide) > rules.MOST_HEAD_DIM - 64
    assert {case["q_tokens"] for case in drawn} >= {1, 2, 3, 4, 8, *range(9, 33)}
    narrow = {case["head_dim"] for case in drawn if case["kv_dtype"] in ("fp8", "int8")}
    assert narrow >= set(range(2, 257, 2))
    nibbles = {case["head_dim"] for case in drawn if case["kv_dtype"] == "int4"}
    assert nibbles >= set(range(4, 257, 4))
    assert not {dim for dim in nibbles if dim % 4}
