"""The indexer in plain torch, some query tokens of a request at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from kvproof.kernels.indexer.keys import parts_of

TOKENS = 16
"""Query tokens whose products with all keys are held at once."""


def scores_of(
    q: torch.Tensor,
    weights: torch.Tensor,
    pages: torch.Tensor,
    ids: torch.Tensor,
    length: int,
    *,
    compute: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Scores [tokens, length] of the cached keys of a request for its query tokens, in `compute`.

    A score is the sum over heads of weight * relu(query * key); later positions than a query
    token's own have -inf. `ids` are the pages of the request, the other shapes those of a request
    of `indexer`.
    """
    values, scales = parts_of(pages)
    used = ids[: -(-length // pages.shape[1])].long()
    keys = values[used].view(torch.float8_e4m3fn).to(compute).flatten(0, 1)[:length]
    scale = scales[used].to(compute).flatten()[:length]
    found = torch.empty(len(q), length, dtype=compute, device=q.device)
    for start in range(0, len(q), TOKENS):
        some = slice(start, start + TOKENS)
        products = (q[some].to(compute) @ keys.T).relu_()
        found[some] = torch.einsum("thn,th->tn", products, weights[some].to(compute)) * scale
    own = torch.arange(length - len(q), length, device=q.device)[:, None]
    return found.masked_fill_(torch.arange(length, device=q.device) > own, -torch.inf)


def all_scores(
    q: torch.Tensor,
    weights: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    compute: torch.dtype = torch.float32,
) -> Iterator[torch.Tensor]:
    """The scores of each request in turn; waits for the device, to read the lengths."""
    for request, length in enumerate(lengths.tolist()):
        yield scores_of(
            q[request], weights[request], pages, block_table[request], length, compute=compute
        )


def indexer_torch(
    q: torch.Tensor,
    weights: torch.Tensor,
    pages: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    *,
    out: torch.Tensor,
    slots: bool = False,
    compute: torch.dtype = torch.float32,
) -> None:
    """Choose tokens; arguments and shapes are those of `indexer`."""
    page = pages.shape[1]
    for request, scores in enumerate(
        all_scores(q, weights, pages, block_table, lengths, compute=compute)
    ):
        chosen = best(scores, out.shape[2])
        if slots:
            at = chosen.clamp_min(0)
            found = block_table[request][at // page].long() * page + at % page
            chosen = found.masked_fill(chosen < 0, -1)
        out[request] = chosen.int()


def best(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Positions [tokens, count] of the highest of scores [tokens, any], ascending, then -1.

    Of equal scores the earlier position goes first; -inf is never chosen.
    """
    top = scores.sort(dim=1, descending=True, stable=True)
    some = top.indices[:, :count].masked_fill(top.values[:, :count] == -torch.inf, scores.shape[1])
    some = some.sort(dim=1).values
    found = torch.full((len(scores), count), -1, dtype=torch.int64, device=scores.device)
    found[:, : some.shape[1]] = some.masked_fill(some == scores.shape[1], -1)
    return found
