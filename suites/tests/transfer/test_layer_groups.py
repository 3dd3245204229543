"""Groups of layers, from tensors and from plans."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the extra gpu is not installed")

import torch

from examples.planned_pages import planned_groups
from kvproof.reference.planner.chunk import planned_layout
from kvproof.reference.planner.hf_config import read_model
from kvproof.reference.planner.layer_views import byte_range
from kvproof.reference.planner.plan import GIB, PlanSettings
from kvproof.reference.planner.planner import make_plan
from kvproof.reference.transfer.chunk_layout import LayoutError
from kvproof.reference.transfer.layer_groups import layer_groups
from kvproof.reference.transfer.layouts import AmbiguousLayout, Hint

CONFIGS = Path(__file__).parents[1] / "planner" / "model_configs"


def zeros(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype)


def names(groups):
    return [list(group.geometry.names) for group in groups.groups]


def test_a_list_is_grouped_in_order_of_first_appearance():
    small, wide = (zeros(2, 8, 16, heads, 64) for heads in (2, 4))
    layers = [small, wide, small.clone(), wide.clone(), small.to(torch.float16)]
    assert names(layer_groups(layers, hint=Hint(page=16))) == [["0", "2"], ["1", "3"], ["4"]]


def test_unequal_strides_of_equal_shapes_are_apart():
    padded = zeros(9, 16, 600)[..., :576]
    gaps = zeros(9, 20, 576)[:, :16]
    found = layer_groups({"a": zeros(9, 16, 576), "b": gaps}, hint=Hint(page=16))
    assert names(found) == [["a"], ["b"]]
    assert [group.paged.page_stride for group in found.groups] == [16 * 1152, 20 * 1152]
    with pytest.raises(LayoutError, match="dense blocks"):
        layer_groups([padded])


def test_equal_shapes_of_unequal_tables_kinds_or_block_sizes_are_apart():
    layers = {name: zeros(8, 16, 2, 64) for name in "abcd"}
    hints = {
        "a": Hint(page=16),
        "b": Hint(page=16, table=1),
        "c": Hint(page=16, table=2, kind="window", size=64),
        "d": Hint(page=16, table=3, block=32),
    }
    found = layer_groups(layers, hints=hints)
    assert names(found) == [["a"], ["b"], ["c"], ["d"]]
    assert [group.blocks for group in found.groups] == [8, 8, 8, 4]
    assert found.ids([[1], [2], [3], [4]]) == [[1], [2], [3], [4]]
    with pytest.raises(LayoutError, match="ids of 1 tables, the groups use 4"):
        found.ids([[1]])


def test_pairs_and_named_caches_are_tensors_of_their_own():
    pair = (zeros(8, 16, 2, 192), zeros(8, 16, 2, 128))
    named = {"latent": zeros(8, 16, 576), "indexer": zeros(8, 16, 132, dtype=torch.uint8)}
    hints = {"m.indexer": Hint(layout="indexer")}
    found = layer_groups({"l": pair, "m": named}, hint=Hint(page=16), hints=hints)
    assert names(found) == [["l.k"], ["l.v"], ["m.latent"], ["m.indexer"]]
    assert [group.geometry.width for group in found.groups] == [192, 128, 576, 132]
    with pytest.raises(LayoutError, match="l: a tuple of 3 tensors, expected K and V"):
        layer_groups({"l": (*pair, pair[0])})


@pytest.mark.parametrize(
    ("shape", "hint", "readings", "settled"),
    [
        ((2, 2, 16, 8, 64), Hint(page=16), ["kv-nhd", "page-kv-nhd"], "Hint(layout='kv-nhd')"),
        ((9, 16, 8, 64), Hint(), ["nhd", "hnd"], "Hint(page=16); Hint(page=8)"),
        ((9, 8, 8, 64), Hint(page=8), ["nhd", "hnd"], "Hint(layout='nhd'); Hint(layout='hnd')"),
        ((9, 1, 16, 64), Hint(), ["nhd", "hnd"], "Hint(page=1); Hint(page=16)"),
    ],
)
def test_what_can_be_read_in_several_ways_is_refused(shape, hint, readings, settled):
    with pytest.raises(AmbiguousLayout) as refused:
        layer_groups([zeros(*shape)], hint=hint)
    assert [reading.layout for reading in refused.value.readings] == readings
    assert settled in str(refused.value)
    for layout in readings:
        (group,) = layer_groups([zeros(*shape)], hint=Hint(layout=layout)).groups
        assert group.paged.layout == layout


def test_bytes_with_132_in_a_row_are_not_taken_for_an_indexer():
    layer = zeros(9, 64, 132, dtype=torch.uint8)
    with pytest.raises(AmbiguousLayout, match=r"latent .* or indexer"):
        layer_groups([layer])
    assert layer_groups([zeros(9, 64, 66)]).groups[0].paged.layout == "latent"


def test_a_lone_head_is_not_taken_for_a_page():
    (group,) = layer_groups([zeros(9, 16, 1, 128)], hint=Hint(page=16)).groups
    assert (group.paged.page, group.geometry.heads) == (16, 1)
    (group,) = layer_groups([zeros(9, 1, 16, 128)], hint=Hint(page=16)).groups
    assert (group.paged.layout, group.geometry.heads) == ("hnd", 1)


def test_strides_say_how_pages_lie_whatever_the_dimensions_are_called():
    heads_first = zeros(2, 9, 8, 16, 64)
    (group,) = layer_groups(
        [heads_first.transpose(2, 3)], hint=Hint(layout="kv-nhd", page=16)
    ).groups
    assert (group.paged.layout, group.paged.page, group.geometry.heads) == ("kv-hnd", 16, 8)


def test_states_are_rows_of_bytes():
    layers = {f"s{at}": {"conv": zeros(5, 3, 7), "ssm": zeros(5, 2, 4, 4)} for at in range(2)}
    found = layer_groups(layers, hint=Hint(kind="state"))
    assert names(found) == [["s0.conv", "s1.conv"], ["s0.ssm", "s1.ssm"]]
    assert [group.geometry.row_bytes for group in found.groups] == [42, 64]


def test_readers_own_nothing():
    layer = zeros(9, 16, 576)
    with pytest.raises(LayoutError, match="b is the memory of a: exclude the one"):
        layer_groups({"a": layer, "b": layer})
    found = layer_groups({"a": layer, "b": layer}, excluded={"b": "a"})
    assert (names(found), found.excluded) == ([["a"]], {"b": "a"})


@pytest.mark.parametrize(
    ("layers", "more", "words"),
    [
        ({}, {}, "0 layers make no group"),
        ({"a": (9, 16, 576)}, {"hints": {"b": Hint()}}, "a hint for 'b', which is no layer"),
        ({"a": (9, 16, 576)}, {"excluded": {"b": "c"}}, "b is excluded as a reader of 'c'"),
        ({"a": (9, 16, 576)}, {"hint": Hint(layout="nhx")}, "layout 'nhx', expected one of nhd"),
        ({"a": (9, 16, 576)}, {"hint": Hint(block=24)}, "blocks of 24 tokens are no whole number"),
        ({"a": (9, 16, 576)}, {"hint": Hint(block=32)}, "9 pages are no whole number of blocks"),
        ({"a": (9, 16, 576), "b": (8, 16, 64)}, {}, "a has 9 blocks and b 8, but table 0"),
        ({"a": (8, 16, 576), "b": (8, 32, 64)}, {}, "blocks of 16 tokens and b of 32"),
        ({"a": (9, 16)}, {}, "a recurrent state needs Hint"),
        ({"a": (3, 9, 16, 8, 64)}, {}, "is none of"),
    ],
)
def test_what_makes_no_group_is_refused_with_both_sizes(layers, more, words):
    tensors = {name: zeros(*shape) for name, shape in layers.items()}
    with pytest.raises(LayoutError, match=words):
        layer_groups(tensors, **more)


COMPRESSED = CONFIGS / "deepseek_v4_flash.json"
DENSE = [path for path in sorted(CONFIGS.glob("*.json")) if path != COMPRESSED]
"""Models whose layers have an entry for each token."""


def test_tensors_with_entries_of_several_tokens_are_refused():
    model = read_model(json.loads(COMPRESSED.read_text()))
    plan = make_plan(model, PlanSettings(memory=(64 * GIB,), max_len=2048, block_size=256))
    plan = replace(plan, num_blocks=3)
    pool = torch.empty((3, plan.workers[0].block_bytes), dtype=torch.uint8)
    with pytest.raises(LayoutError, match="one entry for 4 tokens"):
        planned_groups(plan, pool)


@pytest.mark.parametrize(
    "changed",
    [{}, {"kernel_block_size": 16}, {"state_pool": "separate", "max_requests": 2}],
    ids=["plain", "kernel blocks", "separate states"],
)
@pytest.mark.parametrize("path", DENSE, ids=lambda path: path.stem)
def test_a_plan_says_the_layout_before_there_is_memory(path, changed):
    model = read_model(json.loads(path.read_text()))
    plan = make_plan(model, PlanSettings(memory=(64 * GIB,), max_len=2048, **changed))
    plan = replace(plan, num_blocks=3)
    worker = plan.workers[0]
    pool = torch.empty((3, worker.block_bytes), dtype=torch.uint8)
    states = None
    if worker.state_row_bytes:
        rows = plan.settings.state_rows
        states = torch.empty((rows, worker.state_row_bytes), dtype=torch.uint8)
    found = planned_groups(plan, pool, states=states)
    assert found.layout(tokens=plan.unit) == planned_layout(plan, tokens=plan.unit)
    readers = {view.layer for view in worker.views if view.owner}
    assert set(found.excluded) == readers
    _lie_where_the_plan_says(plan, worker, found, pool)


def _lie_where_the_plan_says(plan, worker, found, pool):
    """The second token of block 2 of every tensor is the bytes of the plan."""
    views = {f"{view.layer}.{view.part}": view for view in worker.views if not view.owner}
    for group in found.groups:
        for name, layer in zip(group.geometry.names, group.paged.layers, strict=True):
            if name in views and group.paged.layout == "nhd":
                planned = plan.groups[group.table]
                start, end = byte_range(planned, worker, views[name], 2, 1)
                row = layer[2 * group.ratio, 1]
                assert row.data_ptr() - pool.data_ptr() == start
                assert row.numel() * row.element_size() == end - start


def test_a_pool_of_another_size_is_refused():
    model = read_model(json.loads((CONFIGS / "llama_3_1_8b.json").read_text()))
    plan = make_plan(model, PlanSettings(memory=(64 * GIB,), max_len=2048))
    with pytest.raises(LayoutError, match=r"pool is torch.uint8 \[1, 1\], the plan has uint8 \["):
        planned_groups(plan, torch.zeros((1, 1), dtype=torch.uint8))
