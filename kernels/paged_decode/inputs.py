"""Random inputs of a decode cell: scattered pages, and NaN wherever nothing may be read."""

from __future__ import annotations

import math

import numpy as np
import torch

from kvproof.kernels.paged_inputs import (
    DTYPES,
    SPARE_PAGES,
    filled,
    poison_leftovers,
    poison_unowned,
    pool_of,
    scale_of,
)
from kvproof.kernels.source import Source
from kvproof.kernels.spec import Case, Problem

SHORTEST_RAGGED = 512


def make(case: Case, source: Source) -> Problem:
    """The inputs of a cell.

    Lengths are `equal`, `ragged` (log-uniform from 512 to the context, one of them the longest) or
    `edges` (empty, 1, page - 1, page, page + 1, one short of the context, the context).
    `latent` is the number of leading columns of the keys that are the values; 0: values of their
    own. `leftovers` and `scales`: see `cell`. Queries are of twice the usual size, so that softmax
    is far from a plain mean.
    """
    lengths = lengths_of(case)
    page, heads, dim = int(case["page"]), int(case["heads"]), int(case["head_dim"])
    value_dim = int(case["latent"]) or dim
    kv_dtype = DTYPES[str(case["kv_dtype"])]
    dtype = kv_dtype if kv_dtype.itemsize == 2 else torch.bfloat16
    needs = [-(-length // page) for length in lengths]
    order = source.permutation(sum(needs) + SPARE_PAGES)
    table = _table(case, source, order, needs)
    pools = [pool_of(case, source, len(order), dim)]
    if not case["latent"]:
        pools.append(pool_of(case, source, len(order), dim))
    scales = [scale_of(case, source, pool) for pool in pools]
    for tensor in (*pools, *scales):
        if tensor is not None and tensor.dim() > 1:
            poison_unowned(tensor, order[sum(needs) :])
            if case["leftovers"] == "nan":
                poison_leftovers(tensor, order, lengths, needs)
    query = (len(lengths), int(case["q_tokens"]), heads)
    sinks = source.normal((heads,), torch.float32) if case["sinks"] else None
    return Problem(
        {
            "q": source.normal((*query, dim), dtype, scale=2.0),
            "k_pages": pools[0],
            "v_pages": None if case["latent"] else pools[1],
            "block_table": table,
            "lengths": source.put(torch.tensor(lengths, dtype=torch.int32)),
            "out": source.output((*query, value_dim), dtype),
            "scale": dim**-0.5,
            "window": int(case["window"]),
            "soft_cap": float(case["soft_cap"]),
            "sinks": sinks,
            "k_scale": scales[0],
            "v_scale": None if case["latent"] else scales[1],
        },
        ("out",),
    )


def lengths_of(case: Case) -> list[int]:
    """Tokens of each request; the same cell always has the same."""
    batch, context, page = int(case["batch"]), int(case["context"]), int(case["page"])
    if case["lengths"] == "equal":
        return [context] * batch
    if case["lengths"] == "ragged":
        shortest = math.log(min(SHORTEST_RAGGED, context))
        drawn = np.random.default_rng(5).uniform(shortest, math.log(context), batch)
        return [context, *(int(length) for length in np.exp(drawn[1:]))]
    least = int(case["q_tokens"])
    edges = [context, 0, 1, page - 1, page, page + 1, context - 1]
    wanted = [edges[request % len(edges)] for request in range(batch)]
    return [min(context, max(least, length)) if length else 0 for length in wanted]


def _table(case: Case, source: Source, order: torch.Tensor, needs: list[int]) -> torch.Tensor:
    """Pages of each request in the scattered order, with padding after them."""
    width = -(-int(case["context"]) // int(case["page"])) + 1
    table = source.empty((len(needs), width), torch.int32)
    table.copy_(order[-1].expand_as(table))
    return filled(table, order, needs)
