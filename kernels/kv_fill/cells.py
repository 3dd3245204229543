"""Cells of the KV fill."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

from kvproof.kernels.spec import Case

DTYPES = ("bf16", "fp16", "fp32")
CACHES = ("same", "fp8", "int8", "int4")


def cell(
    *,
    page: int = 16,
    head_dim: int = 128,
    heads: int = 8,
    dtype: str = "bf16",
    cache: str = "same",
    layout: str = "NHD",
    to: str = "table",
    requests: int = 4,
    tokens: int = 8192,
    past: int = 1001,
    batch: str = "even",
    rows: str = "packed",
    scales: str = "head",
) -> Case:
    """One cell.

    `cache`: dtype of the pages: the rows' dtype, fp8, int8 or int4. `to`: form of the targets.
    `batch`: `even` requests of equal length at `past`; `ragged` ones, some of them empty, at starts
    around page borders and with padding; `holes`: also some missing pages. `rows`: K and V
    `packed`, a `slice` of a larger tensor, or `latent`, one tensor only. `scales`: fp8 has one for
    each `head`, or equal ones for the whole `tensor`.
    """
    return dict(locals())


def cpu() -> list[Case]:
    """Small cells for the interpreter: every form of targets, storage and quantisation."""
    small: dict[str, Any] = {"requests": 5, "tokens": 37, "past": 40, "batch": "ragged"}
    holes: dict[str, Any] = {"requests": 3, "tokens": 70, "past": 2, "batch": "holes"}
    shapes = [(16, 2, 64), (5, 3, 80), (64, 1, 128), (1, 4, 32)]
    stored = [
        ("bf16", "same"), ("fp16", "same"), ("fp32", "same"), ("bf16", "fp8"), ("fp16", "fp8"),
        ("bf16", "int8"), ("fp32", "int8"), ("bf16", "int4"), ("fp32", "int4"),
    ]  # fmt: skip
    grid = [
        cell(page=page, heads=heads, head_dim=dim, dtype=dtype, cache=cache, layout=layout, to=to,
             **small)
        for (page, heads, dim), (dtype, cache), layout, to in product(
            shapes[:2], stored, ("NHD", "HND"), ("table", "slots")
        )
    ]  # fmt: skip
    corners = [
        cell(page=page, heads=heads, head_dim=dim, cache=cache, rows=rows, to=to, **small)
        for (page, heads, dim), cache, rows, to in product(
            shapes[2:], CACHES, ("packed", "slice"), ("table", "slots")
        )
    ]
    widths = [
        cell(head_dim=dim, heads=heads, rows=rows, requests=3, tokens=9, past=15)
        for dim, heads, rows in (
            (96, 2, "packed"), (128, 5, "packed"), (256, 1, "slice"), (256, 8, "packed"),
            (576, 1, "latent"), (512, 1, "latent"), (64, 12, "slice"), (192, 2, "packed"),
        )
    ]  # fmt: skip
    lengths = [
        cell(page=page, heads=2, head_dim=64, requests=requests, tokens=tokens, past=past,
             layout=layout)
        for page, layout in ((16, "NHD"), (32, "HND"))
        for requests, tokens, past in (
            (1, 1, 0), (1, page - 1, 0), (1, page, 0), (1, page + 1, 0), (1, 1, page - 1),
            (2, 4, page - 1), (40, 40, 3),
        )
    ]  # fmt: skip
    missing = [
        cell(page=page, heads=2, head_dim=32, layout=layout, to=to, dtype=dtype, cache=cache,
             scales="tensor", **holes)
        for (page, layout, to), (dtype, cache) in product(
            ((8, "HND", "table"), (8, "NHD", "slots"), (3, "NHD", "table")),
            (("bf16", "same"), ("fp16", "fp8")),
        )
    ]  # fmt: skip
    return [*grid, *corners, *widths, *lengths, *missing]


def gpu() -> list[Case]:
    """Pages, head sizes and caches, for a decode step and a prefill."""
    pages, dims = (16, 32, 64, 128, 256), (64, 96, 128, 256)
    steps = ((64, 64, 500), (4, 8192, 1001))
    ways = [
        *product(("bf16",), CACHES, ("NHD", "HND"), ("table",)),
        ("fp16", "same", "HND", "table"),
        ("bf16", "same", "NHD", "slots"),
    ]
    return [
        cell(page=page, head_dim=dim, dtype=dtype, cache=cache, layout=layout, to=to,
             requests=requests, tokens=tokens, past=past, scales="tensor")
        for page, dim, (dtype, cache, layout, to), (requests, tokens, past) in product(
            pages, dims, ways, steps
        )
    ]  # fmt: skip


def published() -> list[Case]:
    """The shapes of published figures of other engines."""
    return [
        cell(page=page, head_dim=dim, to=to, requests=requests, tokens=tokens, past=past)
        for page, dim, to, (requests, tokens, past) in product(
            (16, 64, 128, 256), (128, 256), ("table", "slots"),
            ((256, 256, 4095), (4, 8192, 1001), (4, 65536, 1001)),
        )
    ]  # fmt: skip


def random_cells(count: int, *, seed: int = 0) -> list[Case]:
    """Random shapes of moderate size."""
    numbers = random.Random(seed)  # noqa: S311 - shapes, no secrets
    return [_drawn(numbers) for _ in range(count)]


def _drawn(numbers: random.Random) -> Case:
    pick = numbers.choice
    return cell(
        page=pick([1, 8, 16, 24, 32, 64, 128, 256]),
        head_dim=pick([32, 64, 80, 96, 112, 128, 192, 256]),
        heads=numbers.randint(1, 12),
        dtype=pick(DTYPES),
        cache=pick(CACHES),
        layout=pick(["NHD", "HND"]),
        to=pick(["table", "slots"]),
        requests=numbers.randint(1, 40),
        tokens=numbers.randint(1, 3000),
        past=numbers.randint(0, 600),
        batch=pick(["even", "ragged", "holes"]),
        rows=pick(["packed", "slice", "latent"]),
        scales=pick(["head", "tensor"]),
    )


SETS: Mapping[str, Callable[[], list[Case]]] = {
    "cpu": cpu,
    "gpu": gpu,
    "published": published,
    "random": lambda: random_cells(200),
}
