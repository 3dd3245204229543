"""Paged prefill attention: every small cell, views of larger tensors, and what is refused."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, close, fit_a_hopper, judge, torch

from kvproof.kernels.checks import ArgumentError  # isort: skip - after the interpreter is chosen
from kvproof.kernels.paged_prefill import Plan, launch, paged_prefill, plans  # isort: skip - likewise
from kvproof.kernels.paged_prefill.cells import (  # isort: skip - likewise
    DTYPES as KINDS, SETS, borders_of_lengths, borders_of_sizes, cell, random_cells,
)  # fmt: skip
from kvproof.kernels.grid import NO_GRID, Grid, slots  # isort: skip - likewise
from kvproof.kernels.paged_prefill.inputs import Request, requests_of  # isort: skip - likewise
from kvproof.kernels.paged_prefill.sweep import KERNEL, OURS  # isort: skip - likewise
from kvproof.kernels.paged_inputs import DTYPES  # isort: skip - likewise
from kvproof.kernels.source import Source  # isort: skip - likewise
from kvproof.kernels.spec import cell_name  # isort: skip - likewise

SMALL = cell(
    page=4, head_dim=64, heads=4, kv_heads=2, batch=11, context=37, new=21, lengths="edges"
)


def arguments_of(case, **changed):
    return {**KERNEL.make(case, Source(seed=1, device=DEVICE)).arguments, **changed}


def right(case, arguments):
    """Check a result that was computed from arguments which differ from those of the cell."""
    expected = KERNEL.reference(case, arguments)["out"]
    close(arguments["out"], expected, KERNEL.tolerance(case), "out")


def test_without_triton_the_answer_is_the_same(monkeypatch):
    monkeypatch.setattr(launch, "runs_triton", lambda _: False)
    for case in ({**SMALL, "sinks": True, "window": 9}, {**SMALL, "kv_dtype": "int8"}):
        judge(KERNEL, OURS, case)


@pytest.fixture
def nothing_is_zero_by_chance():
    """New memory is NaN, so that an answer cannot come from what was never written."""
    torch.use_deterministic_algorithms(mode=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.parametrize(
    "plan",
    [
        Plan(rows=16, tile=32, stages=1, pieces=2),
        Plan(rows=64, tile=64, stages=1, gather=True),
        Plan(rows=128, tile=32, stages=1, pieces=7, gather=True),
    ],
    ids=["cut", "gather", "both"],
)
def test_no_result_depends_on_the_plan(plan, nothing_is_zero_by_chance):
    for changed in ({"window": 11, "sinks": True}, {"kv_dtype": "fp8"}, {"kv_dtype": "int8"}):
        case = {**SMALL, "batch": 2, **changed}
        arguments = arguments_of(case)
        paged_prefill(**arguments, plan=plan)
        right(case, arguments)


def test_tensors_may_be_views_of_larger_ones():
    case = {**SMALL, "batch": 5}
    arguments = arguments_of(case)
    pool = torch.stack((arguments["k_pages"], arguments["v_pages"]), 1)
    wide = torch.full((len(arguments["q"]), 10, 64), float("nan"), dtype=torch.bfloat16)
    wide = wide.to(DEVICE)
    wide[:, 3:7] = arguments["q"]
    views = {"k_pages": pool[:, 0], "v_pages": pool[:, 1], "q": wide[:, 3:7]}
    into = torch.full_like(wide, float("nan"))
    paged_prefill(**{**arguments, **views, "out": into[:, 3:7]})
    arguments["out"].copy_(into[:, 3:7])
    right(case, arguments)
    assert into[:, :3].isnan().all()
    assert into[:, 7:].isnan().all()


def test_rows_behind_the_last_request_are_left_alone():
    arguments = arguments_of({**SMALL, "batch": 3})
    padded = torch.full((len(arguments["q"]) + 40, 4, 64), 7.0, dtype=torch.bfloat16).to(DEVICE)
    used = len(arguments["q"])
    q = torch.cat((arguments["q"], torch.full_like(padded[used:], float("nan"))))
    paged_prefill(**{**arguments, "q": q, "out": padded})
    assert (padded[used:] == 7.0).all()
    assert not padded[:used].isnan().any()


def test_a_batch_without_anything_to_do_writes_nothing():
    empty = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    one = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    pages = torch.zeros(2, 4, 1, 64, dtype=torch.bfloat16, device=DEVICE)
    out = torch.full((3, 1, 64), 7.0, dtype=torch.bfloat16, device=DEVICE)
    paged_prefill(
        torch.zeros_like(out), pages, pages, empty.view(0, 0), empty, one, out,
        scale=1.0, longest_query=0, longest=0,
    )  # fmt: skip
    assert (out == 7.0).all()


def wrong_arguments():
    """Name, what is changed, what the message must say."""
    a = arguments_of(SMALL)
    table, starts, lengths = (
        a[name].clone() for name in ("block_table", "query_starts", "lengths")
    )
    table[0, 0] = len(a["k_pages"])
    starts[1] = 1000
    return [
        ("float32", {"q": a["q"].float()}, "q is torch.float32, expected bfloat16 or float16"),
        ("other dtype", {"out": a["out"].half()}, "out is torch.float16, expected bfloat16"),
        ("heads", {"q": a["q"][:, :3], "out": a["out"][:, :3]}, "q has 3 heads, expected a mult"),
        ("table", {"block_table": a["block_table"][1:]}, "block_table has shape (10, "),
        ("int64", {"lengths": lengths.long()}, "lengths is torch.int64, expected int32"),
        ("stride", {"q": a["q"].transpose(0, 2).contiguous().transpose(0, 2)}, "q has strides"),
        ("scale", {"scale": 0.0}, "scale is 0.0, expected a number above 0"),
        ("window", {"window": -1}, "window is -1, expected 0 (none) or more"),
        ("cap", {"soft_cap": -2.0}, "soft_cap is -2.0"),
        ("sinks", {"sinks": torch.zeros(3, device=DEVICE)}, "sinks has shape (3,), expected (4)"),
        ("scales", {"k_scale": torch.ones(2, device=DEVICE)}, "k_scale is given for pages of"),
        ("hints", {"longest": 1}, "longest is 1, expected 21 or more"),
        ("page id", {"block_table": table, "check_contents": True}, "block_table holds ids"),
        ("starts", {"query_starts": starts, "check_contents": True}, "query_starts holds ids"),
        ("longest", {"longest": 57, "check_contents": True}, "lengths holds ids 0 to 58"),
        ("most new", {"longest_query": 20, "check_contents": True}, "new tokens holds ids 0 to 21"),
        ("new", {"lengths": lengths * 0 + 1, "check_contents": True}, "request 0 21 new tokens"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "message"),
    [pytest.param(changed, message, id=name) for name, changed, message in wrong_arguments()],
)
def test_what_does_not_fit_is_refused_with_its_value(changed, message):
    with pytest.raises(ArgumentError) as refused:
        paged_prefill(**arguments_of(SMALL, **changed))
    assert message in str(refused.value)


def test_pages_of_eight_bits_need_their_scales():
    for dtype in ("fp8", "int8"):
        with pytest.raises(ArgumentError, match="v_scale is missing"):
            paged_prefill(**arguments_of({**SMALL, "kv_dtype": dtype}, v_scale=None))


@pytest.mark.parametrize("window", [0, 1, 7, 20, 500])
def test_the_least_work_counts_what_is_visible(window):
    case = {**SMALL, "window": window}
    arguments = arguments_of(case)
    pairs = tokens = 0
    for cached, new in requests_of(case):
        rows = [
            range(max(0, own - (window or own + 1) + 1), own + 1)
            for own in range(cached, cached + new)
        ]
        pairs += sum(len(row) for row in rows)
        tokens += len(set().union(*rows))
    found = KERNEL.cost(case, arguments)
    assert found.flops == 4 * 4 * 64 * pairs
    row = 2 * 2 * 64 * 2
    tables = found.read - tokens * row - arguments["q"].nbytes
    assert 0 < tables <= 4 * (2 * 11 + 1 + tokens)
    assert found.write == arguments["out"].nbytes


@pytest.fixture
def hopper(monkeypatch):
    """The rules of a machine with 132 multiprocessors of compute capability 9."""
    monkeypatch.setattr(plans, "_is_hopper", lambda _: True)
    monkeypatch.setattr(plans, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(plans, "interpreted", lambda: False)


def without_content(*, requests, page, dim, heads, kv_heads, kv_dtype, window=0):
    """Arguments of which only the shapes are looked at, so nothing is allocated."""
    new, pages = sum(one.new for one in requests), sum(-(-one.length // page) for one in requests)
    with torch.device("meta"):
        pool = torch.empty(pages, page, kv_heads, dim, dtype=kv_dtype)
        ids = torch.empty(len(requests), pages, dtype=torch.int32)
        form = {torch.int8: pool.shape[:3], torch.float8_e4m3fn: (kv_heads,)}.get(kv_dtype)
        scales = None if form is None else torch.ones(form)
        dtype = kv_dtype if kv_dtype.itemsize > 1 else torch.bfloat16
        q = torch.empty(new, heads, dim, dtype=dtype)
        starts = torch.empty(len(requests) + 1, dtype=torch.int32)
    return launch.Inputs(
        q, pool, pool, ids, ids[:, 0], starts, 1.0, window, 0.0, None, scales, scales
    )


def planned(
    new, *, context=32768, page=16, dim=128, kv_dtype=torch.bfloat16, window=0, heads=32, kv_heads=8
):
    """The plan that is chosen for one request."""
    given = without_content(
        requests=[Request(context, new)], page=page, dim=dim, heads=heads, kv_heads=kv_heads,
        kv_dtype=kv_dtype, window=window,
    )  # fmt: skip
    return plans.choose(given, new, context + new)


def test_on_hopper_pages_are_read_as_they_are_if_they_can_be(hopper):
    for page in (8, 16, 48, 256):
        assert planned(2048, page=page).hopper
        assert not planned(2048, page=page).gather
    for changed in ({"page": 1}, {"page": 20}, {"kv_dtype": torch.float8_e4m3fn}):
        assert planned(2048, **changed).hopper
        assert planned(2048, **changed).gather
    assert planned(1).hopper
    assert not planned(2, context=100).hopper
    assert not planned(2048, page=4, context=1 << 20).hopper
    assert not planned(100, page=4).gather
    assert not planned(2048, dim=64, heads=64, window=128).hopper


def test_two_warps_start_the_many_copies_of_short_pages_and_wide_rows(hopper):
    for page, copiers in ((8, 2), (16, 2), (32, 1), (128, 1)):
        assert planned(2048, page=page, dim=256).copiers == copiers
    assert planned(2048, page=16).copiers == 2
    assert planned(2048, page=16, dim=64).copiers == 1
    gathered = planned(2048, page=16, dim=256, kv_dtype=torch.float8_e4m3fn)
    assert (gathered.gather, gathered.copiers) == (True, 1)


def test_three_warp_groups_attend_with_narrow_heads(hopper):
    assert [planned(2048, dim=dim).rows for dim in (32, 64, 65, 256)] == [192, 192, 128, 128]


def test_programs_stay_where_requests_fill_blocks_and_heads_leave_registers(hopper):
    assert [planned(2048, dim=dim).persistent for dim in (64, 65, 128, 129)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert [planned(new).persistent for new in (63, 64)] == [False, True]
    assert planned(2048).stages == 3


def test_windows_up_to_a_thousand_have_small_tiles_in_programs_that_stay(hopper):
    of = {window: planned(2048, window=window) for window in (0, 128, 1024, 1025)}
    assert [(plan.tile, plan.stages) for plan in of.values()] == [
        (128, 3), (64, 4), (64, 4), (128, 3),
    ]  # fmt: skip
    assert planned(2048, window=500, dim=64).tile == 128


@pytest.mark.slow(reason="compiles every launch")
def test_the_widest_launches_fit_into_a_hopper_with_either_number_of_copying_warps():
    fit_a_hopper(
        [
            {"kernel": "prefill", "page": page, "head_dim": 256, "copiers": copiers}
            for page, copiers in ((8, 2), (16, 2), (64, 1))
        ]
    )


@pytest.mark.nightly(reason="compiles two launches")
@pytest.mark.slow(reason="compiles two launches")
def test_programs_that_stay_fit_into_a_hopper_with_large_and_small_tiles():
    common = {"kernel": "prefill", "page": 16, "head_dim": 128, "copiers": 2, "persistent": True}
    fit_a_hopper(
        [{**common, "stages": 3}, {**common, "tile": 64, "stages": 4, "window": 500, "part": True}]
    )


@pytest.mark.slow(reason="compiles two launches")
def test_another_part_is_merged_in_blocks_of_two_and_three_warp_groups():
    fit_a_hopper(
        [
            {"kernel": "prefill", "page": 16, "head_dim": dim, "copiers": 1, "part": True}
            for dim in (64, 128)
        ]
    )


def test_rows_of_pages_lie_on_a_grid_or_not():
    pool = torch.zeros(3, 2, 16, 2, 64, dtype=torch.bfloat16)
    assert slots(pool[:, 0])[1:] == (80, 256, 2, 128)
    assert slots(pool[:, 0, ::2])[1:] == (40, 512, 2, 128)
    of_one_head = pool.view(3, 2, 1, 32, 64)[:, 0].transpose(1, 2)
    assert slots(of_one_head)[1:] == (160, 128, 1, 128)
    for other in (pool[:, 0, :, :, :32], pool[:, 0].transpose(1, 2),
                  torch.zeros(3, 1, 2, 64).expand(3, 16, 2, 64)):  # fmt: skip
        assert slots(other) == NO_GRID
    assert not NO_GRID.can_be_copied()


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("kv_heads", [1, 2, 8])
def test_no_copy_starts_between_the_units_of_the_hardware(hopper, kv_heads, dtype):
    """A head that is no multiple of 16 bytes ends the context of the device: it is padded first."""
    for dim in range(1, 257):
        chosen = planned(
            200, context=300, dim=dim, kv_heads=kv_heads, heads=16, kv_dtype=DTYPES[dtype]
        )
        assert chosen.hopper
        assert chosen.gather == (dim % 8 != 0 or dtype in ("fp8", "int8")), dim


@pytest.mark.parametrize(
    ("changed", "copied"),
    [
        ({}, True),
        ({"start": 8}, False),
        ({"apart": 4 * 200 + 8}, False),
        ({"apart": 4 * 200 - 16}, False),
        ({"apart": 1 << 40}, False),
        ({"head": 200}, False),
        ({"head": 200, "heads": 1}, True),
        ({"head": 200, "heads": 2, "apart": 400}, False),
        ({"rows": 1 << 31}, False),
        ({"rows": 0}, False),
    ],
)
def test_what_the_hardware_can_copy(changed, copied):
    grid = Grid(start=1 << 20, rows=50, apart=832, heads=4, head=208)
    assert grid._replace(**changed).can_be_copied() == copied


def test_one_head_of_any_size_is_copied_from_rows_of_whole_units():
    rows = torch.zeros(5, 10, 1, 104, dtype=torch.bfloat16)
    assert slots(rows[..., :100]).can_be_copied()
    assert not slots(rows[..., :100].contiguous()).can_be_copied()
    assert not slots(rows.view(5, 5, 2, 104)[..., :100]).can_be_copied()


def test_a_plan_that_the_shapes_do_not_allow_is_refused():
    plan = Plan(rows=128, tile=64, stages=2, hopper=True)
    with pytest.raises(ArgumentError, match="plan has hopper=True: its kernel cannot copy pages"):
        paged_prefill(**arguments_of({**SMALL, "head_dim": 100, "page": 16}), plan=plan)


def path(case):
    """Which kernel a cell of the sweep takes on a Hopper GPU, and whether it gathers first."""
    if case["layout"] != "own":
        made = arguments_of(case)
        given = launch.Inputs(
            **{name: made[name] for name in launch.Inputs._fields if name in made}
        )
    else:
        names = {"dim": "head_dim", "page": "page", "heads": "heads", "kv_heads": "kv_heads"}
        given = without_content(
            requests=requests_of(case), kv_dtype=DTYPES[case["kv_dtype"]], window=case["window"],
            **{name: case[axis] for name, axis in names.items()},
        )  # fmt: skip
    most = max(one.new for one in requests_of(case))
    chosen = plans.choose(given, most, max(one.length for one in requests_of(case)))
    return (chosen.hopper, chosen.gather)


@pytest.mark.parametrize(
    ("borders", "portable"), [(borders_of_sizes, set()), (borders_of_lengths, {(False, False)})]
)
def test_the_sweep_has_a_cell_on_either_side_of_every_precondition(hopper, borders, portable):
    for inside, outside in borders():
        assert path(inside) != path(outside), (cell_name(inside), cell_name(outside))
        assert path(inside)[0], cell_name(inside)
        assert not path(outside)[0] or path(outside)[1], cell_name(outside)
    paths = {path(case) for pair in borders() for case in pair}
    assert paths == {(True, False), (True, True)} | portable
    assert {cell_name(case) for pair in borders() for case in pair} <= {
        cell_name(case) for case in SETS["gpu"]()
    }


def as_in_0_14_0(grid):
    """The precondition that looked at addresses and rows only."""
    return grid.start % 16 == grid.apart % 16 == 0


@pytest.mark.parametrize("cells", [SETS["gpu"], SETS["random"]], ids=["gpu", "random"])
def test_the_sweep_finds_the_precondition_that_left_out_the_start_of_a_copy(
    hopper, monkeypatch, cells
):
    cases = [case for case in cells() if case["layout"] == "own"]
    right = [path(case) for case in cases]
    monkeypatch.setattr(Grid, "can_be_copied", as_in_0_14_0)
    found = {then for case, now in zip(cases, right, strict=True)
             if (then := path(case)) != now}  # fmt: skip
    assert found == {(True, False)}, "copied without padding"


def test_head_sizes_are_drawn_from_the_documented_range():
    drawn = {case["head_dim"] for case in random_cells(9000, seed=1)}
    assert drawn == set(range(1, 257))


def test_the_sets_of_cells_cover_the_axes():
    for name, cells in SETS.items():
        assert len({cell_name(case) for case in cells()}) == len(cells()), name
    cpu = SETS["cpu"]()
    assert {case["kv_dtype"] for case in cpu} == set(KERNEL.axes["kv_dtype"])
    assert {case["heads"] // case["kv_heads"] for case in cpu} >= {1, 2, 3, 8}
    assert {case["head_dim"] for case in cpu} >= set(KERNEL.axes["head_dim"])
