"""The fill of an indexer's cache for sweeps: cells, inputs, the right bytes, the least work."""

from __future__ import annotations

import random
from itertools import product

import torch

from kvproof.kernels.indexer.fill import fill, fill_torch
from kvproof.kernels.indexer.keys import ROW, WIDTH, pack, parts_of
from kvproof.kernels.source import Source
from kvproof.kernels.spec import (
    EXACT,
    Arguments,
    Case,
    Cost,
    Entry,
    Kernel,
    Launch,
    Problem,
    called,
)

SPARE_PAGES = 2
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def cell(
    *,
    page: int = 64,
    tokens: int = 256,
    dtype: str = "bf16",
    powers: bool = True,
    holes: bool = False,
    rows: str = "whole",
) -> Case:
    """One cell; every axis is there, in the order of the signature.

    `holes`: some slots are -1. `rows`: keys are a tensor of their own, or a `slice` of wider rows.
    """
    return {
        "page": page, "tokens": tokens, "dtype": dtype, "powers": powers, "holes": holes,
        "rows": rows,
    }  # fmt: skip


def published() -> list[Case]:
    """Steps of decode and of prefill, as for `kv_fill`."""
    return [cell(tokens=tokens) for tokens in (64, 256, 8192, 65536)]


def gpu() -> list[Case]:
    """Neighbours of the published shapes in every axis."""
    changes = (
        {"page": 1}, {"page": 16}, {"page": 48}, {"page": 256}, {"tokens": 1}, {"tokens": 1001},
        {"tokens": 20000}, {"dtype": "fp16"}, {"dtype": "fp32"}, {"powers": False},
        {"holes": True}, {"rows": "slice"}, {"powers": False, "holes": True, "dtype": "fp32"},
    )  # fmt: skip
    return [cell(**change) for change in changes]


def cpu() -> list[Case]:
    """Small cells for the interpreter."""
    grid = product((1, 24), (1, 19), ("bf16", "fp32"), (False, True))
    return [
        cell(page=page, tokens=tokens, dtype=dtype, powers=powers, holes=holes, rows=rows)
        for (page, tokens, dtype, powers), holes, rows in zip(
            grid, (False, False, True, True) * 4, ("whole", "slice", "slice", "whole") * 4,
            strict=True,
        )
    ]  # fmt: skip


def random_cells(count: int, *, seed: int = 0) -> list[Case]:
    """Seeded shapes."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [
        cell(
            page=draw.choice((1, 7, 24, 64, 100, 256)), tokens=draw.randint(1, 3000),
            dtype=draw.choice(tuple(DTYPES)), powers=draw.random() < 0.5,
            holes=draw.random() < 0.5, rows=draw.choice(("whole", "slice")),
        )
        for _ in range(count)
    ]  # fmt: skip


def make(case: Case, source: Source) -> Problem:
    """Keys of any size, one of them zeros, for slots that are scattered over poisoned pages."""
    page, tokens = int(case["page"]), int(case["tokens"])
    wide = 3 if case["rows"] == "slice" else 1
    keys = source.normal((tokens, wide * WIDTH), DTYPES[str(case["dtype"])])[:, -WIDTH:]
    keys.mul_(source.normal((tokens, 1), torch.float32, scale=2.0).exp().to(keys.dtype))
    keys[tokens // 2] = 0
    count = -(-tokens // page) + SPARE_PAGES
    slots = source.permutation(count * page)[:tokens]
    if case["holes"]:
        slots[::3] = -1
    return Problem(
        {
            "keys": keys,
            "pages": source.output((count, page, ROW), torch.uint8),
            "slots": slots,
            "powers": bool(case["powers"]),
        },
        ("pages",),
    )


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """Every byte of every page, written or not; each key is packed as a page of its own."""
    pages = arguments["pages"].clone()
    values, scales = parts_of(pages)
    packed = pack(arguments["keys"][:, None], powers=arguments["powers"])
    new_values, new_scales = parts_of(packed)
    for token, slot in enumerate(arguments["slots"].tolist()):
        if slot >= 0:
            place = divmod(slot, pages.shape[1])
            values[place] = new_values[token, 0]
            scales[place] = new_scales[token, 0]
    return {"pages": pages}


def cost(_: Case, arguments: Arguments) -> Cost:
    """Every key is read once, and written once with its scale."""
    keys, slots = arguments["keys"], arguments["slots"]
    written = int((slots >= 0).sum())
    return Cost(read=written * WIDTH * keys.element_size() + slots.nbytes, write=written * ROW)


def _prepare_torch(_: Case, arguments: Arguments) -> Launch:
    values, scales = parts_of(arguments["pages"])
    slots = arguments["slots"].long()
    return lambda: fill_torch(arguments["keys"], values, scales, slots, powers=arguments["powers"])


KERNEL = Kernel(
    name="indexer_fill",
    sentence="keys of an indexer, quantised to FP8 with a scale each, into their slots",
    axes={
        "page": [1, 16, 48, 64, 256],
        "tokens": [1, 64, 256, 8192, 65536],
        "dtype": ["bf16", "fp16", "fp32"],
        "powers": [False, True],
        "holes": [False, True],
        "rows": ["whole", "slice"],
    },
    cells={"cpu": cpu, "gpu": gpu, "published": published, "random": lambda: random_cells(60)},
    make=make,
    reference=reference,
    cost=cost,
    tolerance=lambda _: EXACT,  # division and rounding to even are fixed by IEEE 754
    ceiling="copy",
)
OURS = Entry(prepare=called(fill))
TORCH = Entry(prepare=_prepare_torch)
