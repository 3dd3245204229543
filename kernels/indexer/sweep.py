"""The indexer for sweeps: cells, inputs, the right answer, the least work."""

from __future__ import annotations

import torch

from kvproof.kernels.indexer.cells import SETS
from kvproof.kernels.indexer.keys import ROW, WIDTH, pack
from kvproof.kernels.indexer.launch import indexer, width_of, workspace
from kvproof.kernels.indexer.torch_reference import all_scores, indexer_torch
from kvproof.kernels.source import Source
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
"""Pages without a request; they hold NaN, as do the slots after the last token of a request."""


def make(case: Case, source: Source) -> Problem:
    """Keys of each request in scattered pages; every byte that no launch may read is NaN.

    Keys differ in size, so that scales matter; some weights are negative, as in the model.
    """
    page, batch, q_tokens, heads = (
        int(case[name]) for name in ("page", "batch", "q_tokens", "heads")
    )
    lengths = lengths_of(case)
    needs = [-(-length // page) for length in lengths]
    order = source.permutation(sum(needs) + SPARE_PAGES)
    pages = source.empty((len(order), page, ROW), torch.uint8)
    for start in range(0, len(order), _PIECE):
        pages[start : start + _PIECE] = pack(_keys(source, len(order[start:][:_PIECE]), page))
    pages[order[sum(needs) :].long()] = 0xFF
    table = source.empty((batch, max(1, -(-int(case["context"]) // page))), torch.int32)
    table.copy_(order[-1].expand_as(table))
    start = 0
    for request, (need, length) in enumerate(zip(needs, lengths, strict=True)):
        table[request, :need] = order[start : start + need]
        start += need
        if length % page:
            _poison_behind(pages[int(order[start - 1])], length % page)
    q = source.empty((batch, q_tokens, heads, WIDTH), torch.float8_e4m3fn)
    q.copy_(source.normal(tuple(q.shape), torch.float32))
    return Problem(
        {
            "q": q,
            "weights": source.normal((batch, q_tokens, heads), torch.float32).add_(0.5),
            "pages": pages,
            "block_table": table,
            "lengths": source.put(torch.tensor(lengths, dtype=torch.int32)),
            "out": source.output((batch, q_tokens, int(case["chosen"])), torch.int32),
            "slots": bool(case["slots"]),
        },
        ("out",),
    )


_PIECE = 4096
"""Pages whose keys are drawn at once."""


def _keys(source: Source, count: int, page: int) -> torch.Tensor:
    sizes = source.normal((count, page, 1), torch.float32, scale=0.7).exp()
    return source.normal((count, page, WIDTH), torch.float32) * sizes


def _poison_behind(page: torch.Tensor, live: int) -> None:
    """NaN in values and scales of a page [page, 132] from its token `live` on."""
    size, flat = len(page), page.view(-1)
    flat[live * WIDTH : size * WIDTH] = 0xFF
    flat[size * WIDTH + live * 4 :] = 0xFF


def lengths_of(case: Case) -> list[int]:
    """Tokens of each request; the same cell always has the same."""
    batch, context, page = (int(case[name]) for name in ("batch", "context", "page"))
    least, chosen = int(case["q_tokens"]), int(case["chosen"])
    if case["lengths"] == "equal":
        return [max(context, least)] * batch
    edges = [context, 0, 1, chosen + 1, chosen - 1, page + 1, context - 1]
    wanted = (edges[request % len(edges)] for request in range(batch))
    return [min(context, max(least, length)) if length > 0 else 0 for length in wanted]


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The highest scores in float64, descending; NaN where there are fewer than chosen."""
    given = _of_indexer(arguments)
    count = arguments["out"].shape[2]
    found = torch.full(arguments["out"].shape, torch.nan, device=arguments["q"].device)
    for request, scores in enumerate(all_scores(**given, compute=torch.float64)):
        top = scores.topk(min(count, scores.shape[1]), dim=1).values
        found[request, :, : top.shape[1]] = top.masked_fill(top == -torch.inf, torch.nan).float()
    return {"out": found}


def judged(
    _: Case, arguments: Arguments, outputs: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """The scores in float64 of the chosen tokens, descending; NaN for forbidden tokens.

    So the order of an answer does not matter, nor its choice among equal scores.
    """
    given = _of_indexer(arguments)
    found = torch.full(outputs["out"].shape, torch.nan, device=arguments["q"].device)
    for request, scores in enumerate(all_scores(**given, compute=torch.float64)):
        chosen = outputs["out"][request].long()
        if arguments["slots"]:
            chosen = _positions(chosen, arguments, request, scores.shape[1])
        found[request] = _chosen_scores(scores, chosen).float()
    return {"out": found}


def _positions(
    slots: torch.Tensor, arguments: Arguments, request: int, length: int
) -> torch.Tensor:
    """Positions of slots; of those that are none of the request, -1."""
    page, pages = arguments["pages"].shape[1], len(arguments["pages"])
    position = torch.arange(length, device=slots.device)
    own = arguments["block_table"][request][position // page].long() * page + position % page
    known = torch.full((pages * page + 1,), -1, dtype=torch.int64, device=slots.device)
    known[own] = position
    return known[torch.where((slots >= 0) & (slots < pages * page), slots, pages * page)]


def _chosen_scores(scores: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """Scores of chosen positions, descending; NaN at the end for none, twice, or out of sight."""
    length = scores.shape[1]
    known = (chosen >= 0) & (chosen < length)
    order = torch.where(known, chosen, length).sort(dim=1).values
    twice = torch.zeros_like(order, dtype=torch.bool)
    twice[:, 1:] = order[:, 1:] == order[:, :-1]
    padded = torch.nn.functional.pad(scores, (0, 1), value=-torch.inf)
    found = padded.gather(1, order).masked_fill(twice, -torch.inf)
    found = found.sort(dim=1, descending=True).values
    return found.masked_fill(found == -torch.inf, torch.nan)


def cost(_: Case, arguments: Arguments) -> Cost:
    """Keys are read once with their scales; a product of every head with each that is seen."""
    q, out = arguments["q"], arguments["out"]
    lengths = arguments["lengths"].tolist()
    seen = sum(
        q.shape[1] * length - q.shape[1] * (q.shape[1] - 1) // 2 for length in lengths if length
    )
    return Cost(
        read=sum(lengths) * ROW + q.nbytes + arguments["weights"].nbytes,
        write=out.nbytes,
        flops=2 * seen * q.shape[2] * WIDTH,
    )


def tolerance(_: Case) -> Tolerance:
    """Sums of FP8 products have fewer bits on tensor cores; neighbours in rank may be swapped."""
    return Tolerance(2e-3, 1e-2, "tensor cores add FP8 products with about 14 bits, as engines do")


def _of_indexer(arguments: Arguments) -> Arguments:
    return {name: each for name, each in arguments.items() if name not in ("out", "slots")}


def _prepare(_: Case, arguments: Arguments) -> Launch:
    q, out = arguments["q"], arguments["out"]
    width = width_of(arguments["pages"], arguments["block_table"])
    space = workspace(len(q) * q.shape[1], width, chosen=out.shape[2], device=q.device)
    return lambda: indexer(**arguments, space=space)


KERNEL = Kernel(
    name="indexer",
    sentence="scores of cached FP8 keys for query tokens, and the choice of the highest",
    axes={
        "page": [1, 16, 48, 64, 256],
        "batch": [1, 8, 64, 128],
        "q_tokens": [1, 2, 3, 4, 2048],
        "heads": [1, 16, 32, 64, 128],
        "context": [90, 8192, 32768, 131072],
        "chosen": [1, 512, 1024, 2048],
        "lengths": ["equal", "edges"],
        "slots": [False, True],
    },
    cells=SETS,
    make=make,
    reference=reference,
    cost=cost,
    tolerance=tolerance,
    ceiling="read",
    judged=judged,
)
OURS = Entry(prepare=_prepare)
TORCH = Entry(prepare=called(indexer_torch))
