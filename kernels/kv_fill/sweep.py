"""What is swept of filling pages, and the least that must move."""

from __future__ import annotations

import random as random_numbers
from itertools import pairwise, product
from typing import Any

import torch

from kvproof.kernels.kv_fill import kv_fill, torch_path, torch_reference
from kvproof.kernels.kv_fill.pages import FLOAT8, checked
from kvproof.kernels.kv_fill.where import Table
from kvproof.kernels.source import Source
from kvproof.kernels.spec import Arguments, Case, Cost, Entry, Kernel, Launch, Problem, Tolerance

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
STORED = {"same": None, "fp8": FLOAT8, "int8": torch.int8}

SPARE_PAGES = 3
"""Pages that nobody writes to and that must stay as they are."""


def case(
    *,
    page: int = 16,
    head_dim: int = 128,
    heads: int = 8,
    dtype: str = "bf16",
    cache: str = "same",
    layout: str = "NHD",
    to: str = "table",
    requests: int = 4,
    tokens: int = 8192,
    past: int = 1001,
    batch: str = "even",
    rows: str = "packed",
) -> Case:
    """One cell.

    `cache`: what the pages hold: the dtype itself, fp8 or int8. `to`: how it is said where tokens
    go. `batch`: `even` requests of equal length at `past`, or `ragged` ones, some of them empty,
    at starts around page borders and with padding. `rows`: K and V `packed`, a `slice` of a larger
    tensor, or `latent`, one tensor only.
    """
    return dict(locals())


def make(case: Case, source: Source) -> Problem:
    """Random rows, scattered and poisoned pages with some that nobody uses."""
    arguments = _rows(case, source)
    lengths, starts = _batch(case, source)
    page, heads, dim = (int(case[name]) for name in ("page", "heads", "head_dim"))
    entries = [
        range(start // page, -(-(start + n) // page)) if n else range(0)
        for start, n in zip(starts, lengths, strict=True)
    ]
    count = sum(len(each) for each in entries) + SPARE_PAGES
    shape = (count, page, heads, dim) if case["layout"] == "NHD" else (count, heads, page, dim)
    stored = STORED[str(case["cache"])] or DTYPES[str(case["dtype"])]
    names = ["k", "v"] if arguments["v"] is not None else ["k"]
    arguments |= {f"{name}_pages": source.output(shape, stored) for name in names}
    arguments |= _scales(case, source, names, count)
    table = _table(entries, source, count)
    arguments |= _where(case, source, table, starts, lengths)
    scaled = [f"{name}_scales" for name in names if case["cache"] == "int8"]
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
    """Every row read once, written once as it is stored, with its scale."""
    k, pages = arguments["k"], arguments["k_pages"]
    tokens = _written(arguments)
    both = 1 if arguments["v"] is None else 2
    elements = tokens * k.shape[1] * k.shape[2] * both
    scales = tokens * k.shape[1] * both * 4 if case["cache"] == "int8" else 0
    ids = tokens * 4
    return Cost(elements * k.element_size() + ids, elements * pages.element_size() + scales)


def tolerance(case: Case) -> Tolerance:
    """Every byte: also quantised values have one right answer."""
    moved = case["cache"] == "same"
    reason = (
        "bytes are moved, not computed"
        if moved
        else "both sides divide in float32 and round to nearest even, as IEEE 754 says"
    )
    return Tolerance(0.0, 0.0, reason)


def random(count: int, *, seed: int) -> list[Case]:
    """Random shapes of moderate size."""
    numbers = random_numbers.Random(seed)  # noqa: S311 - shapes, no secrets
    return [_random_case(numbers) for _ in range(count)]


def _random_case(numbers: random_numbers.Random) -> Case:
    pick = numbers.choice
    return case(
        page=pick([1, 8, 16, 24, 32, 64, 128, 256]),
        head_dim=pick([32, 64, 80, 96, 112, 128, 192, 256]),
        heads=numbers.randint(1, 12),
        dtype=pick(list(DTYPES)),
        cache=pick(list(STORED)),
        layout=pick(["NHD", "HND"]),
        to=pick(["table", "slots"]),
        requests=numbers.randint(1, 40),
        tokens=numbers.randint(1, 3000),
        past=numbers.randint(0, 600),
        batch=pick(["even", "ragged"]),
        rows=pick(["packed", "slice", "latent"]),
    )


def _rows(case: Case, source: Source) -> dict[str, Any]:
    dtype = DTYPES[str(case["dtype"])]
    tokens, heads, dim = (int(case[name]) for name in ("tokens", "heads", "head_dim"))
    extra = heads + 1 if case["rows"] == "slice" else 0
    if case["rows"] == "slice":
        wide = source.normal((tokens, 2 * heads + extra, dim), dtype)
        k, v = wide[:, extra : extra + heads], wide[:, extra + heads :]
    else:
        k = source.normal((tokens, heads, dim), dtype)
        v = None if case["rows"] == "latent" else source.normal((tokens, heads, dim), dtype)
    if case["cache"] == "int8":
        k[tokens // 2] = 0  # a row whose scale would divide by zero
    return {"k": k, "v": v, "v_pages": None, "layout": str(case["layout"])}


def _batch(case: Case, source: Source) -> tuple[list[int], list[int]]:
    """New tokens of each request, and where they start."""
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
        made = {f"{name}_scale": source.put(_positive(source, heads)) for name in names}
    elif case["cache"] == "int8":
        made = {f"{name}_scales": source.output(shape, torch.float32) for name in names}
    else:
        made = {}
    return none | made


def _positive(source: Source, count: int) -> torch.Tensor:
    return source.normal((count,), torch.float32).abs() * 0.02 + 0.003


def _table(entries: list[range], source: Source, count: int) -> torch.Tensor:
    """[batch, width] of scattered pages; -1 where nothing is written, which needs no page."""
    pages = source.permutation(count).tolist()
    width = max([each.stop for each in entries] + [1])
    rows = []
    for each in entries:
        taken = [pages.pop() for _ in each]
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
    if case["batch"] == "ragged":
        slots[::7] = -1
    return {"slots": source.put(slots), **dict.fromkeys(Table._fields)}


def _written(arguments: Arguments) -> int:
    if arguments["slots"] is not None:
        return int((arguments["slots"] >= 0).sum())
    return int(arguments["query_starts"][-1])


def _ours(_: Case, arguments: Arguments) -> Launch:
    return lambda: kv_fill(**arguments)


def _torch(case: Case, arguments: Arguments) -> Launch:
    named = ("k", "v", "k_pages", "v_pages", "layout", "k_scale", "v_scale", "k_scales", "v_scales")
    pages = checked(**{name: arguments[name] for name in named})
    slots = arguments["slots"]
    if slots is None:
        table = Table(*(arguments[name] for name in Table._fields))
        slots = table.slots(int(case["tokens"]), pages.page_size)
    to = torch_path.targets(slots, pages.page_size)
    return lambda: torch_path.fill(arguments["k"], arguments["v"], pages, to)


def _cpu() -> list[Case]:
    small: dict[str, Any] = {"requests": 5, "tokens": 37, "past": 40, "batch": "ragged"}
    shapes = [(16, 2, 64), (5, 3, 80), (64, 1, 128), (1, 4, 32)]
    stored = [
        ("bf16", "same"), ("fp16", "same"), ("fp32", "same"), ("bf16", "fp8"), ("fp16", "fp8"),
        ("bf16", "int8"), ("fp32", "int8"),
    ]  # fmt: skip
    grid = [
        case(page=page, heads=heads, head_dim=dim, dtype=dtype, cache=cache, layout=layout, to=to,
             **small)
        for (page, heads, dim), (dtype, cache), layout, to in product(
            shapes[:2], stored, ("NHD", "HND"), ("table", "slots")
        )
    ]  # fmt: skip
    corners = [
        case(page=page, heads=heads, head_dim=dim, cache=cache, rows=rows, to=to, **small)
        for (page, heads, dim), cache, rows, to in product(
            shapes[2:], STORED, ("packed", "slice"), ("table", "slots")
        )
    ]
    widths = [
        case(head_dim=dim, heads=heads, rows=rows, requests=3, tokens=9, past=15)
        for dim, heads, rows in (
            (96, 2, "packed"), (128, 5, "packed"), (256, 1, "slice"), (256, 8, "packed"),
            (576, 1, "latent"), (512, 1, "latent"), (64, 12, "slice"), (192, 2, "packed"),
        )
    ]  # fmt: skip
    lengths = [
        case(page=page, heads=2, head_dim=64, requests=requests, tokens=tokens, past=past,
             layout=layout)
        for page, layout in ((16, "NHD"), (32, "HND"))
        for requests, tokens, past in (
            (1, 1, 0), (1, page - 1, 0), (1, page, 0), (1, page + 1, 0), (1, 1, page - 1),
            (2, 4, page - 1), (40, 40, 3),
        )
    ]  # fmt: skip
    return [*grid, *corners, *widths, *lengths]


def _gpu() -> list[Case]:
    stored = [("bf16", "same"), ("fp16", "same"), ("bf16", "fp8"), ("bf16", "int8")]
    return [
        case(page=page, head_dim=dim, dtype=dtype, cache=cache, layout=layout, to=to,
             requests=requests, tokens=tokens, past=past)
        for page, dim, (dtype, cache), layout, to, (requests, tokens, past) in product(
            (16, 32, 64, 128, 256), (64, 96, 128, 256), stored, ("NHD", "HND"),
            ("table", "slots"), ((64, 64, 500), (4, 8192, 1001)),
        )
    ]  # fmt: skip


def _anchors() -> list[Case]:
    return [
        case(page=page, head_dim=dim, to=to, requests=requests, tokens=tokens, past=past)
        for page, dim, to, (requests, tokens, past) in product(
            (16, 64, 128, 256), (128, 256), ("table", "slots"),
            ((256, 256, 4095), (4, 8192, 1001), (4, 65536, 1001)),
        )
    ]  # fmt: skip


KERNEL = Kernel(
    name="kv_fill",
    sentence="writes the keys and values of new tokens into their pages",
    axes={
        "page": (16, 32, 64, 128, 256),
        "head_dim": (64, 96, 128, 256),
        "tokens": (64, 256, 8192, 65536),
    },
    cells={"cpu": _cpu, "gpu": _gpu, "anchors": _anchors},
    make=make,
    reference=reference,
    cost=cost,
    tolerance=tolerance,
    ceiling="copy",
)

OURS = Entry(prepare=_ours)
TORCH = Entry(prepare=_torch)
