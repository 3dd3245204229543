import pytest

from kvproof.suites.tests.kernels.kernel_kit import judge

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels.host_transfer.sweep import KERNEL, OURS, TORCH
from kvproof.kernels.spec import cell_name

CELLS = KERNEL.cells["cpu"]()


@pytest.mark.parametrize("case", CELLS, ids=cell_name)
def test_exactly_the_wanted_bytes_move(case):
    judge(KERNEL, OURS, case)


@pytest.mark.parametrize("case", [c for c in CELLS if not TORCH.unsupported(c)], ids=cell_name)
def test_plain_torch_moves_the_same(case):
    judge(KERNEL, TORCH, case)
