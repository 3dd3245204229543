"""Paged decode attention for sweeps: cells, inputs, the right answer, the least work."""

from __future__ import annotations

import torch

from kvproof.kernels.paged_decode.cells import SETS
from kvproof.kernels.paged_decode.inputs import make
from kvproof.kernels.paged_decode.launch import paged_decode, shape_of_problem
from kvproof.kernels.paged_decode.rules import kv_bits
from kvproof.kernels.paged_decode.torch_dense import dense_decode, why_not_dense
from kvproof.kernels.paged_decode.torch_reference import paged_decode_torch
from kvproof.kernels.paged_decode.workspace import workspace
from kvproof.kernels.spec import Arguments, Case, Cost, Entry, Kernel, Launch, Tolerance, called


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The answer in float64, rounded once."""
    out = torch.empty_like(arguments["out"])
    paged_decode_torch(**{**arguments, "out": out}, compute=torch.float64)
    return {"out": out}


def cost(_: Case, arguments: Arguments) -> Cost:
    """Visible tokens are read once, with their scales; two products of every row with them."""
    q, keys, out = arguments["q"], arguments["k_pages"], arguments["out"]
    seen = sum(_seen_tokens(arguments))
    row = q.shape[3] + (out.shape[3] if arguments["v_pages"] is not None else 0)
    scales = 8 if keys.dtype in (torch.int8, torch.uint8) else 0
    tables = 4 * (len(arguments["lengths"]) + -(-seen // keys.shape[1]))
    return Cost(
        read=seen * keys.shape[2] * (row * kv_bits(keys) // 8 + scales) + q.nbytes + tables,
        write=out.nbytes,
        flops=2 * seen * q.shape[1] * q.shape[2] * (q.shape[3] + out.shape[3]),
    )


def tolerance(case: Case) -> Tolerance:
    """Rounding of the answer and of the weights to the width of the products."""
    if case["kv_dtype"] == "fp16":
        return Tolerance(1e-3, 4e-3, "weights and answer are rounded to float16")
    if case["kv_dtype"] == "bf16":
        return Tolerance(5e-3, 1.5e-2, "weights and answer are rounded to bfloat16")
    return Tolerance(
        5e-3,
        1.5e-2,
        "scaled keys, weights and answer may be rounded to bfloat16, as engines do; weights or"
        " queries rounded to FP8 would be wrong by ten times as much",
    )


def _seen_tokens(arguments: Arguments) -> list[int]:
    """Tokens of each request that at least one of its positions sees."""
    reach = arguments["window"] + arguments["q"].shape[1] - 1
    lengths = arguments["lengths"].tolist()
    return [min(length, reach) for length in lengths] if arguments["window"] else lengths


def _prepare(_: Case, arguments: Arguments) -> Launch:
    tensors = (arguments[name] for name in ("q", "k_pages", "v_pages", "out"))
    space = workspace(shape_of_problem(*tensors), device=arguments["q"].device)
    # An engine's tables are written once a step, and its layers follow each other.
    return lambda: paged_decode(**arguments, tables_ready=True, space=space)


KERNEL = Kernel(
    name="paged_decode",
    sentence="attention of the last 1 to 32 tokens of each request over its paged context",
    axes={
        "page": [16, 32, 64, 128, 256],
        "head_dim": [64, 96, 100, 128, 192, 256],
        "kv_dtype": ["bf16", "fp16", "fp8", "int8", "int4"],
        "batch": [1, 8, 64],
        "context": [4096, 32768, 131072],
        "lengths": ["equal", "ragged", "edges"],
        "heads": [16, 32],
        "kv_heads": [1, 4, 8],
        "q_tokens": [1, 2, 4, 8, 16, 32],
        "window": [0, 128, 1000, 4096],
        "sinks": [False, True],
        "soft_cap": [0.0, 30.0],
        "latent": [0, 512],
        "scales": ["head", "tensor"],
        "leftovers": ["nan", "finite"],
    },
    cells=SETS,
    make=make,
    reference=reference,
    cost=cost,
    tolerance=tolerance,
    ceiling="read",
)
OURS = Entry(prepare=_prepare)
TORCH = Entry(prepare=called(dense_decode), unsupported=why_not_dense)
