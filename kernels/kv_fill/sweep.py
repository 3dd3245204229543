"""Sweep of the KV fill: cells, and the minimum traffic."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from kvproof.kernels.kv_fill import kv_fill, torch_path, torch_reference
from kvproof.kernels.kv_fill.cells import SETS
from kvproof.kernels.kv_fill.pages import FLOAT8, checked
from kvproof.kernels.kv_fill.where import Table
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
    Tolerance,
    called,
)

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_STORED = {"fp8": FLOAT8, "int8": torch.int8, "int4": torch.uint8}
_SCALED = ("int8", "int4")
"""Caches with a scale for each token and head."""

SPARE_PAGES = 3
"""Pages without an owner, which must stay unchanged."""


def make(case: Case, source: Source) -> Problem:
    """Random rows, scattered and poisoned pages, some of them unused."""
    arguments = _rows(case, source)
    lengths, starts = _batch(case, source)
    page, heads, dim = (int(case[name]) for name in ("page", "heads", "head_dim"))
    entries = [
        range(start // page, -(-(start + n) // page)) if n else range(0)
        for start, n in zip(starts, lengths, strict=True)
    ]
    count = sum(len(each) for each in entries) + SPARE_PAGES
    width = dim // 2 if case["cache"] == "int4" else dim
    shape = (count, page, heads, width) if case["layout"] == "NHD" else (count, heads, page, width)
    stored = _STORED.get(str(case["cache"]), arguments["k"].dtype)
    names = ["k", "v"] if arguments["v"] is not None else ["k"]
    arguments |= {f"{name}_pages": source.output(shape, stored) for name in names}
    arguments |= _scales(case, source, names, count)
    table = _table(entries, source, count, holes=case["batch"] == "holes")
    arguments |= _where(case, source, table, starts, lengths)
    scaled = [f"{name}_scales" for name in names if case["cache"] in _SCALED]
    return Problem(arguments, (*(f"{name}_pages" for name in names), *scaled))


def reference(case: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """Every page and scale, written or not."""
    places = torch_reference.places(arguments, page_size=int(case["page"]))
    expected = {}
    for name in ("k", "v"):
        if arguments[name] is None:
            continue
        pages, scales = torch_reference.fill(
            arguments[name],
            arguments[f"{name}_pages"],
            places=places,
            layout=str(case["layout"]),
            scale=arguments[f"{name}_scale"],
            scales=arguments[f"{name}_scales"],
        )
        expected[f"{name}_pages"] = pages
        if scales is not None:
            expected[f"{name}_scales"] = scales
    return expected


def cost(case: Case, arguments: Arguments) -> Cost:
    """Every row read once, written once in its stored form, with its scale."""
    k, pages = arguments["k"], arguments["k_pages"]
    tokens = _written(arguments)
    both = 1 if arguments["v"] is None else 2
    elements = tokens * k.shape[1] * k.shape[2] * both
    scales = tokens * k.shape[1] * both * 4 if case["cache"] in _SCALED else 0
    ids = tokens * 4
    written = elements // 2 if case["cache"] == "int4" else elements * pages.element_size()
    return Cost(elements * k.element_size() + ids, written + scales)


def tolerance(case: Case) -> Tolerance:
    """Exact bytes, except for values near the midpoint between two of fp8."""
    if case["cache"] == "fp8":
        return Tolerance(
            1e-3, 0.08, "to divide or to multiply by the inverse may round to neighbours in e4m3"
        )
    if case["cache"] in _SCALED:
        return Tolerance(0.0, 0.0, "float32 operations and rounding to even are fixed by IEEE 754")
    return EXACT


def _rows(case: Case, source: Source) -> dict[str, Any]:
    dtype = _DTYPES[str(case["dtype"])]
    tokens, heads, dim = (int(case[name]) for name in ("tokens", "heads", "head_dim"))
    extra = heads + 1 if case["rows"] == "slice" else 0
    if case["rows"] == "slice":
        wide = source.normal((tokens, 2 * heads + extra, dim), dtype)
        k, v = wide[:, extra : extra + heads], wide[:, extra + heads :]
    else:
        k = source.normal((tokens, heads, dim), dtype)
        v = None if case["rows"] == "latent" else source.normal((tokens, heads, dim), dtype)
    if case["cache"] in _SCALED:
        k[tokens // 2] = 0  # a row whose scale would divide by zero
    return {"k": k, "v": v, "v_pages": None, "layout": str(case["layout"])}


def _batch(case: Case, source: Source) -> tuple[list[int], list[int]]:
    requests, tokens, past, page = (
        int(case[name]) for name in ("requests", "tokens", "past", "page")
    )
    if case["batch"] == "even":
        return [tokens // requests] * requests, [past] * requests
    cuts = source.integers((requests - 1,), low=0, high=tokens - tokens // 8 + 1).tolist()
    bounds = [0, *sorted(cuts), tokens - tokens // 8]
    lengths = [after - before for before, after in pairwise(bounds)]
    near = [0, 1, page - 1, page, page + 1, past]
    chosen = source.integers((requests,), low=0, high=len(near)).tolist()
    return lengths, [near[i] for i in chosen]


def _scales(case: Case, source: Source, names: list[str], count: int) -> dict[str, Any]:
    heads, shape = int(case["heads"]), (count, int(case["page"]), int(case["heads"]))
    none = dict.fromkeys(("k_scale", "v_scale", "k_scales", "v_scales"))
    if case["cache"] == "fp8":
        # Small enough that some values saturate.
        count = heads if case["scales"] == "head" else 1
        made = {
            f"{name}_scale": source.put(_positive(source, count).expand(heads)) for name in names
        }
    elif case["cache"] in _SCALED:
        made = {f"{name}_scales": source.output(shape, torch.float32) for name in names}
    else:
        made = {}
    return none | made


def _positive(source: Source, count: int) -> torch.Tensor:
    return source.normal((count,), torch.float32).abs() * 0.02 + 0.003


def _table(entries: list[range], source: Source, count: int, *, holes: bool) -> torch.Tensor:
    """[batch, width] of scattered pages.

    -1 for pages without new tokens, and with `holes` for some others.
    """
    pages = source.permutation(count).tolist()
    width = max([each.stop for each in entries] + [1])
    rows = []
    for each in entries:
        taken = [-1 if holes and number % 5 == 3 else pages.pop() for number in each]
        rows.append([-1] * each.start + taken + [-1] * (width - each.start - len(taken)))
    return source.put(torch.tensor(rows, dtype=torch.int32))


def _where(
    case: Case, source: Source, table: torch.Tensor, starts: list[int], lengths: list[int]
) -> dict[str, Any]:
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    found = Table(table, source.put(torch.tensor(starts).int()), source.put(bounds))
    if case["to"] == "table":
        return {"slots": None, **found._asdict()}
    slots = found.slots(int(case["tokens"]), int(case["page"]))
    if case["batch"] != "even":
        slots[::7] = -1
    return {"slots": source.put(slots), **dict.fromkeys(Table._fields)}


def _written(arguments: Arguments) -> int:
    slots = arguments["slots"]
    if slots is None:
        page_size = arguments["k_pages"].shape[1 if arguments["layout"] == "NHD" else 2]
        slots = Table(*(arguments[name] for name in Table._fields)).slots(
            len(arguments["k"]), page_size
        )
    return int((slots >= 0).sum())


def _torch(case: Case, arguments: Arguments) -> Launch:
    named = ("k", "v", "k_pages", "v_pages", "layout", "k_scale", "v_scale", "k_scales", "v_scales")
    pages = checked(**{name: arguments[name] for name in named})
    slots = arguments["slots"]
    if slots is None:
        table = Table(*(arguments[name] for name in Table._fields))
        slots = table.slots(int(case["tokens"]), pages.page_size)
    to = torch_path.targets(slots, pages.page_size)
    return lambda: torch_path.fill(arguments["k"], arguments["v"], pages, to)


KERNEL = Kernel(
    name="kv_fill",
    sentence="writes the keys and values of new tokens into their pages",
    axes={
        "page": (16, 32, 64, 128, 256),
        "head_dim": (64, 96, 128, 256),
        "tokens": (64, 256, 8192, 65536),
    },
    choices={
        "dtype": tuple(_DTYPES),
        "cache": ("same", *_STORED),
        "layout": ("NHD", "HND"),
        "to": ("slots", "table"),
        "batch": ("even", "ragged", "holes"),
        "rows": ("packed", "slice", "latent"),
        "scales": ("head", "tensor"),
    },
    cells=SETS,
    make=make,
    reference=reference,
    cost=cost,
    tolerance=tolerance,
    ceiling="copy",
)

OURS = Entry(prepare=called(kv_fill))
TORCH = Entry(prepare=_torch)
