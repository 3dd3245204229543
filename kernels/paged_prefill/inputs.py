"""Random inputs of a prefill cell: scattered pages, and NaN in everything that must not be read."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

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
from kvproof.kernels.paged_prefill.layouts import laid_out_pages, laid_out_queries
from kvproof.kernels.source import Source
from kvproof.kernels.spec import Case, Problem

NEVER_READ = 1 << 30
"""Page id of the padding of block tables, far outside of any pool."""


DRAFTS = 4
"""Tokens that a request which verifies drafts has new."""


class Request(NamedTuple):
    """Cached and new tokens of a request."""

    cached: int
    new: int

    @property
    def length(self) -> int:
        """All tokens."""
        return self.cached + self.new


def make(case: Case, source: Source) -> Problem:
    """The inputs of a cell.

    The requests are `equal`, `ragged` (log-uniform cached tokens, uniform new ones, the first
    request has the most of both), `edges` (nothing new, nothing cached, one token, one page and
    one token more or less) or steps of an engine: `step` (a chunk of `new` tokens, decodes, drafts,
    other chunks and whole prompts in any order), `decodes` (the chunk and decodes over half its
    context), `drafts` (two chunks over a quarter of the context and four drafts of each other
    request over all of it). Queries have twice the usual size, so that softmax is far from a plain
    mean. What a layout has between the tensors is NaN.
    """
    requests = requests_of(case)
    page, heads, dim = int(case["page"]), int(case["heads"]), int(case["head_dim"])
    kv_dtype = DTYPES[str(case["kv_dtype"])]
    dtype = kv_dtype if kv_dtype.itemsize == 2 else torch.bfloat16
    needs = [-(-request.length // page) for request in requests]
    order = source.permutation(sum(needs) + SPARE_PAGES)
    pools = laid_out_pages(case, source, [pool_of(case, source, len(order), dim) for _ in range(2)])
    scales = [scale_of(case, source, pool) for pool in pools]
    for tensor in (*pools, *scales):
        if tensor is not None and tensor.dim() > 1:
            poison_unowned(tensor, order[sum(needs) :])
            poison_leftovers(tensor, order, [one.length for one in requests], needs)
    starts = [0, *accumulate(request.new for request in requests)]
    query = (starts[-1], heads, dim)
    return Problem(
        {
            "q": laid_out_queries(case, source, source.normal(query, dtype, scale=2.0)),
            "k_pages": pools[0],
            "v_pages": pools[1],
            "block_table": _table(source, order, needs),
            "lengths": _int32(source, [request.length for request in requests]),
            "query_starts": _int32(source, starts),
            "out": source.output(query, dtype),
            "scale": dim**-0.5,
            "longest_query": max(request.new for request in requests),
            "longest": max(request.length for request in requests),
            "window": int(case["window"]),
            "soft_cap": float(case["soft_cap"]),
            "sinks": source.normal((heads,), torch.float32) if case["sinks"] else None,
            "k_scale": scales[0],
            "v_scale": scales[1],
        },
        ("out",),
    )


def requests_of(case: Case) -> list[Request]:
    """The requests of a cell; the same cell always has the same."""
    batch, page = int(case["batch"]), int(case["page"])
    most = Request(int(case["context"]), int(case["new"]))
    if case["lengths"] == "equal":
        return [most] * batch
    if case["lengths"] == "ragged":
        draw = np.random.default_rng(5)
        cached = np.exp(draw.uniform(0, np.log(most.cached + 1), batch)).astype(int) - 1
        new = draw.integers(0, most.new + 1, batch)
        drawn = [Request(int(old), int(fresh)) for old, fresh in zip(cached, new, strict=True)]
        return [most, *drawn[1:]]
    if case["lengths"] == "step":
        return _step(most, batch)
    if case["lengths"] == "decodes":
        return [most] + [Request(most.cached // 2, 1)] * (batch - 1)
    if case["lengths"] == "drafts":
        chunk = Request(most.cached // 4, most.new)
        return [chunk] * min(2, batch) + [Request(most.cached, DRAFTS)] * (batch - 2)
    edges = [
        most, Request(0, 0), Request(0, 1), Request(most.cached, 0), Request(0, most.new),
        Request(page, 1), Request(page - 1, most.new - 1), Request(page + 1, most.new),
        Request(0, page), Request(0, page + 1), Request(1, page - 1),
    ]  # fmt: skip
    return [edges[request % len(edges)] for request in range(batch)]


def _step(most: Request, batch: int) -> list[Request]:
    """The chunk, and requests of every kind: most of them decode, as in an engine."""
    draw = np.random.default_rng(batch + most.cached + most.new)
    kinds = draw.choice(("decode", "drafts", "chunk", "prompt"), batch, p=(0.6, 0.16, 0.12, 0.12))
    cached = np.exp(draw.uniform(0, np.log(most.cached + 1), batch)).astype(int) - 1
    chunks = draw.integers(1, most.new + 1, batch)
    drafts = draw.integers(2, 2 * DRAFTS + 1, batch)
    found = [
        Request(
            0 if kind == "prompt" else int(old),
            1 if kind == "decode" else int(few if kind == "drafts" else many),
        )
        for kind, old, few, many in zip(kinds, cached, drafts, chunks, strict=True)
    ]
    found[int(draw.integers(batch))] = most
    return found


def _int32(source: Source, values: list[int]) -> torch.Tensor:
    return source.put(torch.tensor(values, dtype=torch.int32))


def _table(source: Source, order: torch.Tensor, needs: list[int]) -> torch.Tensor:
    table = source.empty((len(needs), max(needs) + 1), torch.int32).fill_(NEVER_READ)
    return filled(table, order, needs)
