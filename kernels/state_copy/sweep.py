"""Cells of the recurrent-state copy.

Arguments that every provider is called with:

- `conv`, `ssm`: [layers, rows, elements], the two pools of each layer; row 0 is the null row;
- `sources`, `destinations`: int32 [pairs]; a pair with a row below 1 is padding.
"""

from __future__ import annotations

import random
from itertools import product

import torch

from kvproof.kernels.source import Source, poison
from kvproof.kernels.spec import EXACT, Arguments, Case, Cost, Entry, Kernel, Launch, Problem
from kvproof.kernels.state_copy.launch import StatePools, check, copy_rows, launch, state_pools
from kvproof.kernels.state_copy.torch_reference import copy_one_by_one

DTYPES = {
    "uint8": torch.uint8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}


def make(case: Case, source: Source) -> Problem:
    """Random rows to read; every other row is poison."""
    pairs, padding = int(case["pairs"]), int(case["padding"])
    rows = 2 * pairs + 2
    order = 1 + source.permutation(rows - 1)
    sources, destinations = order[:pairs].clone(), order[pairs : 2 * pairs].clone()
    conv = _pool(case, "conv", rows, sources, source)
    ssm = _pool(case, "ssm", rows, sources, source)
    padded = torch.randperm(pairs, generator=torch.Generator().manual_seed(pairs))[:padding]
    sources[padded[0::2]] = 0
    destinations[padded[1::2]] = -1
    arguments: Arguments = {
        "conv": conv,
        "ssm": ssm,
        "sources": source.put(sources),
        "destinations": source.put(destinations),
    }
    return Problem(arguments, ("conv", "ssm"))


def _pool(
    case: Case, name: str, rows: int, used: torch.Tensor, source: Source
) -> torch.Tensor:
    dtype = DTYPES[str(case["dtype"])]
    layers, size = int(case["layers"]), int(case[f"{name}_elements"])
    pool = source.output((layers, rows, size), dtype)
    for layer in pool:
        for row in used.tolist():
            layer[row] = source.bytes((size * dtype.itemsize,)).view(dtype)
    return pool


def reference(case: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """Row by row, pool by pool."""
    sources, destinations = arguments["sources"], arguments["destinations"]
    return {
        name: torch.stack([copy_one_by_one(pool, sources, destinations) for pool in arguments[name]])
        for name in ("conv", "ssm")
    }


def cost(case: Case, arguments: Arguments) -> Cost:
    """Every byte of the rows that are copied, once in and once out, and the lists."""
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
