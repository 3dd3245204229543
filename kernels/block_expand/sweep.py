"""Sweep of the block table expansion: cells, and the minimum traffic."""

from __future__ import annotations

import random
from itertools import product

import torch

from kvproof.kernels.block_expand import block_expand, torch_reference
from kvproof.kernels.block_expand.launch import expand_with_torch
from kvproof.kernels.source import Source
from kvproof.kernels.spec import EXACT, Arguments, Case, Cost, Entry, Kernel, Launch, Problem

MOST_BLOCKS = 1 << 20


def cell(
    *,
    ratio: int = 4,
    rows: int = 256,
    blocks: int = 2048,
    padding: str = "none",
    buffer: str = "exact",
) -> Case:
    """One cell.

    `padding`: rows end in null blocks (`null`), in -1 (`minus`) or are full (`none`). `buffer`: the
    output is as large as the result (`exact`), or rows of both tensors are longer (`larger`).
    """
    return dict(locals())


def make(case: Case, source: Source) -> Problem:
    """Random blocks, some of them padding, and a poisoned output."""
    rows, blocks, ratio = (int(case[name]) for name in ("rows", "blocks", "ratio"))
    spare = 5 if case["buffer"] == "larger" else 0
    table = source.integers((rows, blocks + spare), low=0, high=MOST_BLOCKS)
    if case["padding"] != "none":
        lengths = source.integers((rows,), low=0, high=blocks + 1)
        column = torch.arange(blocks + spare, device=table.device)
        table.masked_fill_(column >= lengths[:, None], 0 if case["padding"] == "null" else -1)
    out = source.output((rows + spare, blocks * ratio + spare), torch.int32)
    return Problem({"block_table": table[:, :blocks], "ratio": ratio, "out": out}, ("out",))


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The whole buffer."""
    table, out, ratio = (arguments[name] for name in ("block_table", "out", "ratio"))
    return {"out": torch_reference.expand(table, out, ratio=ratio)}


def cost(_: Case, arguments: Arguments) -> Cost:
    """Every id read once, every kernel block written once."""
    count = arguments["block_table"].numel()
    return Cost(read=4 * count, write=4 * count * arguments["ratio"])


def random_cells(count: int, *, seed: int = 0) -> list[Case]:
    """Random shapes of moderate size."""
    numbers = random.Random(seed)  # noqa: S311 - shapes, no secrets
    return [
        cell(
            ratio=numbers.choice([1, 2, 3, 4, 5, 8, 16, 64]),
            rows=numbers.randint(1, 300),
            blocks=numbers.randint(1, 3000),
            padding=numbers.choice(["none", "null", "minus"]),
            buffer=numbers.choice(["exact", "larger"]),
        )
        for _ in range(count)
    ]


def _ours(_: Case, arguments: Arguments) -> Launch:
    def launch() -> None:
        block_expand(**arguments)

    return launch


def _torch(_: Case, arguments: Arguments) -> Launch:
    table, ratio = arguments["block_table"], arguments["ratio"]
    rows, blocks = table.shape
    target = arguments["out"][:rows, : blocks * ratio]
    return lambda: expand_with_torch(table, target, ratio)


def _cpu() -> list[Case]:
    widths = (1, 33, 200)
    grid = [
        cell(ratio=ratio, rows=rows, blocks=blocks, padding=padding, buffer=buffer)
        for ratio, (rows, blocks), (padding, buffer) in product(
            (1, 2, 4, 8),
            zip((1, 7, 3), widths, strict=True),
            (("none", "exact"), ("null", "larger"), ("minus", "exact")),
        )
    ]
    odd = [cell(ratio=ratio, rows=4, blocks=50, padding="minus") for ratio in (3, 5, 16, 64)]
    return [*grid, *odd]


def _gpu() -> list[Case]:
    return [
        cell(ratio=ratio, rows=rows, blocks=blocks, padding="minus", buffer=buffer)
        for ratio, rows, blocks, buffer in product(
            (1, 2, 4, 8, 16), (1, 16, 64, 256), (32, 512, 2048), ("exact", "larger")
        )
    ]


def _published() -> list[Case]:
    return [cell(buffer=buffer) for buffer in ("exact", "larger")]


def _random() -> list[Case]:
    return random_cells(100)


KERNEL = Kernel(
    name="block_expand",
    sentence="turns a manager's block table into the blocks that kernels address",
    axes={"ratio": (1, 2, 4, 8, 16), "rows": (1, 16, 64, 256), "blocks": (32, 512, 2048)},
    choices={"padding": ("none", "null", "minus"), "buffer": ("exact", "larger")},
    cells={"cpu": _cpu, "gpu": _gpu, "published": _published, "random": _random},
    make=make,
    reference=reference,
    cost=cost,
    tolerance=lambda _: EXACT,
    ceiling="copy",
)

OURS = Entry(prepare=_ours)
TORCH = Entry(prepare=_torch)
