"""The sets of cells of the indexer."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

from kvproof.kernels.spec import Case

CHOSEN = 2048
HEADS = 64
"""Tokens that DeepSeek-V3.2's indexer chooses for a query token, and its heads."""


def cell(
    *,
    page: int = 64,
    batch: int = 8,
    q_tokens: int = 1,
    heads: int = HEADS,
    context: int = 32768,
    chosen: int = CHOSEN,
    lengths: str = "equal",
    slots: bool = False,
) -> Case:
    """One cell; every axis is there, in the order of the signature.

    `lengths`: of requests, all the context, or `edges` (empty, one token, about a page, less than
    is chosen). `slots`: the answer names slots of pages, not positions.
    """
    return {
        "page": page, "batch": batch, "q_tokens": q_tokens, "heads": heads, "context": context,
        "chosen": chosen, "lengths": lengths, "slots": slots,
    }  # fmt: skip


def published() -> list[Case]:
    """Decode of DeepSeek-V3.2 with 1 and 2 query tokens, and a chunk of a prompt."""
    sizes = (
        (64, 1, 32768), (64, 2, 32768), (128, 1, 8192), (8, 1, 131072), (1, 1, 32768),
        (1, 1, 131072), (1, 2048, 32768),
    )  # fmt: skip
    return [cell(batch=batch, q_tokens=tokens, context=context) for batch, tokens, context in sizes]


def gpu() -> list[Case]:
    """Neighbours of the published shapes in every axis."""
    changes = (
        {"page": 1}, {"page": 16}, {"page": 48}, {"page": 256}, {"batch": 1}, {"batch": 3},
        {"batch": 70}, {"q_tokens": 2}, {"q_tokens": 3}, {"q_tokens": 4}, {"q_tokens": 5},
        {"q_tokens": 300, "batch": 1}, {"q_tokens": 130, "batch": 2}, {"heads": 1}, {"heads": 8},
        {"heads": 32}, {"heads": 40}, {"heads": 128}, {"chosen": 1}, {"chosen": 63},
        {"chosen": 512}, {"chosen": 1024}, {"slots": True}, {"lengths": "edges"},
        {"lengths": "edges", "q_tokens": 4, "slots": True}, {"context": 3000},
        {"context": 20000, "batch": 2}, {"context": 40001, "q_tokens": 2, "batch": 2},
        {"context": 300000, "batch": 1},
    )  # fmt: skip
    return [cell(**{"context": 8192, **change}) for change in changes]  # type: ignore[arg-type]  # any axis


def cpu() -> list[Case]:
    """Small cells for the interpreter: every feature, and their pairs."""
    grid = product((1, 8, 24), (1, 3, 6), ("equal", "edges"))
    return [
        cell(page=page, batch=4, q_tokens=tokens, heads=heads, context=90, chosen=chosen,
             lengths=lengths, slots=slots)
        for (page, tokens, lengths), heads, chosen, slots in zip(
            grid, (1, 5, 16) * 6, (1, 7, 20, 33, 64, 89) * 3, (False, True) * 9, strict=True
        )
    ]  # fmt: skip


def random_cells(count: int, *, seed: int = 0, small: bool = False) -> list[Case]:
    """Seeded shapes of any page, batch, heads and choice; `small` for the interpreter."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [
        cell(
            page=draw.choice((1, 8, 24, 64, 100, 256)),
            batch=draw.randint(1, 3 if small else 40),
            q_tokens=draw.choice((1, 1, 2, 3, 4, 7) if small else (1, 1, 2, 3, 4, 9, 60)),
            heads=draw.randint(1, 20) if small else draw.choice((1, 5, 16, 30, 64, 100, 128)),
            context=draw.randint(8, 150) if small else round(2 ** draw.uniform(6, 15)),
            chosen=draw.randint(1, 70) if small else draw.randint(1, 2100),
            lengths=draw.choice(("equal", "edges")),
            slots=draw.random() < 0.5,
        )
        for _ in range(count)
    ]


SETS: dict[str, Callable[[], list[Case]]] = {
    "cpu": cpu,
    "gpu": gpu,
    "published": published,
    "random": lambda: random_cells(100),
}
