"""The sets of cells of decode over shared prefixes."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import cycle, product
from typing import Any

from kvproof.kernels.paged_prefill.arguments import MOST_DIM
from kvproof.kernels.spec import Case, Value, distinct

DTYPES = ("bf16", "fp16", "fp8", "int8")


def cell(**axes: Any) -> Case:
    """A cell with all axes: `prefixes` of `prefix` tokens, requests with `own` tokens after it."""
    usual: dict[str, Any] = {
        "page": 16, "head_dim": 128, "kv_dtype": "bf16", "batch": 64, "prefixes": 1,
        "prefix": 32768, "own": 512, "lengths": "equal", "heads": 32, "kv_heads": 8,
        "q_tokens": 1, "sinks": False, "soft_cap": 0.0,
    }  # fmt: skip
    return usual | axes


def published() -> list[Case]:
    """Requests over one prefix and over several, at which peers' figures are stated."""
    sizes = ((64, 32768), (256, 8192), (64, 4096), (16, 8192))
    one = [cell(batch=batch, prefix=prefix) for batch, prefix in sizes]
    several = [cell(prefixes=4, prefix=8192), cell(prefixes=16, prefix=4096), cell(q_tokens=4)]
    return [*one, cell(heads=8, kv_heads=1), cell(head_dim=256, prefix=8192), *several]


def gpu() -> list[Case]:
    """Page x head size x dtype, and neighbours of the published shapes in every other axis."""
    small: dict[str, Value] = {"batch": 21, "prefix": 3000, "own": 200, "prefixes": 5}
    grid = [
        cell(**small, lengths="edges", page=page, head_dim=dim, kv_dtype=dtype)
        for dtype, dim, page in product(DTYPES, (64, 100, 128, 256), (4, 16, 64))
    ]
    axes: dict[str, tuple[Value, ...]] = {
        "page": (1, 8, 32, 48, 128, 256), "head_dim": (64, 96, 192, 256),
        "batch": (1, 2, 3, 8, 16, 100, 256),
        "prefixes": (2, 5, 16, 64), "prefix": (0, 1, 100, 1000, 4096, 100000),
        "own": (1, 30, 4096), "heads": (8, 40, 64), "kv_heads": (1, 2, 32), "q_tokens": (2, 4, 16),
        "sinks": (True,), "soft_cap": (30.0,), "lengths": ("edges",),
    }  # fmt: skip
    around = [{**cell(), axis: value} for axis, values in axes.items() for value in values]
    return distinct([*published(), *grid, *around])


def cpu() -> list[Case]:
    """Small cells for the interpreter: every dtype, page and feature."""
    small: dict[str, Value] = {
        "batch": 9, "prefixes": 4, "prefix": 40, "own": 20, "heads": 4, "kv_heads": 2,
        "lengths": "edges", "head_dim": 64,
    }  # fmt: skip
    features: list[dict[str, Value]] = [
        {"q_tokens": 3}, {"sinks": True}, {"soft_cap": 3.0}, {"lengths": "equal"},
        {"prefixes": 1, "prefix": 150}, {"prefixes": 9}, {"kv_heads": 4}, {"own": 1},
    ]  # fmt: skip
    kinds = ((4, "bf16"), (16, "fp16"), (8, "fp8"), (4, "int8"))
    plain = [cell(**small, page=page, kv_dtype=dtype) for page, dtype in kinds]
    turns = zip(cycle(kinds), features, strict=False)
    return [
        *plain,
        *(cell(**{**small, **each}, page=page, kv_dtype=dtype) for (page, dtype), each in turns),
    ]


def random_cells(count: int, *, seed: int = 0, small: bool = False) -> list[Case]:
    """Seeded shapes over the documented range of every axis; `small` for the interpreter."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [_drawn(draw, small) for _ in range(count)]


def _drawn(draw: random.Random, small: bool) -> Case:  # noqa: FBT001 - one caller, above
    kv_heads = draw.choice((1, 2, 3) if small else (1, 2, 4, 5, 8))
    kv_dtype = draw.choice(DTYPES)
    # Rows of one-byte elements begin at even ones.
    least = 2 if kv_dtype in ("fp8", "int8") else 1
    widest = 96 if small else MOST_DIM
    batch = draw.randint(1, 6 if small else 100)
    return cell(
        page=draw.choice((1, 4, 8, 16, 24, 32, 48, 64, 128, 256)),
        head_dim=draw.choice((64, 128, *(n * draw.randint(1, widest // n) for n in (8, least)))),
        kv_dtype=kv_dtype,
        batch=batch,
        prefixes=draw.choice((1, 1, draw.randint(1, batch))),
        prefix=draw.randint(0, 90) if small else round(2 ** draw.uniform(0, 14)),
        own=draw.randint(1, 60) if small else round(2 ** draw.uniform(0, 11)),
        lengths=draw.choice(("equal", "edges")),
        heads=kv_heads * draw.choice((1, 2, 3, 4, 5, 8)),
        kv_heads=kv_heads,
        q_tokens=draw.choice((1, 1, 1, 2, 4, 8)),
        sinks=draw.random() < 0.3,
        soft_cap=draw.choice((0.0, 0.0, 5.0, 30.0)),
    )


SETS: dict[str, Callable[[], list[Case]]] = {
    "cpu": cpu,
    "gpu": gpu,
    "published": published,
    "random": lambda: random_cells(150),
}
