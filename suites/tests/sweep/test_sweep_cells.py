"""The listed cells: enough of them, of every kernel, over every value of every axis."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="the extra gpu is not installed")
pytest.importorskip("triton", reason="the extra gpu is not installed")

from kvproof.harness.records.sweep_results import case_key
from kvproof.harness.sweep.worker_main import cells_of
from kvproof.kernels.registry import KERNELS, kernel, provider

LEAST = 400
"""Cells of the interpreter, over all kernels."""
SETS = ("cpu", "gpu", "published")


def values(name: str, axis: str, *sets: str) -> set[object]:
    return {case[axis] for case in cells_of(name, sets) if axis in case}


def test_the_interpreter_has_cells_enough() -> None:
    assert sum(len(cells_of(name, ["cpu"])) for name in KERNELS) >= LEAST


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_has_every_set_and_no_cell_twice(name: str) -> None:
    for each in (*SETS, "random:20"):
        cases = cells_of(name, [each])
        assert cases, each
        assert len({case_key(case) for case in cases}) == len(cases), each
        assert len({tuple(case) for case in cases}) == 1, f"{each}: cells differ in their axes"
    assert len(cells_of(name, ["random:20"])) == 20


@pytest.mark.parametrize("name", KERNELS)
def test_every_value_of_an_axis_is_in_some_cell(name: str) -> None:
    for axis, listed in kernel(name).axes.items():
        missing = set(listed) - values(name, axis, *SETS)
        assert not missing, f"no cell of {name} has {axis} in {missing}"


@pytest.mark.parametrize("name", KERNELS)
def test_our_kernels_and_torch_run_some_cell_of_every_kernel(name: str) -> None:
    for each in ("kvproof", "torch"):
        entry = provider(each).kernels[name]
        assert not all(entry.unsupported(case) for case in cells_of(name, ["cpu"])), each
    ours = provider("kvproof").kernels[name]
    refused = {why for case in cells_of(name, SETS) if (why := ours.unsupported(case))}
    assert refused == set()


def test_the_interpreter_sees_every_block_ratio() -> None:
    assert values("block_expand", "ratio", "cpu") >= {1, 2, 4, 8}
