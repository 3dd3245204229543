"""Paged prefill attention: every small cell, and what the public function refuses."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.kernel_kit import DEVICE, judge, torch

from kvproof.kernels.checks import ArgumentError  # isort: skip - after the interpreter is chosen
from kvproof.kernels.paged_prefill import paged_prefill  # isort: skip - likewise
from kvproof.kernels.paged_prefill.cells import cpu, random_cells  # isort: skip - likewise
from kvproof.kernels.paged_prefill.sweep import KERNEL, OURS, TORCH, cost  # isort: skip - likewise
from kvproof.kernels.source import Source  # isort: skip - likewise
from kvproof.kernels.spec import cell_name  # isort: skip - likewise


@pytest.mark.parametrize("case", cpu(), ids=cell_name)
def test_every_small_cell_is_right(case):
    judge(KERNEL, OURS, case)


@pytest.mark.parametrize("case", random_cells(12, seed=3, small=True), ids=cell_name)
def test_random_cells_are_right(case):
    judge(KERNEL, OURS, case)
