"""Sweep of the fill of latent rows: cells, inputs, the right bytes, the least work."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import torch

from kvproof.kernels.latent_fill.launch import fill_torch, latent_fill
from kvproof.kernels.source import Source
from kvproof.kernels.sparse_latent.rows import KEYS, ROPE, ROW, VALUES, pack
from kvproof.kernels.spec import EXACT, Arguments, Case, Cost, Entry, Kernel, Problem, called

SPARE_PAGES = 2
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def cell(**axes: Any) -> Case:
    """A cell.

    `holes`: some slots are -1. `rows`: tensors of their own, or a `slice` of one of 576 columns.
    `apart`: bytes between pages.
    """
    usual: dict[str, Any] = {
        "page": 64, "tokens": 256, "dtype": "bf16", "holes": False, "rows": "whole", "apart": 0,
    }  # fmt: skip
    return usual | axes


def make(case: Case, source: Source) -> Problem:
    """Columns of any size, a group of zeros among them, for slots scattered over poison."""
    page, tokens = int(case["page"]), int(case["tokens"])
    dtype = DTYPES[str(case["dtype"])]
    columns = source.normal((tokens, KEYS), dtype)
    columns.mul_(source.normal((tokens, 1), torch.float32, scale=2.0).exp().to(dtype))
    columns[tokens // 2, :200] = 0
    latent, rope = columns[:, :VALUES], columns[:, VALUES:]
    if case["rows"] == "whole":
        latent, rope = source.put(latent), source.put(rope)
    count = -(-tokens // page) + SPARE_PAGES
    slots = source.permutation(count * page)[:tokens]
    if case["holes"]:
        slots[::3] = -1
    size = page * ROW
    pages = source.output((count, size + int(case["apart"])), torch.uint8)[:, :size]
    arguments: Arguments = {"latent": latent, "rope": rope, "slots": slots}
    return Problem({**arguments, "pages": pages.unflatten(1, (page, ROW))}, ("pages",))


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """Every byte of every page, written or not, on the host."""
    pages = arguments["pages"].clone()
    rows = pack(torch.cat([arguments[name].float() for name in ("latent", "rope")], 1).cpu())
    for token, slot in enumerate(arguments["slots"].tolist()):
        if slot >= 0:
            pages[divmod(slot, pages.shape[1])] = rows[token].to(pages.device)
    return {"pages": pages}


def cost(_: Case, arguments: Arguments) -> Cost:
    """Every column is read once, and its row is written."""
    slots, size = arguments["slots"], arguments["latent"].element_size()
    written = int((slots >= 0).sum())
    return Cost(read=written * (VALUES + ROPE) * size + slots.nbytes, write=written * ROW)


def _small() -> list[Case]:
    grid = product((1, 24), (1, 19), DTYPES, (False, True))
    return [
        cell(page=page, tokens=tokens, dtype=dtype, holes=holes, apart=4 * (number % 3),
             rows=("whole", "slice")[number // 2 % 2])
        for number, (page, tokens, dtype, holes) in enumerate(grid)
    ]  # fmt: skip


def _gpu() -> list[Case]:
    changes: tuple[dict[str, Any], ...] = (
        {"page": 1}, {"page": 16}, {"page": 48}, {"page": 256}, {"tokens": 1}, {"tokens": 1001},
        {"tokens": 8192}, {"dtype": "fp16"}, {"dtype": "fp32"}, {"holes": True},
        {"rows": "slice"}, {"apart": 4}, {"apart": 1024},
    )  # fmt: skip
    return [cell(**change) for change in changes]


def random_cells(count: int, *, seed: int = 0) -> list[Case]:
    """Seeded shapes."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [
        cell(
            page=draw.choice((1, 7, 24, 64, 100, 256)), tokens=draw.randint(1, 3000),
            dtype=draw.choice(tuple(DTYPES)), holes=draw.random() < 0.5,
            rows=draw.choice(("whole", "slice")), apart=4 * draw.choice((0, 0, 1, 3, 64)),
        )
        for _ in range(count)
    ]  # fmt: skip


KERNEL = Kernel(
    name="latent_fill",
    sentence="latent rows of 656 bytes, quantised to FP8 with four scales, into their slots",
    axes={
        "page": (1, 16, 48, 64, 256), "tokens": (1, 64, 256, 8192, 65536),
        "dtype": tuple(DTYPES), "holes": (False, True), "rows": ("whole", "slice"),
        "apart": (0, 4, 8, 1024),
    },
    cells={
        "cpu": _small,
        "gpu": _gpu,
        "published": lambda: [cell(tokens=tokens) for tokens in (64, 256, 8192, 65536)],
        "random": lambda: random_cells(60),
    },
    make=make,
    reference=reference,
    cost=cost,
    tolerance=lambda _: EXACT,  # division and rounding to even are fixed by IEEE 754
    ceiling="copy",
)  # fmt: skip
OURS = Entry(prepare=called(latent_fill))
TORCH = Entry(prepare=called(fill_torch))
