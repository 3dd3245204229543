import pytest

from kvproof.suites.tests.kernels import kernel_kit
from kvproof.suites.tests.kernels.kernel_kit import DEVICE, judge, torch

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from triton.runtime.jit import KernelInterface

from kvproof.kernels import backend, dispatch, registry
from kvproof.kernels.spec import cell_name

PART = 3
"""Cells of a kernel that run here without Triton."""


def some_cells(name):
    cells = registry.kernel(name).cells["cpu"]()
    return cells[:: max(1, len(cells) // PART)]


CELLS = [
    pytest.param(name, cell, id=f"{name} {cell_name(cell)}")
    for name in registry.KERNELS
    for cell in some_cells(name)
]


@pytest.fixture
def without_triton(monkeypatch):
    """A machine on which Triton does not run: a launch would be a failure."""

    def refused(*_):
        raise AssertionError("a Triton kernel was launched")

    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(backend, "interpreted", lambda: False)
    monkeypatch.setattr(kernel_kit, "DEVICE", "cpu")
    monkeypatch.setattr(KernelInterface, "__getitem__", refused)


def test_every_kernel_has_its_operation():
    assert set(dispatch.OPERATIONS) == set(registry.KERNELS)
    for operations in dispatch.OPERATIONS.values():
        assert all(operation in vars(dispatch).values() for operation in operations)


def test_a_tensor_says_what_runs(monkeypatch):
    here = torch.zeros(1, device=DEVICE)
    assert dispatch.backend_of(here) == ("triton" if DEVICE == "cuda" else "interpreter")
    monkeypatch.setattr(backend, "interpreted", lambda: False)
    assert dispatch.backend_of(torch.zeros(1)) == "torch"


@pytest.mark.parametrize(("name", "cell"), CELLS)
def test_torch_gives_the_reference(name, cell, without_triton):
    judge(registry.kernel(name), registry.provider("kvproof").kernels[name], cell)
