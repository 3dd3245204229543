"""The sets of cells of prefill attention."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

from kvproof.kernels.paged_prefill.arguments import MOST_DIM
from kvproof.kernels.spec import Case, Value, distinct

PAGES = (16, 32, 64, 128, 256)
DTYPES = ("bf16", "fp16", "fp8", "int8")
LENGTHS = ("equal", "ragged", "edges", "step", "decodes", "drafts")
LAYOUTS = ("own", "packed", "skewed-queries", "skewed-pages", "heads-first")


def cell(
    *,
    page: int = 16,
    head_dim: int = 128,
    kv_dtype: str = "bf16",
    batch: int = 1,
    context: int = 32768,
    new: int = 2048,
    lengths: str = "equal",
    heads: int = 32,
    kv_heads: int = 8,
    window: int = 0,
    sinks: bool = False,
    soft_cap: float = 0.0,
    layout: str = "own",
) -> Case:
    """One cell with all axes, in the order of the signature."""
    return {
        "page": page, "head_dim": head_dim, "kv_dtype": kv_dtype, "batch": batch,
        "context": context, "new": new, "lengths": lengths, "heads": heads, "kv_heads": kv_heads,
        "window": window, "sinks": sinks, "soft_cap": soft_cap, "layout": layout,
    }  # fmt: skip


def published() -> list[Case]:
    """The shapes of published figures: chunks of one request, and steps of engines."""
    chunks = [
        cell(page=page, head_dim=dim, new=new)
        for dim, new, page in product((64, 128, 256), (2048, 8192), (16, 64, 128))
    ]
    return [*chunks, *engine_steps()]


def engine_steps() -> list[Case]:
    """One call for decodes, drafts, chunks and whole prompts; prompts over a shared prefix."""
    mixed: list[dict[str, Any]] = [
        {"new": 2048, "context": 8192, "batch": 64, "lengths": "decodes"},
        {"new": 512, "context": 16384, "batch": 128, "lengths": "decodes"},
        {"new": 1024, "context": 8192, "batch": 62, "lengths": "drafts"},
        {"new": 300, "context": 1000, "batch": 27},
        {"new": 2048, "context": 16384, "batch": 48, "lengths": "step"},
        {"new": 8192, "context": 0},
        {"new": 2048, "context": 0, "batch": 4},
        {"new": 16, "context": 32768, "batch": 8},
        {"new": 16, "context": 2048, "batch": 64},
    ]
    windowed = cell(head_dim=64, heads=64, new=2048, context=8192, window=128)
    return [
        *(cell(**one) for one in mixed),
        windowed,
        {**windowed, "batch": 64, "lengths": "decodes"},
        cell(head_dim=96, new=2048, context=8192, batch=64, lengths="decodes"),
    ]


def gpu() -> list[Case]:
    """Page x head size x dtype, neighbours of the published shapes in every other axis, borders."""
    grid = [
        cell(page=page, head_dim=dim, kv_dtype=dtype, batch=4, context=3000, new=700,
             lengths="ragged")
        for dtype, dim, page in product(DTYPES, (64, 96, 128, 192, 256), PAGES)
    ]  # fmt: skip
    edges = [
        cell(page=page, head_dim=dim, kv_dtype=dtype, batch=22, context=500, new=300,
             lengths="edges")
        for dtype, dim, page in product(DTYPES, (64, 128, 256), (8, 16, 128))
    ]  # fmt: skip
    steps = [
        cell(page=page, head_dim=dim, kv_dtype=dtype, batch=40, context=3000, new=400,
             lengths="step", window=window)
        for dtype, dim, page, window in product(
            DTYPES, (64, 100, 128, 256), (16, 64), (0, 500)
        )
    ]  # fmt: skip
    borders = [case for pair in (*borders_of_sizes(), *borders_of_lengths()) for case in pair]
    return distinct([*grid, *edges, *steps, *_around(), *borders])


def borders_of_sizes() -> list[tuple[Case, Case]]:
    """A cell just inside of what a kernel can copy by hardware, and one just outside.

    Sizes of heads, with one KV head and several; page sizes; dtypes; strides.
    """
    small: dict[str, Value] = {
        "batch": 3,
        "context": 300,
        "new": 200,
        "lengths": "ragged",
        "heads": 4,
        "kv_heads": 2,
    }
    sizes: tuple[tuple[Value, Value], ...] = (
        (8, 1), (8, 7), (16, 12), (56, 57), (104, 100), (256, 252), (248, 255),
    )  # fmt: skip
    several: dict[str, Value] = {"kv_heads": 4}
    others: list[dict[str, Value]] = [{"kv_heads": 1}, {"kv_dtype": "fp16"}]
    axes: list[tuple[str, tuple[Value, Value], dict[str, Value]]] = [
        *(("head_dim", pair, several) for pair in sizes),
        *(("head_dim", pair, kind) for pair, kind in product(((64, 60), (136, 124)), others)),
        ("head_dim", (104, 100), {"heads": 1, "kv_heads": 1}),
        ("head_dim", (104, 100), {"layout": "packed"}),
        ("page", (8, 4), {}),
        ("page", (24, 12), {"kv_dtype": "fp16"}),
        ("kv_dtype", ("bf16", "fp8"), {}),
        ("kv_dtype", ("fp16", "int8"), {"head_dim": 96, "page": 48}),
        ("layout", ("packed", "skewed-pages"), {}),
        ("layout", ("skewed-queries", "heads-first"), {}),
    ]
    return [_pair({**cell(), **small, **kind}, axis, values) for axis, values, kind in axes]


def borders_of_lengths() -> list[tuple[Case, Case]]:
    """A cell just long enough for a kernel, or short enough, and one that is not."""
    wide: dict[str, Value] = {"kv_dtype": "fp8", "head_dim": 256, "heads": 32, "kv_heads": 32}
    return [
        _pair(cell(context=500), "new", (10, 9)),
        _pair(cell(new=1), "context", (1023, 1022)),
        _pair(cell(head_dim=64, context=1000, new=300), "window", (225, 224)),
        _pair(cell(context=1000, kv_dtype="fp8"), "new", (128, 127)),
        _pair({**cell(new=128), **wide}, "context", (32768 - 128, 32768 - 127)),
    ]


def _pair(of: Case, axis: str, values: tuple[Value, Value]) -> tuple[Case, Case]:
    inside, outside = ({**of, axis: value} for value in values)
    return inside, outside


def _around() -> list[Case]:
    axes: dict[str, tuple[Value, ...]] = {
        "page": (1, 4, 8, 48, 512),
        "head_dim": (64, 80, 96, 192, 256),
        "new": (16, 64, 128, 500, 1000, 3000, 8192),
        "context": (0, 1000, 4096, 16384, 30000, 65536),
        "kv_heads": (1, 2, 4, 16, 32),
        "heads": (8, 16, 40, 64),
        "window": (128, 1000, 4096),
        "soft_cap": (30.0,),
        "sinks": (True,),
    }
    batches = [
        cell(batch=8, context=8192, new=1024, lengths=kind) for kind in ("equal", "ragged", "edges")
    ]
    return [
        *({**cell(), axis: value} for axis, values in axes.items() for value in values),
        *batches,
    ]


def cpu() -> list[Case]:
    """Small cells for the interpreter: every page, width, dtype and feature, and their pairs."""
    small: dict[str, Value] = {
        "context": 37,
        "new": 21,
        "batch": 11,
        "lengths": "edges",
        "heads": 4,
        "kv_heads": 2,
    }
    widths = [
        {**cell(page=page, head_dim=dim, kv_dtype=dtype), **small}
        for dtype, (dim, page) in product(
            DTYPES, ((64, 4), (64, 16), (80, 8), (96, 16), (128, 8), (128, 32), (192, 8), (256, 16))
        )
    ]
    groups = [
        {**cell(page=page, head_dim=64, kv_dtype=dtype), **small, "heads": heads, "kv_heads": of}
        for (heads, of), page, dtype in product(
            ((2, 2), (8, 1), (6, 2)), (1, 12, 16), ("bf16", "int8")
        )
    ]
    features = [
        {**cell(page=page, head_dim=64, kv_dtype=dtype), **small, **feature}
        for (dtype, page), feature in product((("fp16", 4), ("fp8", 16)), _features())
    ]
    sizes = [
        {**cell(page=4, head_dim=dim, kv_dtype=dtype), **small}
        for dim, dtype in zip((1, 3, 7, 12, 36, 60, 100, 252), DTYPES * 2, strict=True)
    ]
    layouts = [
        {**cell(page=8, head_dim=64, kv_dtype=dtype, layout=layout), **small}
        for dtype, layout in product(("bf16", "int8"), LAYOUTS[1:])
    ]
    return distinct([*widths, *groups, *features, *sizes, *layouts])


def _features() -> list[dict[str, Value]]:
    return [
        {"window": 1},
        {"window": 5},
        {"window": 40},
        {"sinks": True},
        {"soft_cap": 3.0},
        {"sinks": True, "soft_cap": 3.0, "window": 9},
        {"lengths": "equal", "batch": 1, "context": 0, "new": 70},
        {"lengths": "equal", "batch": 2, "context": 100, "new": 1},
        {"lengths": "ragged", "batch": 3, "context": 150, "new": 30},
        {"lengths": "equal", "batch": 1, "context": 90, "new": 60, "window": 33},
        {"lengths": "step", "batch": 9, "context": 120, "new": 40},
        {"lengths": "drafts", "batch": 4, "context": 150, "new": 20, "window": 30},
        {"lengths": "decodes", "batch": 3, "context": 200, "new": 30, "sinks": True},
    ]


def random_cells(count: int, *, seed: int = 0, small: bool = False) -> list[Case]:
    """Seeded shapes over the documented range of every axis; `small` for the interpreter."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [_drawn(draw, small) for _ in range(count)]


def _drawn(draw: random.Random, small: bool) -> Case:  # noqa: FBT001 - one caller, above
    kv_heads = draw.choice((1, 2, 3) if small else (1, 2, 4, 5, 8, 10))
    widest = 96 if small else MOST_DIM
    return cell(
        page=draw.choice((1, 4, 8, 16, 24, 32, 48, 64, 128, 256)),
        head_dim=draw.choice((64, 128, *(n * draw.randint(1, widest // n) for n in (8, 4, 1)))),
        kv_dtype=draw.choice(DTYPES),
        batch=draw.randint(1, 4 if small else 24),
        context=draw.randint(0, 60) if small else round(2 ** draw.uniform(0, 14)),
        new=draw.randint(1, 30) if small else round(2 ** draw.uniform(0, 11)),
        lengths=draw.choice(LENGTHS),
        heads=kv_heads * draw.choice((1, 2, 3, 4, 5, 8)),
        kv_heads=kv_heads,
        window=draw.choice((0, 0, 0, draw.randint(1, 40 if small else 3000))),
        sinks=draw.random() < 0.3,
        soft_cap=draw.choice((0.0, 0.0, 5.0, 30.0)),
        layout=draw.choice((*["own"] * 6, *LAYOUTS)),
    )


SETS: dict[str, Callable[[], list[Case]]] = {
    "cpu": cpu,
    "gpu": gpu,
    "published": published,
    "random": lambda: random_cells(150),
}
