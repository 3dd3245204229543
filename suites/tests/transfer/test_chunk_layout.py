"""The layout of a chunk as a value."""

import json

import pytest

from kvproof.reference.planner.layer_spec import LayerSpec, ModelSpec, Part
from kvproof.reference.planner.plan import PlanSettings
from kvproof.reference.planner.planner import make_plan
from kvproof.reference.planner.summary import summary
from kvproof.reference.transfer.chunk_layout import (
    ChunkLayout,
    Geometry,
    LayoutError,
    byte_ranges,
    stored_blocks,
)
from kvproof.reports.charts.chunk import chunk_chart
from kvproof.reports.render.plan_page import render_plan
from kvproof.reports.values.svg import Box
from kvproof.suites.framework.suite import bound
from kvproof.suites.reference.transfer.strategies import SUITE
from kvproof.suites.tests.framework.suite_kit import reference_handle

LATENT = Geometry(names=("0.latent", "1.latent"), dtype="bfloat16", heads=1, width=576, block=64)
INDEXER = Geometry(names=("0.indexer", "1.indexer"), dtype="uint8", heads=1, width=132, block=64)
ODD = Geometry(names=("a",), dtype="uint8", heads=3, width=11, kv=2, block=1)
STATE = Geometry(names=("s",), dtype="float32", heads=1, width=5, kind="state", block=64)
LAYOUT = ChunkLayout.of([LATENT, INDEXER])


def test_groups_follow_each_other_aligned():
    found = ChunkLayout.of([ODD, STATE, LATENT], tokens=64)
    assert [(group.offset, group.nbytes) for group in found.groups] == [
        (0, 2 * 64 * 33),
        (4224, 20),
        (4256, 2 * 64 * 1152),
    ]
    assert found.nbytes == 4256 + 147456
    assert found.gaps == ((4244, 4256),)


def test_shapes_and_strides_are_those_of_a_token_major_chunk():
    latent, indexer = LAYOUT.groups
    assert latent.shape == (1, 2, 256, 1, 576)
    assert latent.strides == (2 * 256 * 1152, 256 * 1152, 1152, 1152, 2)
    assert indexer.offset == latent.nbytes == 2 * 256 * 1152
    assert LAYOUT.nbytes == 2 * 256 * (1152 + 132)
    assert LAYOUT.heads == [1, 1]
    assert LAYOUT.hidden_sizes == [576, 132]


def test_a_layout_describes_itself():
    assert LAYOUT.describe() == (
        "chunk of 256 tokens: 657,408 bytes in 2 groups\n"
        "group  kind  tensors               dtype     shape                "
        "strides                          offset   bytes\n"
        "0      full  0.latent and 1 more   bfloat16  [1, 2, 256, 1, 576]  "
        "[589824, 294912, 1152, 1152, 2]  0        589,824\n"
        "1      full  0.indexer and 1 more  uint8     [1, 2, 256, 1, 132]  "
        "[67584, 33792, 132, 132, 1]      589,824  67,584\n"
        "heads [1, 1], hidden sizes [576, 132]"
    )


def test_json_goes_out_and_comes_back():
    assert ChunkLayout.from_json(LAYOUT.to_json()) == LAYOUT


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"nbytes": 657_424}, "the layout says 657424 bytes"),
        ({"schema": 2}, "schema 2 of a chunk layout, expected 1"),
        ({"tokens": 100}, "chunks of 100 tokens are no whole number of blocks of 64 tokens"),
        ({"groups": 7}, "this is no chunk layout: Expected `array`"),
    ],
)
def test_json_that_contradicts_itself_is_refused(change, words):
    text = json.dumps(json.loads(LAYOUT.to_json()) | change).encode()
    with pytest.raises(LayoutError, match=words):
        ChunkLayout.from_json(text)


def test_fingerprints_tell_layouts_apart_and_repeat():
    others = [
        ChunkLayout.of([LATENT, INDEXER], tokens=512),
        ChunkLayout.of([INDEXER, LATENT]),
        ChunkLayout.of([LATENT]),
    ]
    assert ChunkLayout.of([LATENT, INDEXER]).fingerprint == LAYOUT.fingerprint
    assert len({each.fingerprint for each in (LAYOUT, *others)}) == 4
    assert LAYOUT.fingerprint == (
        "f53d710227a04f9fe08e14c17e00d77d02ffcfa935f524a87c0c1b74ff93b2a7"
    )


@pytest.mark.parametrize(
    ("kind", "size", "block", "kept"),
    [
        ("full", 0, 16, 16),
        ("window", 1, 16, 0),
        ("window", 2, 16, 1),
        ("window", 17, 16, 1),
        ("window", 18, 16, 2),
        ("window", 4096, 16, 16),
        ("chunk", 64, 16, 0),
        ("chunk", 8192, 16, 16),
        ("chunk", 96, 16, 4),
        ("chunk", 24, 16, 1),
        ("state", 0, 256, 1),
    ],
)
def test_what_a_later_hit_needs_is_kept(kind, size, block, kept):
    geometry = Geometry(
        names=("a",), dtype="uint8", heads=1, width=1, kind=kind, size=size, block=block
    )
    assert stored_blocks(geometry, 256) == kept


def test_neighbours_are_one_range():
    found = ChunkLayout.of([ODD, STATE, LATENT, INDEXER], tokens=64)
    assert byte_ranges(found, [0, 1, 2, 3]) == [(0, found.nbytes)]
    assert byte_ranges(found, [0, 2, 3]) == [(0, 4224), (4256, found.nbytes)]
    assert byte_ranges(found, []) == []


@pytest.mark.parametrize(
    ("geometries", "words"),
    [
        ([], "0 groups holds nothing"),
        ([Geometry(names=("a",), dtype="int4", heads=1, width=1)], "dtype 'int4', expected one of"),
        ([Geometry(names=("a",), dtype="int8", heads=0, width=1)], "group 0 has a size below 1"),
        ([Geometry(names=(), dtype="int8", heads=1, width=1)], "group 0 has a size below 1"),
    ],
)
def test_what_is_no_group_is_refused(geometries, words):
    with pytest.raises(LayoutError, match=words):
        ChunkLayout.of(geometries)


def test_a_drawing_shows_every_group_at_its_place():
    found = chunk_chart(ChunkLayout.of([ODD, STATE, LATENT], tokens=64))
    assert found.title == "A chunk of 64 tokens takes 148.16 KiB"
    assert [row[0] for row in found.table.rows] == ["0: a", "1: s", "2: 0.latent and 1 more"]
    boxes = [shape for shape in found.drawing.shapes if isinstance(shape, Box)]
    assert [box.tip for box in boxes] == [
        "4,224 B from byte 0 on",
        "20 B from byte 4,224 on",
        "144.00 KiB from byte 4,256 on",
    ]
    assert boxes[0].x < boxes[1].x < boxes[2].x


def test_the_page_of_a_plan_shows_the_chunk_and_escapes_names():
    layer = LayerSpec("<b>x", 0, "full", (Part("k", 1, 64, "bfloat16"),))
    plan = make_plan(ModelSpec("m", 1, (layer,)), PlanSettings(memory=(1 << 20,), max_len=64))
    page = render_plan(summary(plan))
    assert "A chunk of 256 tokens takes 32.00 KiB" in page
    assert "0: &lt;b&gt;x.k" in page
    assert "<b>x" not in page


def test_without_torch_the_part_is_unsupported(monkeypatch):
    monkeypatch.setattr("kvproof.suites.reference.transfer.strategies.find_spec", lambda _: None)
    suite = bound(SUITE, reference_handle())
    assert suite.judged == []
    assert {suite.why_not(prop) for prop in suite.properties} == {
        "needs torch: pip install 'kvproof[gpu]'"
    }


def test_a_group_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(LayoutError, match=r"group 2 of 2; the groups are 0: 0.latent and"):
        LAYOUT.group(2)


@pytest.mark.parametrize("kind", ["window", "chunk"])
def test_a_window_without_a_size_is_refused(kind):
    geometry = Geometry(names=("k",), dtype="float16", heads=1, width=8, kind=kind, block=16)
    with pytest.raises(LayoutError, match=rf"group 0 \(k\) has a {kind} of 0 tokens"):
        ChunkLayout.of([geometry])
