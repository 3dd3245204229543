"""Sweep of the decode steps of recurrent layers: cells, inputs, reference, minimum work.

Arguments are the fields of `Step`. Sources are no rows that are written, so that a launch can be
repeated; in place they are tested apart.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import torch

from kvproof.kernels.paged_inputs import DTYPES as _NARROW
from kvproof.kernels.source import Source
from kvproof.kernels.spec import Arguments, Case, Cost, Entry, Kernel, Launch, Problem, Tolerance
from kvproof.kernels.state_step.launch import gated_delta_step, mamba2_step
from kvproof.kernels.state_step.step import MOST_KEY, Step
from kvproof.kernels.state_step.torch_reference import stepped

DTYPES = {"bf16": _NARROW["bf16"], "fp16": _NARROW["fp16"], "fp32": torch.float32}
RULES = ("delta", "mamba2")
KEPT = ("each", "last", "none")


def cell(**axes: Any) -> Case:
    """A cell.

    `tokens`: of each request; `ragged` lengths are 0 to `tokens`. `kept`: states after `each`
    token, the `last` or `none`. `padding`: requests without a state. `extras`: vectors are
    normalised, or Mamba2 has a bias and skips. `slices`: tensors are parts of wider rows.
    """
    usual: dict[str, Any] = {
        "rule": "delta", "requests": 64, "tokens": 1, "lengths": "equal", "heads": 16,
        "value_heads": 32, "key_dim": 128, "value_dim": 128, "dtype": "bf16", "state": "fp32",
        "kept": "each", "padding": 0, "extras": True, "slices": False,
    }  # fmt: skip
    return usual | axes


MAMBA2: dict[str, Any] = {"rule": "mamba2", "heads": 8, "value_heads": 64, "value_dim": 64}
"""Nemotron's heads; those of the delta rule are Qwen3-Next's."""


def make(case: Case, source: Source) -> Problem:
    """States of poison, but for those that are read; rows in random order, from row 1 on."""
    delta, dtype = case["rule"] == "delta", DTYPES[str(case["dtype"])]
    requests, heads, value_heads = (int(case[a]) for a in ("requests", "heads", "value_heads"))
    longest, key, value = (int(case[a]) for a in ("tokens", "key_dim", "value_dim"))
    lengths = torch.full((requests,), longest)
    if case["lengths"] == "ragged":
        lengths = source.integers((requests,), low=0, high=longest + 1).cpu().long()
    tokens = int(lengths.sum())
    sliced = bool(case["slices"])

    def drawn(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return _drawn(source, (tokens, *shape), dtype, scale=scale, sliced=sliced)

    arguments: Arguments = {
        "q": drawn(heads, key),
        "k": drawn(heads, key, scale=key**-0.5),
        "v": drawn(value_heads, value),
        **_rates(source, drawn, value_heads, delta=delta),
        **_states(case, source, lengths),
        "query_starts": None,
        "out": source.output((tokens + 1, value_heads, value), dtype)[:tokens],
        "delta": delta,
        "scale": key**-0.5 if delta else 1.0,
        "normalised": delta and bool(case["extras"]),
        "bias": None,
        "skips": None,
    }
    if case["lengths"] == "ragged" or longest > 1:
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        arguments["query_starts"] = source.put(starts.int())
    if not delta and case["extras"]:
        arguments["bias"] = source.normal((value_heads,), torch.float32)
        arguments["skips"] = source.normal((value_heads,), torch.float32)
    return Problem(arguments, ("states", "out"))


def _drawn(
    source: Source, shape: tuple[int, ...], dtype: torch.dtype, *, scale: float, sliced: bool
) -> torch.Tensor:
    """Random rows; sliced ones begin at the second number of wider rows."""
    if not sliced:
        return source.normal(shape, dtype, scale=scale)
    width = torch.Size(shape[1:]).numel()
    wide = source.normal((shape[0], width + 3), dtype, scale=scale)
    return wide[:, 1 : 1 + width].unflatten(1, shape[1:])


def _rates(
    source: Source, drawn: Callable[..., torch.Tensor], value_heads: int, *, delta: bool
) -> Arguments:
    """Decays of 0.1 to 1, and strengths; softplus is taken of numbers of all sizes."""
    if delta:
        decays, strengths = drawn(value_heads), drawn(value_heads)
        decays.copy_(-torch.nn.functional.softplus(decays.float() - 1))
        return {"decays": decays, "strengths": strengths.copy_(strengths.float().sigmoid())}
    decays = source.normal((value_heads,), torch.float32).exp_().neg_()
    return {"decays": decays, "strengths": drawn(value_heads, scale=4.0)}


def _states(case: Case, source: Source, lengths: torch.Tensor) -> Arguments:
    requests, width = int(case["requests"]), int(case["tokens"])
    value_heads, value, key = (int(case[a]) for a in ("value_heads", "value_dim", "key_dim"))
    count = 1 + requests * (width + 1)
    order = 1 + source.permutation(count - 1)
    sources = source.put(order[:requests])
    rows = source.put(order[requests:].view(requests, width))
    last = torch.arange(width) == lengths[:, None] - 1
    if case["kept"] != "each":
        kept = last if case["kept"] == "last" else torch.zeros_like(last)
        rows.masked_fill_(~kept.to(rows.device), 0)
    size = value_heads * value * key
    dtype = DTYPES[str(case["state"])]
    gap = 3 if case["slices"] else 0
    pool = source.output((count, size + gap), dtype, reach=size * dtype.itemsize)
    states = pool[:, :size].unflatten(1, (value_heads, value, key))
    # In pieces: all states at once would be drawn in float32 next to the pool.
    for row in sources.tolist():
        states[row] = source.normal((value_heads, value, key), dtype)
    padded = source.permutation(requests)[: int(case["padding"])].long()
    sources[padded[0::2]] = 0
    sources[padded[1::2]] = -1
    return {"states": states, "sources": sources, "rows": rows}


def reference(_: Case, arguments: Arguments) -> dict[str, torch.Tensor]:
    """The answer in float64; states that are not written stay."""
    states, out = arguments["states"].clone(), arguments["out"].double()
    step = replace(Step(**arguments), states=states, out=out)
    stepped(step, longest=step.longest(), compute=torch.float64)
    return {"states": states, "out": out}


def cost(case: Case, arguments: Arguments) -> Cost:
    """States that are read and kept, and every number of a token, once."""
    step = Step(**arguments)
    lengths, real = step.starts().diff(), step.sources > 0
    size = step.states[0].nbytes
    number = torch.arange(step.rows.shape[1], device=lengths.device)
    kept = int(((step.rows > 0) & real[:, None] & (number < lengths[:, None])).sum())
    names = ("q", "k", "v", "decays", "strengths")
    vectors = sum(arguments[name].numel() * arguments[name].itemsize for name in names)
    work = (8 if case["rule"] == "delta" else 6) * int(lengths[real].sum()) * step.states[0].numel()
    read = size * int((real & (lengths > 0)).sum()) + vectors + step.rows.nbytes
    return Cost(read=read, write=size * kept + step.out.nbytes, flops=work)


def tolerance(case: Case) -> Tolerance:
    """Rounding of outputs and of kept states."""
    if "bf16" in (case["dtype"], case["state"]):
        return Tolerance(4e-3, 8e-3, "outputs or states are rounded to bfloat16")
    if "fp16" in (case["dtype"], case["state"]):
        return Tolerance(5e-4, 1e-3, "outputs or states are rounded to float16")
    return Tolerance(1e-5, 2e-5, "computed in float32")


def _small() -> list[Case]:
    """Every rule, dtype and way to keep states; then sizes around powers of two, and padding."""
    shapes = {
        "requests": 3, "tokens": 3, "lengths": "ragged", "heads": 2, "value_heads": 4,
        "key_dim": 16, "value_dim": 12,
    }  # fmt: skip
    grid = product(RULES, DTYPES, DTYPES, KEPT)
    ways = [
        cell(**shapes, rule=rule, dtype=dtype, state=state, kept=kept, padding=number % 3,
             extras=number % 2 == 0, slices=number % 4 == 1)
        for number, (rule, dtype, state, kept) in enumerate(grid)
    ]  # fmt: skip
    sizes = ((1, 1), (15, 33), (17, 7), (32, 64), (255, 2), (MOST_KEY, 3))
    return ways + [
        cell(rule=rule, requests=2, tokens=tokens, heads=1, value_heads=value_heads, key_dim=key,
             value_dim=value, dtype="fp32")
        for rule, tokens, value_heads, (key, value) in product(RULES, (1, 4), (1, 3), sizes)
    ]  # fmt: skip


def _steps(requests: tuple[int, ...], **more: Any) -> list[Case]:
    """Both rules with states of both sizes."""
    rules: tuple[dict[str, Any], ...] = ({}, MAMBA2)
    return [
        cell(**rule, state=state, requests=count, **more)
        for rule, state, count in product(rules, ("fp32", "bf16"), requests)
    ]


def _gpu() -> list[Case]:
    changes: tuple[dict[str, Any], ...] = (
        {"tokens": 4}, {"tokens": 4, "kept": "last"}, {"tokens": 8, "lengths": "ragged"},
        {"tokens": 32, "requests": 4}, {"padding": 40}, {"slices": True}, {"dtype": "fp32"},
        {"key_dim": 127}, {"key_dim": 129}, {"key_dim": MOST_KEY}, {"value_dim": 127},
        {"value_dim": 129}, {"key_dim": 64}, {"heads": 1}, {"extras": False},
    )  # fmt: skip
    rules: tuple[dict[str, Any], ...] = ({}, MAMBA2)
    usual = {"requests": 16}
    around = [cell(**{**usual, **rule, **change}) for rule, change in product(rules, changes)]
    return [*_steps((1, 4, 16, 64, 256)), *around]


def random_cells(count: int, *, seed: int = 0, small: bool = False) -> list[Case]:
    """Seeded shapes over the documented range of every axis; small ones for the interpreter."""
    draw = random.Random(seed)  # noqa: S311 - shapes, not secrets
    return [_random(draw, *((2, 3) if small else (6, 30))) for _ in range(count)]


def _random(draw: random.Random, most_heads: int, most_requests: int) -> Case:
    heads, requests = draw.randint(1, most_heads), draw.randint(1, most_requests)
    key = draw.choice((draw.randint(1, MOST_KEY), 8 * draw.randint(1, 32), 64, 128))
    return cell(
        rule=draw.choice(RULES), requests=requests,
        tokens=draw.choice((1, 1, draw.randint(1, 8), draw.randint(1, 32))),
        lengths=draw.choice(("equal", "ragged")), heads=heads,
        value_heads=heads * draw.randint(1, 4), key_dim=key,
        value_dim=draw.choice((draw.randint(1, 300), 64, 128)),
        dtype=draw.choice(tuple(DTYPES)), state=draw.choice(tuple(DTYPES)),
        kept=draw.choice(KEPT), padding=draw.choice((0, draw.randint(0, requests))),
        extras=draw.random() < 0.5, slices=draw.random() < 0.3,
    )  # fmt: skip


KERNEL = Kernel(
    name="state_step",
    sentence="decode steps of recurrent layers (gated delta rule, Mamba2) on paged states",
    axes={
        "rule": RULES, "requests": (1, 4, 16, 64, 256), "tokens": (1, 4, 8, 32),
        "lengths": ("equal", "ragged"), "heads": (1, 8, 16), "value_heads": (32, 64),
        "key_dim": (64, 127, 128, 129, MOST_KEY), "value_dim": (64, 127, 128, 129),
        "dtype": tuple(DTYPES), "state": tuple(DTYPES), "kept": KEPT, "padding": (0, 40),
        "extras": (False, True), "slices": (False, True),
    },
    cells={
        "cpu": _small,
        "gpu": _gpu,
        "published": lambda: [*_steps((1, 16, 64, 256)), *_steps((16,), tokens=4)],
        "random": lambda: random_cells(200),
    },
    make=make,
    reference=reference,
    cost=cost,
    tolerance=tolerance,
    ceiling="copy",
)  # fmt: skip


def _prepare_ours(_: Case, arguments: Arguments) -> Launch:
    given = dict(arguments)
    names = ("states", "sources", "rows", "query_starts", "out")
    shared: Any = {name: given.pop(name) for name in names}
    delta = given.pop("delta")
    Step(**arguments).check_values()
    if delta:
        del given["bias"], given["skips"]
        return lambda: gated_delta_step(**given, **shared)
    x, dt, a, b, c = (given[name] for name in ("v", "strengths", "decays", "k", "q"))
    return lambda: mamba2_step(
        x, dt, a, b, c, **shared, dt_bias=given["bias"], skips=given["skips"]
    )


def _prepare_torch(_: Case, arguments: Arguments) -> Launch:
    step = Step(**arguments)
    longest = step.longest()
    return lambda: stepped(step, longest=longest)


OURS = Entry(prepare=_prepare_ours)
TORCH = Entry(prepare=_prepare_torch)
