"""How queries and pages of a cell lie in memory: tensors of their own, or views of larger ones.

`packed`: queries are columns of fused projections, and a page of keys is followed by its values.
`skewed-queries`, `skewed-pages`: one more element before every row, so that most rows start at odd
addresses. `heads-first`: a page holds the tokens of one head after those of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof.kernels.source import Source
from kvproof.kernels.spec import Case


def laid_out_queries(case: Case, source: Source, q: torch.Tensor) -> torch.Tensor:
    """The same queries in the layout of the cell."""
    tokens, heads, dim = q.shape
    if case["layout"] == "packed":
        fused = source.output((tokens, heads + 2 * int(case["kv_heads"]), dim), q.dtype)
        return fused[:, :heads].copy_(q)
    return _skewed(source, q) if case["layout"] == "skewed-queries" else q


def laid_out_pages(
    case: Case, source: Source, pools: Sequence[torch.Tensor]
) -> Sequence[torch.Tensor]:
    """The same keys and values in the layout of the cell."""
    if case["layout"] == "packed":
        return _packed(source, pools)
    if case["layout"] == "skewed-pages":
        return [_skewed(source, pool) for pool in pools]
    if case["layout"] == "heads-first":
        return [_heads_first(source, pool) for pool in pools]
    return pools


def _packed(source: Source, pools: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    pages, *rest = pools[0].shape
    both = source.empty((pages, len(pools), *rest), pools[0].dtype)
    return [both[:, which].copy_(pool) for which, pool in enumerate(pools)]


def _skewed(source: Source, rows: torch.Tensor) -> torch.Tensor:
    *most, heads, dim = rows.shape
    longer = source.output((*most, heads * dim + 1), rows.dtype)
    return longer[..., 1:].unflatten(-1, (heads, dim)).copy_(rows)


def _heads_first(source: Source, pool: torch.Tensor) -> torch.Tensor:
    pages, page, heads, dim = pool.shape
    return source.empty((pages, heads, page, dim), pool.dtype).transpose(1, 2).copy_(pool)
