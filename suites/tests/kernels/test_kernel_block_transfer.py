import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, judge, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels.block_transfer import (
    Staging,
    gather,
    paged_layers,
    scatter,
    transfer_from_host,
    transfer_to_host,
)
from kvproof.kernels.block_transfer.cells import cell, objects_of, paged_of
from kvproof.kernels.block_transfer.host import runs, slices
from kvproof.kernels.block_transfer.launch import Access, Part, access, launch
from kvproof.kernels.block_transfer.layouts import LAYOUTS
from kvproof.kernels.block_transfer.sweep import KERNEL, OURS
from kvproof.kernels.checks import ArgumentError
from kvproof.kernels.source import Source
from kvproof.kernels.spec import cell_name

CELLS = KERNEL.cells["cpu"]()


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU the sweep prepares the launch itself")
@pytest.mark.parametrize("case", CELLS[::7], ids=cell_name)
def test_without_triton_torch_moves_the_same(case, monkeypatch):
    monkeypatch.setattr("kvproof.kernels.block_transfer.launch.runs_triton", lambda _: False)
    judge(KERNEL, OURS, case)


@pytest.mark.parametrize("seed", range(3))
def test_another_seed_finds_nothing_new(seed):
    mixed = cell(
        layout="kv-hnd", head_bytes=66, heads=3, page=4, layers=2, objects=2, tokens=9,
        skip=2, holes=1, direction="scatter",
    )  # fmt: skip
    judge(KERNEL, OURS, mixed, seed=seed)


def test_the_cells_cover_every_layout_width_and_direction():
    seen = {(case["layout"], case["head_bytes"], case["direction"]) for case in CELLS}
    wanted = {(name, width, way) for name in LAYOUTS for width in (256, 132, 66, 33)
              for way in ("gather", "scatter")}  # fmt: skip
    assert wanted <= seen


def pool(*shape, dtype=torch.uint8):
    return torch.randint(0, 200, shape, device=DEVICE).to(dtype)


def ids(*rows):
    return torch.tensor(rows, dtype=torch.int64, device=DEVICE)


def test_layers_of_any_dtype_allocated_apart_come_back_in_order():
    layers = [pool(5, 4, 2, 8, dtype=torch.bfloat16) for _ in range(3)][::-1]
    objects = torch.zeros((1, 1, 3, 8, 16), dtype=torch.bfloat16, device=DEVICE)
    gather(paged_layers(layers, "nhd"), ids((4, 2)), objects)
    for index, layer in enumerate(layers):
        assert torch.equal(objects[0, 0, index, :4], layer[4].flatten(1))
        assert torch.equal(objects[0, 0, index, 4:], layer[2].flatten(1))


def test_what_was_gathered_scatters_to_other_pages_unchanged():
    layer = pool(2, 7, 3, 4, 33)
    objects = torch.zeros((2, 2, 1, 4, 99), dtype=torch.uint8, device=DEVICE)
    paged = paged_layers([layer], "kv-hnd")
    gather(paged, ids((1,), (2,)), objects)
    scatter(paged, ids((5,), (6,)), objects)
    assert torch.equal(layer[:, 5:7], layer[:, 1:3])


def test_a_buffer_may_hold_some_planes_of_the_objects():
    layers = [pool(2, 5, 4, 2, 66) for _ in range(2)]
    paged, table = paged_layers(layers, "kv-nhd"), ids((4, 2), (1, 3))
    objects = torch.zeros((2, 2, 2, 8, 132), dtype=torch.uint8, device=DEVICE)
    gather(paged, table, objects)
    plane = 8 * 132
    buffer = torch.zeros(4 * plane, dtype=torch.uint8, device=DEVICE)
    launch("gather", paged, table, objects, part=Part(buffer, 3 * plane, 3, 4))
    assert torch.equal(buffer, objects.view(-1)[3 * plane : 7 * plane])


@pytest.mark.parametrize(
    ("layout", "heads", "width", "found"),
    [
        ("kv-nhd", 8, 256, Access(16, 16, shifted=False)),
        ("kv-nhd", 8, 33, Access(16, 16, shifted=False)),
        ("kv-hnd", 8, 256, Access(16, 16, shifted=False)),
        ("kv-hnd", 8, 132, Access(16, 4, shifted=False)),
        ("kv-hnd", 8, 66, Access(16, 2, shifted=False)),
        ("kv-hnd", 8, 33, Access(16, 1, shifted=True)),
        ("indexer", 1, 132, Access(16, 4, shifted=False)),
    ],
)
def test_accesses_are_as_wide_as_the_runs_allow(layout, heads, width, found):
    case = cell(layout=layout, heads=heads, head_bytes=width, layers=1, objects=1, tokens=16)
    problem = KERNEL.make(case, Source(seed=0, device=DEVICE, guarded=False))
    paged = paged_of(case, problem.arguments["pool"])
    objects = objects_of(case, problem.arguments["objects"])
    assert access("gather", paged, objects) == access("scatter", paged, objects) == found


def some_objects(*shape):
    return torch.zeros(shape, dtype=torch.uint8, device=DEVICE)


@pytest.mark.parametrize(
    ("objects", "table", "skip", "words"),
    [
        (some_objects(1, 2, 1, 8, 16), ids((1, 2)), 0, "objects has shape (1, 2, 1, 8, 16)"),
        (some_objects(1, 1, 1, 8, 17), ids((1, 2)), 0, "objects has shape (1, 1, 1, 8, 17)"),
        (some_objects(1, 1, 1, 8, 16), ids((1,)), 0, "block_ids has shape (1, 1), expected (1, 2)"),
        (some_objects(1, 1, 1, 8, 16), ids((1, 5)), 0, "ids 1 to 5, expected 0 to 4"),
        (some_objects(1, 1, 1, 8, 16), ids((1, 2)), -1, "skip_tokens is -1"),
        (some_objects(1, 1, 1, 8, 16), ids((1, 2)).float(), 0, "block_ids is torch.float32"),
        (some_objects(8, 16), ids((1, 2)), 0, "objects has 2 dimensions"),
        (some_objects(1, 1, 1, 16, 8).mT, ids((1, 2)), 0, "each object must be contiguous"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(objects, table, skip, words):
    paged = paged_layers([pool(5, 4, 2, 8)], "nhd")
    with pytest.raises(ArgumentError) as refused:
        gather(paged, table, objects, skip_tokens=skip, check_ids=True)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("layers", "layout", "words"),
    [
        ([], "nhd", "layers is empty"),
        ([pool(5, 4, 2, 8)], "nhx", "layout is 'nhx', expected one of nhd, hnd"),
        ([pool(5, 4, 8)], "nhd", "expected [pages, page, heads, bytes] in layout nhd"),
        ([pool(5, 4, 2, 8), pool(5, 4, 2, 9)], "nhd", "layer 1 has shape"),
        ([pool(5, 4, 2, 16)[..., :8]], "nhd", "dimension heads of a layer has a stride of 16"),
        ([pool(5, 4, 4)], "indexer", "scale_bytes is 4, a row has 4 bytes"),
    ],
)
def test_layers_that_do_not_fit_are_refused(layers, layout, words):
    with pytest.raises(ArgumentError) as refused:
        paged_layers(layers, layout)
    assert words in str(refused.value)


def test_objects_with_holes_or_skipped_tokens_go_the_direct_way():
    table = [[1, 2], [3, 4], [5, 0], [6, 7], [8, 9]]
    found = [tuple(run) for run in runs(table, 8, 1, contiguous=True)]
    assert found == [(0, 1, True), (1, 1, False), (2, 1, True), (3, 2, False)]
    assert [run.objects for run in runs(table, 8, 0, contiguous=False)] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("planes", [1, 2, 7, 64, 256])
@pytest.mark.parametrize("most", [1, 5, 64, 1000])
@pytest.mark.parametrize("short", [0, 1, 30])
def test_slices_cover_every_plane_once_and_fit_a_slot(planes, most, short):
    found = list(slices(planes, most, short))
    assert [plane for low, number in found for plane in range(low, low + number)] == [
        *range(planes)
    ]
    assert max(number for _, number in found) <= most
    assert found[0][1] <= max(1, short)


def test_ids_on_the_host_are_checked_before_anything_moves():
    paged = paged_layers([pool(5, 4, 2, 8)], "nhd")
    objects = some_objects(1, 1, 1, 8, 16)
    for function in (transfer_to_host, transfer_from_host):
        with pytest.raises(ArgumentError, match="ids 1 to 9, expected 0 to 4"):
            function(paged, [[1, 9]], objects, None)
    assert not objects.any()


@pytest.mark.skipif(DEVICE == "cuda", reason="with a GPU a staging is needed")
def test_on_the_cpu_objects_are_filled_at_once():
    layer = pool(5, 4, 2, 8)
    paged, objects = paged_layers([layer], "nhd"), some_objects(1, 1, 1, 8, 16)
    assert transfer_to_host(paged, [[4, 0]], objects, None) is None
    assert torch.equal(objects[0, 0, 0, :4], layer[4].flatten(1))
    assert not objects[0, 0, 0, 4:].any()
    assert transfer_from_host(paged, [[2, 0]], objects, None) is None
    assert torch.equal(layer[2], layer[4])


@pytest.mark.skipif(DEVICE == "cpu", reason="copies to pinned memory need a GPU")
@pytest.mark.parametrize("skip", [0, 3])
@pytest.mark.parametrize("hole", [False, True])
def test_pinned_memory_gets_and_gives_back_the_same_bytes(skip, hole):
    layers = [pool(2, 30, 3, 4, 66) for _ in range(4)]
    paged = paged_layers(layers, "kv-hnd")
    table = [[4, 2], [9, 0 if hole else 7], [11, 12]]
    wanted = some_objects(3, 2, 4, 8, 198)
    gather(paged, ids(*table), wanted, skip_tokens=skip)
    objects = torch.zeros(wanted.shape, dtype=torch.uint8, pin_memory=True)
    staging = Staging.of(3 * 8 * 198)
    transfer_to_host(paged, table, objects, staging, skip_tokens=skip).synchronize()
    assert torch.equal(objects.to(DEVICE), wanted)
    moved = [[block and block + 13 for block in row] for row in table]
    transfer_from_host(paged, moved, objects, staging, skip_tokens=skip)
    back = torch.zeros_like(wanted)
    gather(paged, ids(*moved), back, skip_tokens=skip)
    assert torch.equal(back, wanted)
