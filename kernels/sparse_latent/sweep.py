"""Sparse latent attention for sweeps: cells, inputs, the right answer, the least work."""

from __future__ import annotations

import torch

from kvproof.kernels.source import Source
from kvproof.kernels.sparse_latent.cells import SETS
from kvproof.kernels.sparse_latent.launch import sparse_latent, workspace
from kvproof.kernels.sparse_latent.rows import KEYS, ROW, VALUES, pack
from kvproof.kernels.sparse_latent.torch_reference import sparse_latent_torch
from kvproof.kernels.spec import (
    Arguments,
    Case,
    Cost,
    Entry,
    Kernel,
    Launch,
    Problem,
    Tolerance,
    called,
)

SPARE_PAGES = 2
"""Pages without a request; they hold NaN."""


def make(case: Case, source: Source) -> Problem:
    """Rows of `context` tokens for all query tokens, of which each chooses some, scattered.

    Query tokens share the context, as those of a prompt or of a few requests do; every byte of a
    row that no launch may read is NaN.
    """
    page, tokens, heads = (int(case[name]) for name in ("page", "tokens", "heads"))
    context, chosen = int(case["context"]), int(case["chosen"])
    used = -(-context // page)
    columns = source.normal((used + SPARE_PAGES, page, KEYS), torch.float32)
    # Tokens differ in size, as after a norm, and so do groups of their columns: scales matter.
    columns *= (
        source.normal((used + SPARE_PAGES, page, KEYS // 64), torch.float32, scale=0.2)
        .exp()
        .repeat_interleave(64, -1)
    )
    pages = _rows(str(case["kv_dtype"]), columns, source)
    order = source.permutation(used + SPARE_PAGES)
    pages.view(torch.uint8)[order[used:]] = 0xFF
    position = _positions(case, source, tokens, chosen, context)
    slots = order[position.clamp_min(0) // page].int() * page + position % page
    indices = source.put(torch.where(position < 0, -1, slots).int().cpu())
    return Problem(
        {
            "q": source.normal((tokens, heads, KEYS), torch.bfloat16, scale=2.0),
            "pages": pages,
            "indices": indices,
            "out": source.output((tokens, heads, VALUES), torch.bfloat16),
            "scale": KEYS**-0.5,
            "sinks": source.normal((heads,), torch.float32) if case["sinks"] else None,
        },
        ("out",),
    )


def _rows(kv_dtype: str, columns: torch.Tensor, source: Source) -> torch.Tensor:
    if kv_dtype == "bf16":
        pages = source.empty(tuple(columns.shape), torch.bfloat16)
        return pages.copy_(columns)
    pages = source.empty((*columns.shape[:2], ROW), torch.uint8)
    return pages.copy_(pack(columns))


def _positions(case: Case, source: Source, tokens: int, chosen: int, context: int) -> torch.Tensor:
    """Positions that each query token chooses, [tokens, chosen] int64; -1 for none."""
    found = source.integers((tokens, chosen), low=0, high=context).long()
    hole = source.integers((tokens, chosen), low=0, high=4).long() == 0
    rank = torch.arange(chosen, device=found.device)
    ends = source.integers((tokens, 1), low=1, high=chosen + 1).long()
    ends[::2] = chosen
    if case["holes"] == "tail":
        found[rank >= ends] = -1
    elif case["holes"] in ("mixed", "all"):
        found[hole] = -1
    if case["holes"] == "all":
        found[0] = -1
    return found


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The answer in float64, rounded once."""
    out = torch.empty_like(arguments["out"])
    sparse_latent_torch(**{**arguments, "out": out}, compute=torch.float64)
    return {"out": out}


def cost(_: Case, arguments: Arguments) -> Cost:
    """Chosen rows are read once for each query token; two products of every head with them."""
    q, indices, out = arguments["q"], arguments["indices"], arguments["out"]
    seen = int((indices >= 0).sum())
    pages = arguments["pages"]
    return Cost(
        read=seen * pages.shape[2] * pages.itemsize + q.nbytes + indices.nbytes,
        write=out.nbytes,
        flops=2 * seen * q.shape[1] * (KEYS + VALUES),
    )


def tolerance(case: Case) -> Tolerance:
    """Rounding of scaled values, of the weights and of the answer to bfloat16."""
    if case["kv_dtype"] == "bf16":
        return Tolerance(5e-3, 1.5e-2, "weights and answer are rounded to bfloat16")
    return Tolerance(
        1e-2, 2e-2, "scaled values, weights and answer may be rounded to bfloat16, as engines do"
    )


def _prepare(_: Case, arguments: Arguments) -> Launch:
    space = workspace(arguments["q"].shape[1], device=arguments["q"].device)
    return lambda: sparse_latent(**arguments, space=space)


KERNEL = Kernel(
    name="sparse_latent",
    sentence="latent attention of query tokens over the rows that each has chosen",
    axes={
        "page": [1, 16, 48, 64, 256],
        "tokens": [1, 2, 8, 64, 128, 2048],
        "heads": [3, 16, 17, 64, 128],
        "context": [60, 8192, 32768],
        "chosen": [1, 20, 33, 64, 1024, 2048],
        "holes": ["none", "tail", "mixed", "all"],
        "sinks": [False, True],
        "kv_dtype": ["fp8", "bf16"],
    },
    cells=SETS,
    make=make,
    reference=reference,
    cost=cost,
    tolerance=tolerance,
    ceiling="matmul",
)
OURS = Entry(prepare=_prepare)
TORCH = Entry(prepare=called(sparse_latent_torch))
