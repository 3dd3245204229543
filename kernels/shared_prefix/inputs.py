"""Random inputs of a cell of shared prefixes: scattered pages, NaN wherever nothing may be read."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

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


class Sizes(NamedTuple):
    """Requests of each prefix, tokens of each prefix, own tokens of each request."""

    sharing: list[int]
    prefixes: list[int]
    own: list[int]


def sizes_of(case: Case) -> Sizes:
    """The sizes of a cell; the same cell always has the same.

    `equal`: as the axes say. `edges`: prefixes of no token, one, a page and one more or less, the
    later ones of no request; requests likewise.
    """
    batch, count, page = (int(case[name]) for name in ("batch", "prefixes", "page"))
    long, own, least = (int(case[name]) for name in ("prefix", "own", "q_tokens"))
    if case["lengths"] == "equal":
        cuts = [batch * number // count for number in range(count + 1)]
        sharing = [high - low for low, high in pairwise(cuts)]
        return Sizes(sharing, [long] * count, [max(own, least)] * batch)
    edges = [long, 0, 1, page - 1, page, page + 1, max(0, long - 1)]
    prefixes = [min(long, edges[number % len(edges)]) for number in range(count)]
    sharing = [0] * count
    for request in range(batch):
        sharing[request * request % count] += 1
    few = [own, 0, least, page, page + 1, own]
    rows = [few[request % len(few)] for request in range(batch)]
    return Sizes(sharing, prefixes, [max(least, min(own, row)) if row else 0 for row in rows])


def make(case: Case, source: Source) -> Problem:
    """The inputs of a cell; queries are of twice the usual size, so softmax is no plain mean."""
    sharing, prefixes, own = sizes_of(case)
    page, heads, dim = (int(case[name]) for name in ("page", "heads", "head_dim"))
    kv_dtype = DTYPES[str(case["kv_dtype"])]
    dtype = kv_dtype if kv_dtype.itemsize == 2 else torch.bfloat16
    tokens = [*prefixes, *own]
    needs = [-(-length // page) for length in tokens]
    order = source.permutation(sum(needs) + SPARE_PAGES)
    pools = [pool_of(case, source, len(order), dim) for _ in range(2)]
    scales = [scale_of(case, source, pool) for pool in pools]
    for tensor in (*pools, *scales):
        if tensor is not None and tensor.dim() > 1:
            poison_unowned(tensor, order[sum(needs) :])
            poison_leftovers(tensor, order, tokens, needs)
    query = (len(own), int(case["q_tokens"]), heads)
    tables = _tables(source, order, needs, len(prefixes))
    starts = [0, *accumulate(count * query[1] for count in sharing)]
    return Problem(
        {
            "q": source.normal((*query, dim), dtype, scale=2.0),
            "k_pages": pools[0],
            "v_pages": pools[1],
            "prefix_table": tables[0],
            "prefix_lengths": _int32(source, prefixes),
            "prefix_starts": _int32(source, starts),
            "block_table": tables[1],
            "lengths": _int32(source, own),
            "out": source.output((*query, dim), dtype),
            "lse": source.output(query, torch.float32),
            "scale": dim**-0.5,
            "most_sharing": max(sharing),
            "longest_prefix": max(prefixes),
            "soft_cap": float(case["soft_cap"]),
            "sinks": source.normal((heads,), torch.float32) if case["sinks"] else None,
            "k_scale": scales[0],
            "v_scale": scales[1],
        },
        ("out", "lse"),
    )


def _tables(
    source: Source, order: torch.Tensor, needs: list[int], prefixes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages of prefixes and of requests; padding is a spare page."""
    found, first = [], 0
    for some in (needs[:prefixes], needs[prefixes:]):
        table = source.empty((len(some), max(some) + 1), torch.int32)
        table.copy_(order[-1].expand_as(table))
        found.append(filled(table, order[first:], some))
        first += sum(some)
    return found[0], found[1]


def _int32(source: Source, values: list[int]) -> torch.Tensor:
    return source.put(torch.tensor(values, dtype=torch.int32))
