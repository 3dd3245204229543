"""Sweep of paged prefill attention: cells, inputs, reference, minimum work."""

from __future__ import annotations

import torch

from kvproof.kernels.backend import runs_triton
from kvproof.kernels.paged_prefill import torch_reference
from kvproof.kernels.paged_prefill.cells import LAYOUTS, LENGTHS, SETS
from kvproof.kernels.paged_prefill.inputs import make, requests_of
from kvproof.kernels.paged_prefill.launch import paged_prefill, prefill_work
from kvproof.kernels.paged_prefill.torch_dense import prepare_dense, why_not_dense
from kvproof.kernels.spec import Arguments, Case, Cost, Entry, Kernel, Launch, Tolerance

HOST_ONLY = ("out", "longest_query", "longest")
"""Arguments without influence on the answer."""


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The answer in float64."""
    return {"out": attended(arguments, torch.float64)}


def attended(arguments: Arguments, dtype: torch.dtype) -> torch.Tensor:
    """The attention of all new tokens, request by request."""
    given = {name: value for name, value in arguments.items() if name not in HOST_ONLY}
    return torch_reference.paged_prefill(**given, dtype=dtype)[0]


def cost(case: Case, arguments: Arguments) -> Cost:
    """Visible tokens are read once, with their scales; two products for each visible pair."""
    q, keys, window = arguments["q"], arguments["k_pages"], int(case["window"])
    requests = requests_of(case)
    pairs = sum(_pairs(one.cached, one.new, window) for one in requests)
    seen = sum(
        min(one.length, window + one.new - 1) if window else one.length
        for one in requests
        if one.new
    )
    row = keys.shape[3] * keys.itemsize + (4 if keys.dtype == torch.int8 else 0)
    tables = 4 * (2 * len(requests) + 1 + -(-seen // keys.shape[1]))
    return Cost(
        read=2 * seen * keys.shape[2] * row + q.nbytes + tables,
        write=q.nbytes,
        flops=4 * q.shape[1] * q.shape[2] * pairs,
    )


def _pairs(cached: int, new: int, window: int) -> int:
    whole = new * cached + new * (new + 1) // 2
    beyond = max(0, cached + new - window) if window else 0
    skipped = max(0, cached - window) if window else 0
    return whole - (beyond * (beyond + 1) - skipped * (skipped + 1)) // 2


def tolerance(case: Case) -> Tolerance:
    """Rounding of the answer and of the weights to the width of the products."""
    if case["kv_dtype"] == "fp16":
        return Tolerance(1e-3, 4e-3, "weights and answer are rounded to float16")
    return Tolerance(5e-3, 1.5e-2, "weights and answer are rounded to bfloat16")


KERNEL = Kernel(
    name="paged_prefill",
    sentence="causal attention of chunks of new tokens over their paged context",
    axes={
        "page": [16, 32, 64, 128, 256],
        "head_dim": [1, 7, 12, 60, 64, 96, 100, 128, 192, 252, 256],
        "kv_dtype": ["bf16", "fp16", "fp8", "int8"],
        "batch": [1, 4, 8],
        "context": [0, 1000, 4096, 16384, 32768, 65536],
        "new": [64, 128, 500, 1000, 2048, 8192],
        "lengths": list(LENGTHS),
        "heads": [8, 16, 32, 40, 64],
        "kv_heads": [1, 2, 4, 8, 16, 32],
        "window": [0, 128, 1000, 4096],
        "sinks": [False, True],
        "soft_cap": [0.0, 30.0],
        "layout": list(LAYOUTS),
    },
    cells=SETS,
    make=make,
    reference=reference,
    cost=cost,
    tolerance=tolerance,
    ceiling="matmul",
)


def _prepare(_: Case, arguments: Arguments) -> Launch:
    """The division of a step is made once, as schedules of other kernels are."""
    if not runs_triton(arguments["q"]):
        return lambda: paged_prefill(**arguments)
    names = ("q", "k_pages", "v_pages", "block_table", "lengths", "query_starts",
             "longest_query", "longest", "window")  # fmt: skip
    work = prefill_work(**{name: arguments[name] for name in names})
    return lambda: paged_prefill(**arguments, work=work)


OURS = Entry(prepare=_prepare)
TORCH = Entry(prepare=prepare_dense, unsupported=why_not_dense)
