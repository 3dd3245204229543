import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels.block_expand import ExpandedTable, block_expand
from kvproof.kernels.block_expand.launch import choose
from kvproof.kernels.checks import ArgumentError


def ids(*rows):
    return torch.tensor(rows, dtype=torch.int32, device=DEVICE)


def test_the_null_block_becomes_its_own_kernel_blocks_and_minus_one_stays():
    expanded = block_expand(ids([5, 0, -1]), ratio=2)
    assert expanded.tolist() == [[10, 11, 0, 1, -1, -1]]


def test_ratio_one_copies_nothing():
    table = ids([3, 4])
    assert block_expand(table, ratio=1) is table


def test_no_rows_are_no_launch():
    assert block_expand(ids().view(0, 3), ratio=4).shape == (0, 12)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"ratio": 0}, "ratio is 0"),
        ({"block_table": ids([1]).long()}, "block_table is torch.int64"),
        ({"block_table": ids([1])[0]}, r"block_table has shape \(1,\)"),
        ({"block_table": ids([1, 2, 3, 4])[:, ::2]}, "must be contiguous"),
        ({"out": ids([0] * 7)}, "1 rows of 7 kernel blocks, but 1 rows of 2 blocks are 8"),
        ({"out": torch.zeros((1, 8), device=DEVICE)}, "out is torch.float32"),
        (
            {"block_table": ids([0, 1 << 29]), "check_ids": True},
            "expected -2147483648 to 536870911",
        ),
    ],
)
def test_an_argument_that_does_not_fit_is_named(changed, words):
    with pytest.raises(ArgumentError, match=words):
        block_expand(**{"block_table": ids([1, 2]), "ratio": 4} | changed)


def blocks(*shape):
    return torch.randint(0, 1000, shape, dtype=torch.int32)


def expanded(table, ratio):
    kernel_blocks = table[:, :, None] * ratio + torch.arange(ratio, dtype=torch.int32)
    return kernel_blocks.flatten(1)


@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
def test_capacity_is_counted_in_kernel_blocks(ratio):
    buffer = ExpandedTable(rows=3, kernel_blocks=16, ratio=ratio, device=DEVICE)
    table = blocks(3, 16 // ratio)
    assert torch.equal(buffer.put(table).cpu(), expanded(table, ratio))
    with pytest.raises(ArgumentError, match=f"{16 + ratio} kernel blocks each; the buffer holds 3"):
        buffer.put(blocks(3, 16 // ratio + 1))
    with pytest.raises(ArgumentError, match="4 rows of 1 blocks"):
        buffer.put(blocks(4, 1))


def test_what_a_graph_reads_never_moves():
    buffer = ExpandedTable(rows=4, kernel_blocks=32, ratio=4, device=DEVICE)
    address = buffer.kernel_blocks.data_ptr()
    for rows, width in ((4, 8), (1, 3), (2, 1)):
        table = blocks(rows, width)
        view = buffer.put(table)
        assert view.data_ptr() == address
        assert torch.equal(view.cpu(), expanded(table, 4))
    assert buffer.kernel_blocks.data_ptr() == address


def test_a_smaller_table_leaves_the_rest_as_it_was():
    buffer = ExpandedTable(rows=2, kernel_blocks=8, ratio=2, device=DEVICE)
    before, after = blocks(2, 4), blocks(1, 2)
    buffer.put(before)
    buffer.put(after)
    buffer.put(blocks(0, 4))
    whole = expanded(before, 2)
    whole[:1, :4] = expanded(after, 2)
    assert torch.equal(buffer.kernel_blocks.cpu(), whole)


def test_the_table_may_change_once_it_is_put():
    buffer = ExpandedTable(rows=64, kernel_blocks=2048, ratio=2, device=DEVICE)
    table = torch.zeros((64, 1024), dtype=torch.int32)
    views = []
    for value in range(3):
        table.fill_(value)
        views.append(buffer.put(table).clone())
    assert [view[:, ::2].unique().tolist() for view in views] == [[0], [2], [4]]


def test_parts_of_a_larger_table_can_be_put():
    buffer = ExpandedTable(rows=4, kernel_blocks=32, ratio=4, device=DEVICE)
    large = blocks(9, 50)
    assert torch.equal(buffer.put(large[2:5, 10:15]).cpu(), expanded(large[2:5, 10:15], 4))


def test_a_table_of_other_integers_is_refused():
    buffer = ExpandedTable(rows=1, kernel_blocks=8, ratio=2, device=DEVICE)
    with pytest.raises(ArgumentError, match=r"table is torch\.int64, expected int32"):
        buffer.put(torch.zeros((1, 2), dtype=torch.int64))
    with pytest.raises(ArgumentError, match="holds no block"):
        ExpandedTable(rows=1, kernel_blocks=1, ratio=2, device=DEVICE)


def test_small_tables_are_spread_and_large_ones_are_not():
    sizes = [choose(rows, 2048, 4, torch.device("cpu")).blocks for rows in (1, 16, 256)]
    assert sizes == sorted(sizes)
