"""The sets of cells of attention over trees of drafts."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

from kvproof.kernels.paged_prefill import cells as prefill
from kvproof.kernels.paged_prefill.arguments import MOST_TREE
from kvproof.kernels.spec import Case, distinct

TREES = ("drawn", "same", "chain", "star")
"""A tree of its own for each request; the same for all; drafts one after the other; one draft and
its children."""


def cell(*, tree: str = "drawn", new: int = 16, batch: int = 64, **axes: Any) -> Case:
    """One cell with all axes: those of `paged_prefill`, and the kind of tree."""
    usual = {"context": 4096, "new": new, "batch": batch}
    return {"tree": tree, **prefill.cell(**{**usual, **axes})}


def published() -> list[Case]:
    """Trees of 8 to 64 drafts, the same for all requests, as peers have them."""
    sizes = product((8, 16, 64), ((1, 32768), (8, 32768), (64, 4096)))
    return [
        cell(tree="same", new=new, batch=batch, context=context) for new, (batch, context) in sizes
    ]


def gpu() -> list[Case]:
    """Page x head size x dtype, trees of every kind and size, steps with other requests."""
    small: dict[str, Any] = {"batch": 9, "context": 700, "heads": 8, "kv_heads": 2}
    grid = [
        cell(**small, page=page, head_dim=dim, kv_dtype=dtype, new=new)
        for dtype, dim, page, new in product(
            prefill.DTYPES, (64, 100, 128, 256), (4, 16, 64), (7, 60)
        )
    ]
    sizes = [
        cell(**small, tree=tree, new=new) for tree, new in product(TREES, (1, 2, 33, 63, MOST_TREE))
    ]
    steps = [
        cell(new=new, lengths=lengths, batch=20, context=3000)
        for new, lengths in product((300, 2048), ("step", "drafts", "decodes", "ragged"))
    ]
    edges = [cell(**small, lengths="edges", new=new, head_dim=64) for new in (20, 90)]
    others = [cell(**small, sinks=True), cell(**small, soft_cap=30.0)]
    around: dict[str, tuple[Any, ...]] = {
        "page": (32, 128, 256), "head_dim": (1, 7, 12, 60, 96, 192, 252), "batch": (4,),
        "context": (0, 1000, 16384, 65536), "new": (32,), "heads": (16, 64), "kv_heads": (1, 4),
        "layout": ("heads-first", "packed", "skewed-pages", "skewed-queries"),
    }  # fmt: skip
    others += [cell(**{**small, axis: each}) for axis, values in around.items() for each in values]
    shared = ((40, 4), (64, 16), (64, 32))
    others += [cell(**{**small, "heads": heads, "kv_heads": kv}) for heads, kv in shared]
    return distinct([*published(), *grid, *sizes, *steps, *edges, *others])


def cpu() -> list[Case]:
    """Small cells for the interpreter."""
    small: dict[str, Any] = {
        "batch": 11, "context": 37, "heads": 4, "kv_heads": 2, "head_dim": 64, "lengths": "edges",
    }  # fmt: skip
    kinds = [cell(**small, page=4, tree=tree, new=new) for tree, new in product(TREES, (5, 21))]
    wide = [
        cell(**small, page=page, kv_dtype=dtype, new=21)
        for page, dtype in ((16, "fp16"), (8, "fp8"), (4, "int8"))
    ]
    long: dict[str, Any] = {**small, "batch": 2, "lengths": "equal"}
    return [*kinds, *wide, cell(**long, new=MOST_TREE), cell(**long, new=90, sinks=True)]


def random_cells(count: int, *, seed: int = 0, small: bool = False) -> list[Case]:
    """Seeded shapes of prefill without windows, each with a kind of tree."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    shapes = prefill.random_cells(count, seed=seed, small=small)
    return [{"tree": draw.choice(TREES), **shape, "window": 0} for shape in shapes]


SETS: dict[str, Callable[[], list[Case]]] = {
    "cpu": cpu,
    "gpu": gpu,
    "published": published,
    "random": lambda: random_cells(120),
}
