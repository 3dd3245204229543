"""Transfers of real geometries, of every width, through the kernel, and what they refuse."""

import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels.backend import runs_triton
from kvproof.reference.transfer.blocks import (
    Part,
    TransferError,
    needed_blocks,
    pages,
    parts_of,
)
from kvproof.reference.transfer.chunk_layout import ChunkLayout, Geometry, LayoutError
from kvproof.reference.transfer.grouped import Transfer
from kvproof.reference.transfer.host_object import HostObject, Piece, copy_bytes, pieces
from kvproof.reference.transfer.layer_groups import layer_groups
from kvproof.reference.transfer.layouts import Hint
from kvproof.reference.transfer.staging import Staging
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.transfer.draws import MODELS, model
from kvproof.suites.reference.transfer.machine import TransferMachine
from kvproof.suites.reference.transfer.oracle import NUMBERS
from kvproof.suites.reference.transfer.properties import PROPERTIES
from kvproof.suites.tests.lab.stress.transfer.round_trip import every_width, mix, round_trip


@pytest.fixture
def compiled_only(monkeypatch):
    """Other tests of this process may have chosen Triton's interpreter, which is slow."""
    monkeypatch.setattr("kvproof.kernels.block_transfer.launch.runs_triton", lambda _: False)


def comes_back(config):
    coverage = round_trip(config)
    assert coverage.checks["stored_bytes_equal_the_pages"] == 1
    assert coverage.checks["retrieved_bytes_reach_their_blocks"] == 2
    assert coverage.checks["skipped_tokens_stay_untouched"] == 1


@pytest.mark.usefixtures("compiled_only")
@pytest.mark.parametrize("slots", [0, 3], ids=["straight", "staged"])
@pytest.mark.parametrize("name", MODELS)
def test_real_models_go_out_and_come_back(name, slots):
    comes_back(model(name, slots))


def test_enough_real_models_are_there():
    assert len(MODELS) >= 12
    layouts = {cache["layout"] for caches in MODELS.values() for cache in caches}
    assert {"kv-nhd", "kv-hnd", "page-kv-nhd", "nhd", "latent", "indexer", "state"} <= layouts


@pytest.mark.usefixtures("compiled_only")
@pytest.mark.parametrize("slots", [0, 2], ids=["straight", "staged"])
@pytest.mark.parametrize(
    "config", list(every_width(turns=2)), ids=lambda config: config["caches"][0]["head"]
)
def test_heads_of_every_width_move_in_every_layout(config, slots):
    """Each width from 1 to 1,200 bytes meets two layouts, each layout all kinds of widths."""
    comes_back({**config, "slots": slots})


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU the interpreter is not chosen")
@pytest.mark.parametrize("layout", sorted(NUMBERS))
def test_the_kernel_moves_the_same_in_the_interpreter(layout):
    assert runs_triton(torch.zeros(1))
    comes_back({**mix([layout], [33]), "slots": 2})


def small(**more):
    hint = Hint(layout="kv-nhd", **more)
    layers = [torch.zeros((2, 9, 4, 2, 8), dtype=torch.bfloat16) for _ in range(2)]
    groups = layer_groups(layers, hint=hint)
    return groups, groups.layout(tokens=8)


def test_a_window_gives_only_what_a_hit_needs():
    groups, layout = small(kind="window", size=6)
    assert layout.groups[0].tokens == 8
    assert needed_blocks(layout, length=16) == ((range(0), range(2)),)
    assert needed_blocks(layout, length=16, first_chunk=1) == ((range(2),),)
    assert needed_blocks(layout, length=12) == ((range(1, 2), range(1)),)
    assert groups.groups[0].geometry.kind == "window"


@pytest.mark.parametrize("length", [-1, 17])
def test_a_length_beyond_the_chunks_is_refused(length):
    _, layout = small()
    with pytest.raises(LayoutError, match=f"length {length} with 2 chunks of 8 tokens"):
        needed_blocks(layout, length=length, chunks=2)


def test_pages_of_the_null_block_are_all_null():
    assert pages([3, 0, 1], 1) == [3, 0, 1]
    assert pages([3, 0, 1], 2) == [6, 7, 0, 0, 2, 3]


def test_parts_say_what_is_whole_and_what_is_nothing():
    _, layout = small()
    ((first, second),) = parts_of(layout, [[1, 2, 3, 0]], chunks=2, skip_first_tokens=6)
    assert (first, second) == (Part([1, 2], 6, 8), Part([3, 0], 0, 8))
    assert not any(part.whole or part.nothing for part in (first, second))
    assert Part([1, 2], 8, 8).nothing
    assert Part([0, 0], 0, 8).nothing
    assert Part([1, 2], 0, 8).whole


def test_errors_name_both_sizes_before_anything_moves():
    groups, layout = small()
    transfer, made = Transfer(groups, layout), HostObject.allocate(layout)
    for ids, words in (
        ([[1, 9]], "group 0 has ids 1 to 9, expected 0 to 8"),
        ([[1, -2]], "group 0 has ids -2 to 1, expected 0 to 8"),
        ([[1, 2, 3]], "group 0 has 3 ids, 1 chunks of 2 need 2"),
        ([[1, 2], [1, 2]], "ids of 2 groups, the layout has 1"),
    ):
        with pytest.raises(TransferError) as refused:
            transfer.store(ids, [made])
        assert str(refused.value) == words
    with pytest.raises(TransferError, match="group 0 would write block 3 twice"):
        transfer.retrieve([[3, 3]], [made])
    other = HostObject.allocate(groups.layout(tokens=16))
    with pytest.raises(TransferError, match=r"object 0 has another layout, of 2048 bytes; .* 1024"):
        transfer.store([[1, 2]], [other])


def test_groups_layout_and_staging_belong_together():
    groups, layout = small()
    other = ChunkLayout.of([Geometry(names=("x",), dtype="uint8", heads=1, width=1)])
    with pytest.raises(LayoutError, match="the layout has groups"):
        Transfer(groups, other)
    with pytest.raises(LayoutError, match="a slot of the staging is for chunks of 256 bytes"):
        Transfer(groups, layout, staging=Staging(other))
    with pytest.raises(LayoutError, match="a staging of 0 slots"):
        Staging(layout, slots=0)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda staging: staging.slot(4), "slot 4, expected 0 to 3"),
        (lambda staging: staging.slot(-1), "slot -1, expected 0 to 3"),
        (lambda staging: staging.view(0, 1), "group 1 of 1"),
        (lambda staging: staging.batch(0, 5), "a batch of 5 slots from slot 0 on, there are 4"),
        (lambda staging: staging.batch(0, 3, first=2), "a batch of 3 slots from slot 2 on"),
    ],
)
def test_a_staging_answers_wrong_indices_with_both_numbers(ask, words):
    _, layout = small()
    with pytest.raises(ValueError, match=words):
        ask(Staging(layout))


def test_views_of_slots_are_their_bytes():
    _, layout = small()
    staging = Staging(layout, slots=3)
    staging.view(1, 0).fill_(1)
    staging.slot(0).fill_(9)
    assert staging.batch(0, 2, first=1)[0].unique().tolist() == [63, 128]
    assert staging.rows(1, 0).shape == (2, 2, 8, 32)
    assert staging.slot(1).data_ptr() == staging.buffer.data_ptr() + layout.nbytes


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (torch.zeros(1023, dtype=torch.uint8), "has 1023 bytes, its layout 1024"),
        (torch.zeros(1024, dtype=torch.int8), "is torch.int8"),
        (torch.zeros((2, 512), dtype=torch.uint8), r"is torch.uint8 \[2, 512\]"),
        (torch.zeros(2048, dtype=torch.uint8)[::2], r"with strides \(2,\)"),
    ],
)
def test_memory_that_is_no_object_is_refused(raw, words):
    _, layout = small()
    with pytest.raises(LayoutError, match=words):
        HostObject(layout, raw)


def test_an_object_lies_over_memory_of_somebody_else():
    _, layout = small()
    memory = bytearray(layout.nbytes)
    HostObject.over(layout, memory).get_tensor(0).fill_(1)
    assert set(memory) == {0x80, 0x3F}


def test_the_only_tensor_of_several_groups_is_an_error_that_names_them():
    layers = {"a": torch.zeros(3, 4, 8), "b": torch.zeros(3, 4, 6)}
    layout = layer_groups(layers).layout(tokens=4)
    with pytest.raises(LayoutError, match=r"2 groups, not one tensor; .* 0: a; 1: b"):
        _ = HostObject.allocate(layout).tensor
    assert HostObject.allocate(small()[1]).tensor.shape == (2, 2, 8, 2, 8)


def test_pieces_end_at_borders():
    assert pieces(5, 10) == [Piece(5, 10)]
    assert pieces(5, 10, segment=4) == [Piece(5, 3), Piece(8, 4), Piece(12, 3)]
    assert pieces(8, 4, segment=4) == [Piece(8, 4)]
    assert pieces(8, 0, segment=4) == []
    for start, nbytes, more in ((-1, 2, {}), (0, 5, {"capacity": 4}), (0, 2, {"segment": -1})):
        with pytest.raises(LayoutError):
            pieces(start, nbytes, **more)
    with pytest.raises(LayoutError, match="bytes 4611686018427387904 to 13835058055282163711"):
        pieces(1 << 62, (1 << 63) - 1, capacity=1 << 62)


def test_bytes_beyond_an_object_are_not_copied():
    _, layout = small()
    made = HostObject.allocate(layout)
    with pytest.raises(LayoutError, match="bytes 1020 to 1030 do not fit in 1024"):
        copy_bytes(made, 1020, torch.ones(10, dtype=torch.uint8))
    with pytest.raises(LayoutError, match="byte -1 of an object"):
        copy_bytes(made, -1, torch.ones(1, dtype=torch.uint8))
    assert not made.raw.any()


def test_large_pages_are_those_of_one_run():
    sizes = {"l": (3, 64, 8, 4096), "s": (3, 64, 8, 2048)}
    groups = layer_groups(
        {name: torch.zeros(shape, dtype=torch.uint8) for name, shape in sizes.items()},
        hint=Hint(layout="nhd"),
    )
    found = Transfer(groups, groups.layout(tokens=64))
    assert [found.moved_by_engine(group) for group in groups.groups] == [True, False]
    turned = layer_groups([torch.zeros((3, 8, 64, 4096))], hint=Hint(layout="hnd"))
    transfer = Transfer(turned, turned.layout(tokens=64))
    assert not transfer.moved_by_engine(turned.groups[0])


def test_a_copy_counts_every_byte_of_its_memory():
    """The oracle's bytes are those of the tensors: no view is a copy."""
    world = TransferMachine(model("DeepSeek-V3.2 and GLM-5", 0), Coverage(PROPERTIES))
    for name, tensor in world.subject.tensors.items():
        assert tensor.data_ptr() == world.subject.pages[name].read().ctypes.data
