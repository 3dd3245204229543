"""Sweep of the merge of parts: cells, inputs, reference, minimum work.

Arguments are those of `merge_parts`. What an empty part holds is NaN.
"""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import torch

from kvproof.kernels.paged_inputs import DTYPES
from kvproof.kernels.part_merge.launch import merge_parts
from kvproof.kernels.part_merge.torch_reference import merged
from kvproof.kernels.source import Source
from kvproof.kernels.spec import Arguments, Case, Cost, Entry, Kernel, Problem, Tolerance, called

KINDS = {"bf16": DTYPES["bf16"], "fp16": DTYPES["fp16"], "fp32": torch.float32}


def cell(**axes: Any) -> Case:
    """A cell: a part is empty for one token in `empty`; 0: none is."""
    usual: dict[str, Any] = {
        "parts": 2, "tokens": 64, "heads": 32, "head_dim": 128, "dtype": "bf16", "empty": 0,
    }  # fmt: skip
    return usual | axes


def make(case: Case, source: Source) -> Problem:
    """Random parts; logarithms are spread so that each part weighs something."""
    tokens, heads, dim = (int(case[name]) for name in ("tokens", "heads", "head_dim"))
    dtype, count, empty = KINDS[str(case["dtype"])], int(case["parts"]), int(case["empty"])
    parts = source.normal((count, tokens, heads, dim), dtype)
    sums = source.normal((count, tokens, heads), torch.float32, scale=3.0)
    if empty:
        none = source.integers((count, tokens), low=0, high=empty) == 0
        none[:, 0] = True
        sums[none] = float("-inf")
        parts[none] = float("nan")
    out = source.output((tokens, heads, dim), dtype)
    out_sums = source.output((tokens, heads), torch.float32)
    return Problem(
        {"parts": parts, "sums": sums, "out": out, "out_sums": out_sums}, ("out", "out_sums")
    )


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The answer in float64."""
    out, sums = merged(arguments["parts"], arguments["sums"], compute=torch.float64)
    return {"out": out, "out_sums": sums}


def cost(_: Case, arguments: Arguments) -> Cost:
    """Parts that are not empty, and all logarithms, once in; the answer once out."""
    parts, sums, out = (arguments[name] for name in ("parts", "sums", "out"))
    seen = int((sums > float("-inf")).sum()) * parts.shape[3] * parts.itemsize
    return Cost(read=seen + sums.nbytes, write=out.nbytes + arguments["out_sums"].nbytes)


def judged(_: Case, __: Arguments, outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Infinite logarithms as numbers: of these differences can be taken."""
    return outputs | {"out_sums": outputs["out_sums"].clamp_min(-1e4)}


def _of_numbers(case: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    return judged(case, arguments, reference(case, arguments))


def tolerance(case: Case) -> Tolerance:
    """Rounding of the answer."""
    if case["dtype"] == "fp32":
        return Tolerance(1e-5, 1e-4, "sums are of float32")
    return Tolerance(4e-3, 8e-3, "the answer is rounded")


def _small() -> list[Case]:
    sizes = product((1, 2, 5), (1, 7, 64, 100), KINDS, (0, 2))
    return [
        cell(parts=parts, tokens=3, heads=3, head_dim=dim, dtype=dtype, empty=empty)
        for parts, dim, dtype, empty in sizes
    ]


def _gpu() -> list[Case]:
    sizes = product((2, 3, 8, 33), (1, 64, 2048), (64, 100, 128, 256, 512), ("bf16", "fp32"))
    return [
        cell(parts=parts, tokens=tokens, head_dim=dim, dtype=dtype, empty=empty)
        for (parts, tokens, dim, dtype), empty in product(sizes, (0, 4))
    ]


def random_cells(count: int, *, seed: int = 0) -> list[Case]:
    """Seeded shapes over the documented range of every axis."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [
        cell(
            parts=draw.randint(1, 40), tokens=draw.randint(1, 300), heads=draw.randint(1, 40),
            head_dim=draw.choice((draw.randint(1, 256), draw.randint(1, 1024))),
            dtype=draw.choice(tuple(KINDS)), empty=draw.choice((0, 1, 2, 5)),
        )
        for _ in range(count)
    ]  # fmt: skip


KERNEL = Kernel(
    name="part_merge",
    sentence="merges attention over parts of a context by their log-sum-exps",
    axes={"parts": (1, 2, 3, 5, 8, 33), "tokens": (1, 64, 2048), "head_dim": (64, 128, 256, 512)},
    choices={"dtype": tuple(KINDS)},
    cells={
        "cpu": _small,
        "gpu": _gpu,
        "published": lambda: [cell(tokens=tokens) for tokens in (64, 2048)],
        "random": lambda: random_cells(80),
    },
    make=make,
    reference=_of_numbers,
    cost=cost,
    tolerance=tolerance,
    ceiling="copy",
    judged=judged,
)


def _in_torch(**arguments: Any) -> None:
    out, sums = merged(arguments["parts"], arguments["sums"])
    arguments["out"].copy_(out)
    arguments["out_sums"].copy_(sums)


OURS = Entry(prepare=called(merge_parts))
TORCH = Entry(prepare=called(_in_torch))
