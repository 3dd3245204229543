"""Cells of the recurrent-state copy.

Arguments that every provider is called with:

- `conv`, `ssm`: [layers, rows, elements], the two pools of each layer; row 0 is the null row;
- `sources`, `destinations`: int32 [pairs]; a pair with a row below 1 is padding.
"""

from __future__ import annotations

import random
from itertools import product

import torch

from kvproof.kernels.source import Source
from kvproof.kernels.spec import EXACT, Arguments, Case, Cost, Entry, Kernel, Launch, Problem
from kvproof.kernels.state_copy.launch import StatePools, check, copy_rows, launch, state_pools
from kvproof.kernels.state_copy.torch_reference import copy_one_by_one

SIZES = ((49152, 2 << 20), (7296, 131072), (12288, 524288), (2048, 16384))
"""Bytes of the convolution and recurrent state of one layer."""

DTYPES = {
    "uint8": torch.uint8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


def make(case: Case, source: Source) -> Problem:
    """Random source rows, including row 0, so that copying it shows; others are poison.

    Around the pools are rows of canaries, which padding that is taken for a row would read or
    write.
    """
    pairs, padding = int(case["pairs"]), int(case["padding"])
    rows = 2 * pairs + 2
    order = 1 + source.permutation(rows - 1)
    sources, destinations = source.put(order[:pairs]), source.put(order[pairs : 2 * pairs])
    filled = torch.cat([sources.new_zeros(1), sources])
    arguments: Arguments = {
        "conv": _pool(case, "conv", rows, filled, source),
        "ssm": _pool(case, "ssm", rows, filled, source),
        "sources": sources,
        "destinations": destinations,
    }
    padded = source.permutation(pairs)[:padding].long()
    sources[padded[0::2]] = 0
    destinations[padded[1::2]] = -1
    return Problem(arguments, ("conv", "ssm"))


def _pool(case: Case, name: str, rows: int, used: torch.Tensor, source: Source) -> torch.Tensor:
    dtype = DTYPES[str(case["dtype"])]
    layers, size = int(case["layers"]), int(case[f"{name}_elements"])
    pool = source.output((layers, rows, size), dtype, reach=size * dtype.itemsize)
    # As bytes: a copy of values may change the bits of a NaN.
    content = source.bytes((layers, used.numel(), size * dtype.itemsize))
    pool.view(torch.uint8)[:, used.long()] = content
    return pool


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """Row by row, pool by pool."""
    sources, destinations = arguments["sources"], arguments["destinations"]
    return {
        name: torch.stack(
            [copy_one_by_one(pool, sources, destinations) for pool in arguments[name]]
        )
        for name in ("conv", "ssm")
    }


def cost(case: Case, arguments: Arguments) -> Cost:
    """Every byte of the copied rows, once in and once out, and the lists."""
    sources, destinations = arguments["sources"], arguments["destinations"]
    pairs = int(((sources > 0) & (destinations > 0)).sum())
    elements = int(case["conv_elements"]) + int(case["ssm_elements"])
    size = pairs * int(case["layers"]) * elements * DTYPES[str(case["dtype"])].itemsize
    return Cost(read=size + 8 * sources.numel(), write=size)


def pools_of(arguments: Arguments) -> StatePools:
    """The pools of all layers, described."""
    return state_pools([*arguments["conv"], *arguments["ssm"]])


def _prepare_ours(_: Case, arguments: Arguments) -> Launch:
    states = pools_of(arguments)
    sources, destinations = arguments["sources"], arguments["destinations"]
    check(states, sources, destinations, check_rows=True)
    if sources.is_cuda:
        return lambda: launch(states, sources, destinations)
    return lambda: copy_rows(states, sources, destinations)


def _prepare_torch(_: Case, arguments: Arguments) -> Launch:
    """Select and copy the rows of all layers at once; engines know the padding on the host."""
    real = (arguments["sources"] > 0) & (arguments["destinations"] > 0)
    sources = arguments["sources"][real].long()
    destinations = arguments["destinations"][real].long()
    pools = [_wide(arguments[name]) for name in ("conv", "ssm")]

    def run() -> None:
        for pool in pools:
            pool.index_copy_(1, destinations, pool.index_select(1, sources))

    return run


def _wide(pool: torch.Tensor) -> torch.Tensor:
    size = pool.shape[-1] * pool.element_size()
    return pool.view(next(kind for kind in _INTEGERS if size % kind.itemsize == 0))


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def case(
    *,
    pairs: int = 1,
    layers: int = 36,
    conv_elements: int = 49152,
    ssm_elements: int = 2 << 20,
    dtype: str = "uint8",
    padding: int = 0,
) -> Case:
    """A cell: `pairs` of which the first `padding` in random order are padding."""
    return {
        "pairs": pairs,
        "layers": layers,
        "conv_elements": conv_elements,
        "ssm_elements": ssm_elements,
        "dtype": dtype,
        "padding": padding,
    }


def _cpu() -> list[Case]:
    """Every dtype, padded and not; then rows that are no multiple of 16 bytes or of a tile."""
    cells = [
        case(pairs=5, layers=2, conv_elements=96, ssm_elements=700, dtype=dtype, padding=padding)
        for dtype, padding in product(DTYPES, (0, 3))
    ]
    return cells + [
        case(pairs=pairs, layers=1, conv_elements=conv, ssm_elements=ssm, padding=padding)
        for pairs, padding in ((1, 0), (1, 1), (3, 2))
        for conv, ssm in ((1, 33), (48, 16384), (6, 16388), (16400, 40), (8, 50000))
    ]


def _gpu() -> list[Case]:
    cells = [
        case(pairs=pairs, layers=layers, conv_elements=conv, ssm_elements=ssm)
        for (conv, ssm), layers in product(SIZES, (9, 36))
        for pairs in (1, 2, 4, 16, 64 if ssm < 1 << 20 else 32)
    ]
    odd = case(pairs=3, conv_elements=1001, ssm_elements=4099)
    return [*cells, case(pairs=8, padding=5), odd]


def random_cells(count: int, *, seed: int = 0) -> list[Case]:
    """Seeded shapes: any sizes, dtype and padding."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [_drawn(draw) for _ in range(count)]


def _drawn(draw: random.Random) -> Case:
    pairs = draw.randint(1, 20)
    return case(
        pairs=pairs,
        layers=draw.randint(1, 12),
        conv_elements=draw.randint(1, 20000),
        ssm_elements=draw.choice((16, 1)) * draw.randint(1, 10000),
        dtype=draw.choice(tuple(DTYPES)),
        padding=draw.choice((0, draw.randint(0, pairs))),
    )


KERNEL = Kernel(
    name="state_copy",
    sentence="copies recurrent states of all layers between rows of their pools",
    axes={"pairs": (1, 2, 4, 16, 32, 64), "ssm_elements": tuple(sorted(ssm for _, ssm in SIZES))},
    choices={"dtype": tuple(DTYPES)},
    cells={
        "cpu": _cpu,
        "gpu": _gpu,
        "published": lambda: [case(pairs=1), case(pairs=16)],
        "random": lambda: random_cells(60),
    },
    make=make,
    reference=reference,
    cost=cost,
    tolerance=lambda _: EXACT,
    ceiling="copy",
)

OURS = Entry(prepare=_prepare_ours)
TORCH = Entry(prepare=_prepare_torch)
