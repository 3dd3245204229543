"""Decode over shared prefixes, and drafts that branch."""

from __future__ import annotations

import pytest

from kvproof.suites.tests.kernels.kernel_kit import DEVICE, close, judge, torch

from kvproof.kernels.checks import ArgumentError  # isort: skip - after the interpreter is chosen
from kvproof.kernels.paged_prefill import Plan, paged_prefill, prefill_work, tree_masks  # isort: skip - likewise
from kvproof.kernels.paged_prefill import torch_reference  # isort: skip - likewise
from kvproof.kernels.paged_prefill.cells import cell as prefill_cell  # isort: skip - likewise
from kvproof.kernels.paged_prefill.sweep import KERNEL as PREFILL  # isort: skip - likewise
from kvproof.kernels.shared_prefix import cells as shared, launch, prefix_work, shared_prefix_decode  # isort: skip - likewise
from kvproof.kernels.shared_prefix import sweep as shared_sweep  # isort: skip - likewise
from kvproof.kernels.source import Source  # isort: skip - likewise
from kvproof.kernels.tree_attention import cells as trees, sweep as tree_sweep  # isort: skip - likewise

SHARED = shared.cell(page=4, head_dim=32, batch=7, prefixes=3, prefix=30, own=12, heads=4,
                     kv_heads=2, lengths="edges")  # fmt: skip
BRANCHING = trees.cell(page=4, head_dim=16, heads=4, kv_heads=2, batch=3, context=30, new=9)


def arguments_of(case, sweep=shared_sweep, **changed):
    return {**sweep.KERNEL.make(case, Source(seed=1, device=DEVICE)).arguments, **changed}


def test_without_triton_the_answers_are_the_same(monkeypatch):
    for module in ("paged_prefill", "paged_decode", "part_merge"):
        monkeypatch.setattr(f"kvproof.kernels.{module}.launch.runs_triton", lambda _: False)
    judge(shared_sweep.KERNEL, shared_sweep.OURS, {**SHARED, "sinks": True})
    judge(tree_sweep.KERNEL, tree_sweep.OURS, BRANCHING)


def test_baselines_of_torch_are_right_too():
    judge(shared_sweep.KERNEL, shared_sweep.TORCH, SHARED)
    judge(tree_sweep.KERNEL, tree_sweep.TORCH, BRANCHING)


def test_a_mask_holds_a_draft_and_its_ancestors():
    parents = torch.tensor([[-1, 0, 0, 1, 3, -1], [-1, 0, 1, 2, 3, 4]])
    seen = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 3, 4], [5]]
    first, chain = tree_masks(parents).tolist()
    assert first == [sum(1 << number for number in numbers) for numbers in seen]
    assert chain == [(2 << number) - 1 for number in range(6)]
    longest = tree_masks(torch.arange(64) - 1)
    assert longest[-1] == -1
    assert longest[62] == (1 << 63) - 1
    with pytest.raises(ArgumentError, match="a tree has 65 drafts, expected at most 64"):
        tree_masks(torch.arange(65) - 1)


def test_a_mask_of_ones_changes_nothing():
    case = prefill_cell(page=4, head_dim=16, heads=6, kv_heads=2, batch=9, context=90, new=80,
                        lengths="step")  # fmt: skip
    arguments = arguments_of(case, sweep=tree_sweep.prefill)
    paged_prefill(**arguments)
    expected = arguments["out"].clone()
    ones = torch.full((len(expected),), -1, dtype=torch.int64, device=DEVICE)
    paged_prefill(**arguments, tree=ones)
    close(arguments["out"], expected, PREFILL.tolerance(case), "out")


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("kv_dtype", ["bf16", "int8"])
def test_without_causality_all_positions_are_seen_however_few(kv_dtype, pieces):
    case = prefill_cell(page=4, head_dim=16, heads=4, kv_heads=2, batch=5, context=40, new=9,
                        kv_dtype=kv_dtype)  # fmt: skip
    arguments = arguments_of(case, sweep=tree_sweep.prefill)
    arguments["lengths"].copy_(torch.tensor([49, 0, 1, 5, 33]))
    plan = Plan(rows=16, tile=16, stages=1, pieces=pieces, gather=kv_dtype == "int8")
    sums = torch.full(arguments["q"].shape[:2], float("nan"), device=DEVICE)
    paged_prefill(**arguments, causal=False, lse=sums, plan=plan, check_contents=True)
    names = ("q", "k_pages", "v_pages", "block_table", "lengths", "query_starts", "scale",
             "k_scale", "v_scale")  # fmt: skip
    expected, whole = torch_reference.paged_prefill(
        **{name: arguments[name] for name in names}, causal=False
    )
    close(arguments["out"], expected, PREFILL.tolerance(case), "out")
    assert torch.equal(sums.isinf(), whole.isinf())
    assert sums[9:18].isinf().all()
    assert (sums - whole).nan_to_num().abs().max() < 1e-2


def test_a_division_serves_all_layers_of_a_step():
    arguments = arguments_of(SHARED)
    names = ("q", "k_pages", "v_pages", "prefix_table", "prefix_lengths", "prefix_starts",
             "most_sharing", "longest_prefix")  # fmt: skip
    work = prefix_work(**{name: arguments[name] for name in names})
    expected = shared_sweep.reference(SHARED, arguments)["out"]
    for _ in range(2):
        arguments["out"].fill_(float("nan"))
        shared_prefix_decode(**arguments, work=work)
        close(arguments["out"], expected, shared_sweep.tolerance(SHARED), "out")


def test_what_does_not_fit_is_refused():
    arguments = arguments_of(SHARED)
    wrong = {
        "prefix_starts has shape": {"prefix_starts": arguments["prefix_starts"][1:]},
        "prefix_table has shape": {"prefix_table": arguments["block_table"]},
        "prefix_lengths is torch.int64": {"prefix_lengths": arguments["prefix_lengths"].long()},
        "q has shape": {"q": arguments["q"][0]},
    }
    for message, changed in wrong.items():
        with pytest.raises(ArgumentError, match=message):
            shared_prefix_decode(**{**arguments, **changed})
    given = arguments_of(BRANCHING, sweep=tree_sweep)
    options = {
        "window is 5 with a tree": {"window": 5},
        "tree is given, and causal is False": {"causal": False},
        "tree has shape": {"tree": given["tree"][1:]},
        "tree is torch.int32": {"tree": given["tree"].int()},
    }
    for message, changed in options.items():
        with pytest.raises(ArgumentError, match=message):
            paged_prefill(**{**given, **changed})


def test_a_division_of_prefixes_is_none_of_a_causal_batch():
    arguments = arguments_of(BRANCHING, sweep=tree_sweep)
    names = ("q", "k_pages", "v_pages", "block_table", "lengths", "query_starts", "longest_query",
             "longest")  # fmt: skip
    work = prefill_work(**{name: arguments[name] for name in names}, causal=False)
    with pytest.raises(ArgumentError, match=r"work is for \(.*, False\), the arguments are"):
        paged_prefill(**arguments, work=work)


def test_prefixes_are_read_once(monkeypatch):
    """The part over prefixes has as many requests as there are prefixes."""
    seen, whole = [], launch.paged_prefill

    def counted(*given, **more):
        seen.append(len(given[4]))
        whole(*given, **more)

    monkeypatch.setattr(launch, "paged_prefill", counted)
    shared_prefix_decode(**arguments_of(SHARED))
    assert seen == [SHARED["prefixes"]]
