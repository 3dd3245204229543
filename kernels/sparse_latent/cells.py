"""The sets of cells of sparse latent attention."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

from kvproof.kernels.spec import Case

CHOSEN = 2048
"""Tokens that DeepSeek-V3.2's indexer chooses for a query token."""


def cell(
    *,
    page: int = 64,
    tokens: int = 8,
    heads: int = 128,
    context: int = 32768,
    chosen: int = CHOSEN,
    holes: str = "tail",
    sinks: bool = False,
    kv_dtype: str = "fp8",
) -> Case:
    """One cell; every axis is there, in the order of the signature.

    `tokens` are query tokens, each with a context of its own. `holes`: where indices are -1, at
    the `tail` of rows of some tokens, `none` at all, `mixed` among the others, or in `all` of the
    first token's row too.
    """
    return {
        "page": page, "tokens": tokens, "heads": heads, "context": context, "chosen": chosen,
        "holes": holes, "sinks": sinks, "kv_dtype": kv_dtype,
    }  # fmt: skip


def published() -> list[Case]:
    """The shapes that FlashMLA's figures are stated for, and a chunk of a prompt."""
    sizes = ((128, 128), (128, 64), (64, 128), (64, 64), (128, 1), (128, 2048))
    return [
        cell(heads=heads, tokens=tokens, holes="none", kv_dtype=dtype)
        for dtype in ("fp8", "bf16")
        for heads, tokens in sizes
    ]


def gpu() -> list[Case]:
    """Neighbours of the published shapes in every axis."""
    changes = (
        {"page": 1}, {"page": 16}, {"page": 48}, {"page": 256}, {"tokens": 1}, {"tokens": 3},
        {"tokens": 70}, {"tokens": 300}, {"heads": 1}, {"heads": 16}, {"heads": 40}, {"heads": 64},
        {"chosen": 1}, {"chosen": 63}, {"chosen": 64}, {"chosen": 65}, {"chosen": 200},
        {"chosen": 1024}, {"holes": "mixed"}, {"holes": "all"}, {"holes": "none"},
        {"sinks": True}, {"sinks": True, "tokens": 1}, {"holes": "all", "chosen": 100},
    )  # fmt: skip
    usual = {"context": 8192}
    return [
        cell(**{**usual, **change, "kv_dtype": dtype})  # type: ignore[arg-type]  # any axis
        for dtype in ("fp8", "bf16")
        for change in changes
    ]


def cpu() -> list[Case]:
    """Small cells for the interpreter: every feature, and their pairs."""
    grid = product((1, 16, 48), (1, 20, 33), ("tail", "none", "mixed", "all"))
    return [
        cell(page=page, tokens=2, heads=heads, context=60, chosen=chosen, holes=holes, sinks=sinks,
             kv_dtype=dtype)
        for (page, chosen, holes), heads, sinks, dtype in zip(
            grid, (3, 16, 17) * 12, (False, True) * 18, ("fp8", "fp8", "bf16", "bf16") * 9,
            strict=True,
        )
    ]  # fmt: skip


def random_cells(count: int, *, seed: int = 0, small: bool = False) -> list[Case]:
    """Seeded shapes of any page, heads, tokens and choice; `small` for the interpreter."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [
        cell(
            page=draw.choice((1, 8, 24, 64, 100, 256)),
            tokens=draw.randint(1, 3 if small else 200),
            heads=draw.choice((1, 5, 16, 30, 64, 100, 128)) if not small else draw.randint(1, 20),
            context=draw.randint(1, 90) if small else round(2 ** draw.uniform(4, 14)),
            chosen=draw.randint(1, 70) if small else draw.randint(1, 2100),
            holes=draw.choice(("tail", "none", "mixed", "all")),
            sinks=draw.random() < 0.3,
            kv_dtype=draw.choice(("fp8", "bf16")),
        )
        for _ in range(count)
    ]


SETS: dict[str, Callable[[], list[Case]]] = {
    "cpu": cpu,
    "gpu": gpu,
    "published": published,
    "random": lambda: random_cells(100),
}
