"""The sets of cells of decode attention."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product
from typing import Any

from kvproof.kernels.paged_decode.rules import MOST_HEAD_DIM, MOST_QUERY_TOKENS
from kvproof.kernels.spec import Case, Value, distinct

PAGES = (16, 32, 64, 128, 256)
DTYPES = ("bf16", "fp16", "fp8", "int8", "int4")


def cell(
    *,
    page: int = 16,
    head_dim: int = 128,
    kv_dtype: str = "bf16",
    batch: int = 8,
    context: int = 32768,
    lengths: str = "equal",
    heads: int = 32,
    kv_heads: int = 8,
    q_tokens: int = 1,
    window: int = 0,
    sinks: bool = False,
    soft_cap: float = 0.0,
    latent: int = 0,
    scales: str = "head",
    leftovers: str = "nan",
) -> Case:
    """One cell; every axis is there, in the order of the signature.

    `scales`: whether FP8 keys and values have a scale for each `head` or one for the `tensor`.
    `leftovers`: content after the last token in the last page of a request, `nan` or, as in a
    running engine, old but `finite` numbers; pages without a request hold NaN in both.
    """
    return {
        "page": page, "head_dim": head_dim, "kv_dtype": kv_dtype, "batch": batch,
        "context": context, "lengths": lengths, "heads": heads, "kv_heads": kv_heads,
        "q_tokens": q_tokens, "window": window, "sinks": sinks, "soft_cap": soft_cap,
        "latent": latent, "scales": scales, "leftovers": leftovers,
    }  # fmt: skip


def published() -> list[Case]:
    """The shapes that published figures are stated for: even, ragged and quantised batches.

    Leftovers are finite: some engines read values after the last token, at a weight of zero.
    """
    sizes = tuple(product((128, 256), (1, 8, 64), (4096, 32768, 131072)))
    even = [
        cell(page=page, head_dim=dim, batch=batch, context=context)
        for page in PAGES
        for dim, batch, context in sizes
    ]
    ragged = [
        cell(page=page, head_dim=dim, batch=batch, context=131072, lengths="ragged")
        for dim, batch, page in product((128, 256), (8, 64), (16, 64, 128))
    ]
    narrow = [
        cell(page=page, head_dim=dim, batch=batch, kv_dtype=dtype, scales="tensor")
        for dtype, dim, batch, page in product(
            ("fp8", "int8", "int4"), (128, 256), (8, 64), (16, 64, 128)
        )
    ]
    return [
        {**found, "leftovers": "finite"}
        for found in (*even, *ragged, *narrow, *_latent_published())
    ]


def _latent_published() -> list[Case]:
    """Heads, batch and context at which FlashMLA's figures are stated, 1 and 2 query tokens."""
    sizes = (
        (128, 64, 32768), (128, 128, 8192), (128, 1, 4096), (128, 1, 32768), (128, 1, 131072),
        (64, 64, 32768), (64, 8, 32768), (16, 64, 32768), (16, 128, 4096),
    )  # fmt: skip
    wide = [
        _latent(page=64, heads=heads, batch=batch, context=context, q_tokens=tokens)
        for tokens in (1, 2)
        for heads, batch, context in sizes
    ]
    narrow = [
        _latent(page=64, heads=heads, batch=batch, context=context, kv_dtype="fp8")
        for heads, batch, context in sizes
        if batch * context > 4096 and context < 131072
    ]
    return [*wide, *narrow]


def _latent(**axes: Any) -> Case:
    """A cell with rows of 576 columns, 512 of them values, and one KV head."""
    return cell(**{"head_dim": 576, "latent": 512, "kv_heads": 1, **axes})


def gpu() -> list[Case]:
    """Page x head size x dtype, and the neighbours of the published shapes in every other axis."""
    grid = [
        cell(page=page, head_dim=dim, kv_dtype=dtype)
        for dtype, dim, page in product(DTYPES, (64, 96, 128, 192, 256), PAGES)
    ]
    borders = [case for pair in borders_of_kernels() for case in pair]
    return distinct([*grid, *_around(), *_edges(4096), *borders])


def borders_of_kernels() -> list[tuple[Case, Case]]:
    """A cell just inside of what another kernel than the portable one takes, and just outside."""
    small: dict[str, Any] = {"batch": 3, "context": 900, "lengths": "ragged"}
    many: dict[str, Any] = {**small, "heads": 8, "kv_heads": 2}
    latent: dict[str, Any] = {**small, "page": 64, "heads": 8}
    axes: list[tuple[Case, str, tuple[Value, Value]]] = [
        (cell(**many), "q_tokens", (9, 8)),
        (cell(**many, q_tokens=16), "head_dim", (104, 100)),
        (cell(**many, q_tokens=16), "head_dim", (256, 264)),
        (cell(**many, q_tokens=32), "page", (8, 4)),
        (cell(**many, q_tokens=32, page=24), "kv_dtype", ("bf16", "fp8")),
        (_latent(**latent), "page", (8, 4)),
        (_latent(**latent), "window", (0, 500)),
        (_latent(**latent), "soft_cap", (0.0, 30.0)),
        (_latent(**latent), "kv_heads", (1, 2)),
        (_latent(**latent), "head_dim", (576, 584)),
        (_latent(**latent), "latent", (512, 504)),
        (_latent(**latent), "kv_dtype", ("bf16", "int8")),
    ]
    return [({**of, axis: inside}, {**of, axis: outside}) for of, axis, (inside, outside) in axes]


def _around() -> list[Case]:
    """Shapes near the usual ones, one axis at a time."""
    axes: dict[str, tuple[Value, ...]] = {
        "page": (1, 8, 48, 512),
        "batch": (1, 2, 3, 5, 12, 24, 48, 96, 256),
        "context": (512, 1000, 2048, 3000, 6000, 12000, 24000, 50000, 100000),
        "kv_heads": (1, 2, 4, 16, 32),
        "heads": (8, 40, 64),
        "q_tokens": (2, 3, 4, 8, 16, 32),
        "window": (128, 1000, 4096),
        "soft_cap": (30.0,),
        "sinks": (True,),
        "lengths": ("ragged", "edges"),
    }
    usual = cell()
    found: list[Case] = [
        {**usual, axis: value} for axis, values in axes.items() for value in values
    ]
    small = cell(batch=1, context=4096)
    found += [{**small, "context": context} for context in (1024, 2000, 3500, 5000, 7000, 9000)]
    # On both sides of the widths from which a multiprocessor holds 16 tokens of a tile, not 32.
    broad = {"batch": 3, "context": 2000, "heads": 32, "kv_heads": 8, "q_tokens": 8}
    found += [{**usual, **broad, "head_dim": dim} for dim in (640, 641, 768, 769, 1024)]
    for heads, dtype, batch in product((16, 128), ("bf16", "fp8"), (1, 8, 64)):
        found.append(_latent(page=64, heads=heads, kv_dtype=dtype, batch=batch))
    wide: tuple[dict[str, Any], ...] = (
        {"page": 8}, {"page": 48}, {"page": 256}, {"page": 4}, {"page": 128, "kv_dtype": "fp16"},
        {"q_tokens": 2, "lengths": "edges", "batch": 20}, {"q_tokens": 4, "heads": 40},
        {"q_tokens": 8, "heads": 128, "batch": 3}, {"sinks": True, "batch": 64},
        {"sinks": True, "batch": 1, "heads": 20}, {"lengths": "ragged", "batch": 40},
        {"lengths": "edges", "batch": 100, "context": 700}, {"heads": 3, "batch": 300},
        {"window": 1000}, {"soft_cap": 30.0}, {"kv_dtype": "fp8", "page": 1},
        {"kv_dtype": "fp8", "page": 24, "q_tokens": 4, "heads": 40},
        {"kv_dtype": "fp8", "lengths": "edges", "batch": 20, "q_tokens": 3, "sinks": True},
        {"kv_dtype": "fp8", "lengths": "ragged", "heads": 3, "batch": 40, "q_tokens": 2},
    )  # fmt: skip
    return [
        *found,
        *(_latent(**{"page": 64, "heads": 128, "context": 4096, **axes}) for axes in wide),
    ]


def _edges(context: int) -> list[Case]:
    return [
        cell(page=page, kv_dtype=dtype, q_tokens=tokens, context=context, lengths="edges")
        for page, dtype, tokens in product(PAGES, DTYPES, (1, 4))
    ]


def cpu() -> list[Case]:
    """Small cells for the interpreter: every page, width, dtype and feature, and their pairs."""
    small: Case = {"batch": 7, "context": 70, "heads": 4, "kv_heads": 2, "lengths": "edges"}
    widths: list[Case] = [
        {**cell(page=page, head_dim=dim, kv_dtype=dtype), **small}
        for dtype, dim, page in product(DTYPES, (64, 80, 96, 128, 192, 256), (8, 16, 32))
    ]
    pages: list[Case] = [
        {**cell(page=page, head_dim=64, kv_dtype=dtype), **small, "heads": heads, "kv_heads": of}
        for (heads, of), page, dtype in product(
            ((2, 2), (8, 1), (6, 2)), (1, 4, 12, 64), ("bf16", "int8")
        )
    ]
    sizes: list[Case] = [
        {**cell(page=4, head_dim=dim, kv_dtype=dtype), **small}
        for dtype, dim in (("bf16", 1), ("fp16", 7), ("bf16", 33), ("fp16", 100), ("bf16", 300),
                           ("fp8", 2), ("int8", 6), ("fp8", 34), ("int8", 258),
                           ("int4", 4), ("int4", 36), ("int4", 260))
    ]  # fmt: skip
    features: list[Case] = [
        {**cell(page=page, head_dim=64, kv_dtype=dtype), **small, **feature}
        for dtype, page, feature in product(("fp16", "fp8", "int4"), (4, 16), _features())
    ]
    return distinct([*widths, *pages, *sizes, *features, *_latent_cpu()])


def _features() -> list[dict[str, Value]]:
    """Query tokens, window, sinks and soft cap, alone and together."""
    return [
        {"q_tokens": 2},
        {"q_tokens": 8, "heads": 8, "kv_heads": 1},
        {"q_tokens": 20, "context": 90},
        {"window": 5},
        {"window": 40, "q_tokens": 3},
        {"sinks": True},
        {"soft_cap": 3.0},
        {"sinks": True, "soft_cap": 3.0, "window": 20, "q_tokens": 4},
        {"scales": "tensor"},
        {"leftovers": "finite"},
        {"lengths": "equal", "batch": 1, "context": 200},
        {"lengths": "ragged", "batch": 3, "context": 150},
        {"lengths": "edges", "batch": 20, "context": 33},
    ]


def _latent_cpu() -> list[Case]:
    """Values in the keys: as wide as the main part of a row, and not."""
    return [
        cell(page=page, head_dim=dim, latent=latent, kv_dtype=dtype, heads=heads, kv_heads=1,
             batch=3, context=50, lengths="edges", q_tokens=tokens)
        for page, dtype, (dim, latent, heads, tokens) in product(
            (8, 16), DTYPES, ((80, 64, 16, 1), (96, 48, 4, 2), (576, 512, 16, 1))
        )
    ]  # fmt: skip


def random_cells(count: int, *, seed: int = 0, small: bool = False) -> list[Case]:
    """Seeded shapes of any page, width, group, context and feature; `small` for the interpreter."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [_drawn(draw, small) for _ in range(count)]


def _drawn(draw: random.Random, small: bool) -> Case:  # noqa: FBT001 - one caller, above
    kv_heads = draw.choice((1, 2, 3) if small else (1, 2, 4, 5, 8, 10, 16))
    latent = draw.random() < 0.15
    if latent and draw.random() < 0.6:
        return _drawn_wide(draw, small)
    kv_dtype = draw.choice(DTYPES)
    # Rows of pages begin at even bytes.
    least = {"fp8": 2, "int8": 2, "int4": 4}.get(kv_dtype, 1)
    widest = 96 if small else draw.choice((256, 256, 256, MOST_HEAD_DIM))
    dim = draw.choice((64, 128, *(n * draw.randint(1, widest // n) for n in (8, least))))
    return cell(
        page=draw.choice((1, 4, 8, 16, 24, 32, 48, 64, 128, 256)),
        head_dim=dim,
        kv_dtype=kv_dtype,
        batch=draw.randint(1, 6 if small else 100),
        context=draw.randint(8, 100) if small else round(2 ** draw.uniform(4, 16)),
        lengths=draw.choice(("equal", "ragged", "edges")),
        heads=kv_heads * draw.choice((1, 2, 3, 4, 5, 8)),
        kv_heads=kv_heads,
        q_tokens=draw.choice((1, 1, 1, 2, 3, 4, 8, draw.randint(9, MOST_QUERY_TOKENS))),
        window=draw.choice((0, 0, 0, draw.randint(1, 100 if small else 5000))),
        sinks=draw.random() < 0.3,
        soft_cap=draw.choice((0.0, 0.0, 5.0, 30.0)),
        latent=least * draw.randint(1, dim // least) if latent else 0,
    )


def _drawn_wide(draw: random.Random, small: bool) -> Case:  # noqa: FBT001 - one caller, above
    """Rows of 576 columns, which have kernels of their own: any heads, page and lengths."""
    return _latent(
        page=draw.choice((1, 4, 8, 16, 24, 48, 64, 100, 128, 256)),
        kv_dtype=draw.choice(("bf16", "bf16", "fp16", "fp8")),
        batch=draw.randint(1, 3 if small else 80),
        context=draw.randint(8, 60) if small else round(2 ** draw.uniform(4, 15)),
        lengths=draw.choice(("equal", "ragged", "edges")),
        heads=draw.randint(1, 9) if small else draw.choice((1, 5, 16, 20, 40, 64, 100, 128)),
        q_tokens=draw.choice((1, 1, 2, 3, 4)),
        sinks=draw.random() < 0.3,
    )


SETS: dict[str, Callable[[], list[Case]]] = {
    "cpu": cpu,
    "gpu": gpu,
    "published": published,
    "random": lambda: random_cells(200),
}
