"""Sweep of decode over shared prefixes: inputs, the right answer, the least work.

The reference attends each request over one row of tokens, its prefix and its own, in float64.
"""

from __future__ import annotations

from typing import Any

import torch

from kvproof.kernels.backend import runs_triton
from kvproof.kernels.paged_decode.launch import shape_of_problem
from kvproof.kernels.paged_decode.sweep import tolerance
from kvproof.kernels.paged_decode.workspace import workspace
from kvproof.kernels.paged_prefill.torch_reference import attend, dense
from kvproof.kernels.shared_prefix.cells import SETS
from kvproof.kernels.shared_prefix.inputs import make
from kvproof.kernels.shared_prefix.launch import prefix_work, shared_prefix_decode
from kvproof.kernels.spec import Arguments, Case, Cost, Entry, Kernel, Launch


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The answer in float64, and its logarithms."""
    found, sums = attended(arguments, torch.float64)
    return {"out": found.to(arguments["out"].dtype), "lse": sums.clamp_min(NOTHING).float()}


def attended(arguments: Arguments, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Results and logarithms, request by request."""
    q, tokens = arguments["q"], arguments["q"].shape[1]
    out, sums = torch.zeros_like(q, dtype=dtype), q.new_zeros(q.shape[:3], dtype=dtype)
    options = {name: arguments[name] for name in ("scale", "soft_cap", "sinks")}
    starts, prefixes = arguments["prefix_starts"].tolist(), arguments["prefix_lengths"].tolist()
    for prefix, length in enumerate(prefixes):
        shared = _rows(arguments, arguments["prefix_table"][prefix], length, dtype)
        for request in range(starts[prefix] // tokens, starts[prefix + 1] // tokens):
            own = int(arguments["lengths"][request])
            rest = _rows(arguments, arguments["block_table"][request], own, dtype)
            keys, values = (torch.cat(pair) for pair in zip(shared, rest, strict=True))
            # A request without tokens sees its prefix, as one with new tokens does.
            seen = {"window": 0, "causal": own > 0, **options}
            out[request], sums[request] = attend(q[request].to(dtype), keys, values, **seen)
    return out, sums


def _rows(
    arguments: Arguments, table: torch.Tensor, length: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    k, v = (
        dense(arguments[f"{each}_pages"], arguments[f"{each}_scale"], table, length, dtype)
        for each in "kv"
    )
    return k, v


NOTHING = -30.0
"""In place of minus infinity, of which no differences can be taken; far below all others."""


def judged(_: Case, __: Arguments, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Logarithms as numbers."""
    return outputs | {"lse": outputs["lse"].clamp_min(NOTHING)}


def cost(_: Case, arguments: Arguments) -> Cost:
    """Each token of the pool is read once; two products of every visible pair."""
    q, keys, out = arguments["q"], arguments["k_pages"], arguments["out"]
    prefixes, sharing = arguments["prefix_lengths"], arguments["prefix_starts"].diff()
    seen = int(prefixes.sum() + arguments["lengths"].sum())
    row = keys.shape[3] * keys.itemsize + (4 if keys.dtype == torch.int8 else 0)
    tables = 4 * (len(arguments["lengths"]) + 2 * len(prefixes) + 1 + -(-seen // keys.shape[1]))
    pairs = int((prefixes * sharing).sum() + arguments["lengths"].sum() * q.shape[1])
    return Cost(
        read=2 * seen * keys.shape[2] * row + q.nbytes + tables,
        write=out.nbytes + arguments["lse"].nbytes,
        flops=4 * q.shape[2] * q.shape[3] * pairs,
    )


def _prepare(_: Case, arguments: Arguments) -> Launch:
    """Preparation once a step: the division of the prefixes, and a workspace."""
    if not runs_triton(arguments["q"]):
        return lambda: shared_prefix_decode(**arguments)
    names = ("q", "k_pages", "v_pages", "prefix_table", "prefix_lengths", "prefix_starts",
             "most_sharing", "longest_prefix")  # fmt: skip
    made: dict[str, Any] = {"work": prefix_work(**{name: arguments[name] for name in names})}
    shape = shape_of_problem(*(arguments[name] for name in ("q", "k_pages", "v_pages", "out")))
    made["space"] = workspace(shape, device=arguments["q"].device)
    return lambda: shared_prefix_decode(**arguments, **made, tables_ready=True)


def _in_torch(_: Case, arguments: Arguments) -> Launch:
    def launch() -> None:
        found, sums = attended(arguments, torch.float32)
        arguments["out"].copy_(found)
        arguments["lse"].copy_(sums)

    return launch


KERNEL = Kernel(
    name="shared_prefix",
    sentence="decode attention of requests that share the start of their contexts",
    axes={
        "page": (16, 32, 64, 128, 256),
        "head_dim": (64, 96, 128, 192, 256),
        "kv_dtype": ("bf16", "fp16", "fp8", "int8"),
        "batch": (8, 16, 64, 256),
        "prefixes": (1, 2, 5, 16),
        "prefix": (0, 100, 4096, 8192, 32768),
        "own": (1, 512, 4096),
        "lengths": ("equal", "edges"),
        "heads": (8, 32, 64),
        "kv_heads": (1, 2, 4, 8, 32),
        "q_tokens": (1, 2, 4),
        "sinks": (False, True),
        "soft_cap": (0.0, 30.0),
    },
    cells=SETS,
    make=make,
    reference=reference,
    cost=cost,
    tolerance=tolerance,
    ceiling="read",
    judged=judged,
)

OURS = Entry(prepare=_prepare)
TORCH = Entry(prepare=_in_torch)
