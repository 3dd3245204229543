"""The cells of every kernel: the small ones and drawn ones are right, and all sets are complete."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest

from kvproof.suites.tests.kernels.kernel_kit import judge

# Kernels come after the interpreter is chosen, or the test is skipped.
# isort: split
from kvproof.kernels import registry
from kvproof.kernels.block_expand import sweep as block_expand
from kvproof.kernels.block_transfer import cells as block_transfer
from kvproof.kernels.indexer import cells as indexer
from kvproof.kernels.indexer_fill import sweep as indexer_fill
from kvproof.kernels.kv_fill import cells as kv_fill
from kvproof.kernels.latent_fill import sweep as latent_fill
from kvproof.kernels.paged_decode import cells as paged_decode
from kvproof.kernels.paged_prefill import cells as paged_prefill
from kvproof.kernels.shared_prefix import cells as shared_prefix
from kvproof.kernels.sparse_latent import cells as sparse_latent
from kvproof.kernels.spec import EXACT, cell_name, wrong_values
from kvproof.kernels.state_copy import sweep as state_copy
from kvproof.kernels.state_step import sweep as state_step
from kvproof.kernels.tree_attention import cells as tree_attention
from kvproof.suites.tests.fast_share import one_in

OURS = registry.provider("kvproof").kernels
TORCH = registry.provider("torch").kernels
SLOW = "runs kernels in Triton's interpreter"
FAST = {
    "paged_decode": 28,
    "paged_prefill": 14,
    "block_transfer": 8,
    "kv_fill": 6,
    "indexer": 4,
    "state_step": 6,
    "shared_prefix": 6,
    "tree_attention": 6,
}
"""Of kernels with many cells `make test` runs every n-th."""

BY_TORCH = {"block_expand": 8, "kv_fill": 6, "paged_decode": 12, "paged_prefill": 10, "indexer": 6}
"""Plain torch runs every n-th of these, and all of the others."""

DRAWN = {
    "paged_decode": one_in(4, paged_decode.random_cells(12, seed=10, small=True), reason=SLOW),
    "paged_prefill": paged_prefill.random_cells(10, seed=3, small=True),
    "indexer": indexer.random_cells(8, seed=2, small=True),
    "sparse_latent": sparse_latent.random_cells(8, seed=3, small=True),
    "state_step": one_in(4, state_step.random_cells(12, seed=4, small=True), reason=SLOW),
    "shared_prefix": shared_prefix.random_cells(3, seed=2, small=True),
    "tree_attention": tree_attention.random_cells(3, seed=2, small=True),
}
VARIED = {
    "paged_decode": set(),
    "indexer": {"batch", "context"},
    "indexer_fill": set(),
    "sparse_latent": {"tokens", "context"},
    "state_step": set(),
    "latent_fill": set(),
}
"""Kernels whose small cells vary every axis, but for those named."""

WITH_EVERY_AXIS = {*VARIED, "paged_prefill"}


def kernel(name):
    """A kernel, without the step of fp8 that other providers of the fill are allowed."""
    found = registry.kernel(name)
    return replace(found, tolerance=lambda _: EXACT) if name == "kv_fill" else found


def small(name):
    return registry.kernel(name).cells["cpu"]()


def named(name, cases):
    """The cases of a kernel for `parametrize`, with their marks."""
    params = [case if hasattr(case, "marks") else pytest.param(case) for case in cases]
    return [pytest.param(name, *each.values, marks=each.marks,
                         id=f"{name} {cell_name(each.values[0])}") for each in params]  # fmt: skip


def each_kernel(cases_of, names=registry.KERNELS):
    return [case for name in names for case in named(name, cases_of(name))]


@pytest.mark.parametrize("name", registry.KERNELS)
def test_every_value_of_every_cell_is_legal(name):
    subject = registry.kernel(name)
    cases = [case for make in subject.cells.values() for case in make()]
    assert [*chain.from_iterable(wrong_values(subject, case) for case in cases)] == []


def test_an_illegal_value_of_a_cell_is_named_with_the_legal_ones():
    subject = registry.kernel("kv_fill")
    case = {**small("kv_fill")[0], "cache": "int7", "page": -16, "dtype": True, "tokens": 2**40}
    assert sorted(wrong_values(subject, case)) == [
        "cache = 'int7', legal: same, fp8, int8, int4",
        "dtype = True, legal: bf16, fp16, fp32",
        "page = -16, legal: a number from 0 to 2,147,483,648",
        f"tokens = {2**40}, legal: a number from 0 to 2,147,483,648",
    ]


@pytest.mark.parametrize(
    ("name", "case"), each_kernel(lambda name: one_in(FAST.get(name, 1), small(name), reason=SLOW))
)
def test_every_small_cell_is_right(name, case):
    judge(kernel(name), OURS[name], case)


@pytest.mark.parametrize(("name", "case"), each_kernel(DRAWN.__getitem__, DRAWN))
def test_drawn_shapes_are_right(name, case):
    judge(kernel(name), OURS[name], case, seed=1)


@pytest.mark.parametrize(
    ("name", "case"),
    each_kernel(
        lambda name: [case for case in small(name) if not TORCH[name].unsupported(case)][
            :: BY_TORCH.get(name, 1)
        ]
    ),
)
def test_plain_torch_is_right_too(name, case):
    judge(kernel(name), TORCH[name], case)


@pytest.mark.parametrize(
    "cells",
    [block_expand, block_transfer, kv_fill, state_copy, state_step, indexer, indexer_fill,
     latent_fill, sparse_latent, paged_decode, paged_prefill, shared_prefix, tree_attention],
    ids=lambda module: module.__name__,
)  # fmt: skip
def test_random_shapes_come_from_the_seed(cells):
    draw = cells.random_cells
    assert draw(20, seed=3) == draw(20, seed=3) != draw(20, seed=4)


@pytest.mark.parametrize("name", VARIED)
def test_every_axis_of_the_kernel_varies_in_its_small_cells(name):
    for axis in set(registry.kernel(name).axes) - VARIED[name]:
        assert len({case[axis] for case in small(name)}) > 1, axis


@pytest.mark.parametrize("name", registry.KERNELS)
def test_every_set_has_cells_with_every_axis(name):
    described = registry.kernel(name)
    assert len({cell_name(case) for case in small(name)}) == len(small(name))
    for which, cells in described.cells.items():
        found = cells()
        assert found, which
        assert all(set(case) >= set(described.axes) for case in found), which
        if name in WITH_EVERY_AXIS:
            assert all(set(case) == set(described.axes) for case in found), which
