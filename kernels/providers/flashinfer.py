"""FlashInfer through its public wrappers: paged decode and prefill, and the append of tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from kvproof.kernels.providers.engine import (
    Engine,
    decode_as_prefill,
    number,
    only_requests_with_tokens,
    uneven_scales,
)
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider

ENGINE = Engine("FlashInfer", "flashinfer-python", "0.7.2.post1")

WORKSPACE_BYTES = 512 << 20

GROUPS = (1, 2, 3, 4, 6, 8, 16)
"""Query heads per KV head for which the kernel on CUDA cores is compiled."""


def flashinfer() -> Provider:
    """Decode on tensor cores, FlashInfer's own choice for groups of query heads."""
    kernels = {
        "paged_decode": _decode_entry(tensor_cores=True),
        "paged_prefill": Entry(_prefill, _attention_cannot),
        "kv_fill": Entry(_append, _append_cannot),
    }
    return Provider(name="flashinfer", version=ENGINE.version(), kernels=kernels)


def flashinfer_cuda_cores() -> Provider:
    """Its decode without tensor cores."""
    kernels = {"paged_decode": _decode_entry(tensor_cores=False)}
    return Provider(name="flashinfer_cuda_cores", version=ENGINE.version(), kernels=kernels)


def _decode_entry(*, tensor_cores: bool) -> Entry:
    prepare = partial(_decode, tensor_cores=tensor_cores)
    cannot = _attention_cannot if tensor_cores else _cuda_cores_cannot
    return Entry(only_requests_with_tokens(prepare), cannot)


def _attention_cannot(case: Case) -> str:
    if case.get("latent"):
        return "latent keys are passed in two parts, which one page does not hold apart"
    if case["kv_dtype"] in ("int8", "int4"):
        return "FlashInfer has no INT8 and no such INT4 keys and values"
    if case["sinks"]:
        return "sinks need a module compiled for them"
    if uneven_scales(case):
        return "FP8 keys and values have one scale each, not one for each head"
    return ""


def _cuda_cores_cannot(case: Case) -> str:
    group = int(case["heads"]) // int(case["kv_heads"])
    if group not in GROUPS:
        return f"compiled for groups of {', '.join(map(str, GROUPS))} query heads; it is {group}"
    if int(case["q_tokens"]) > 1:
        return "several query tokens run on tensor cores"
    return _attention_cannot(case)


def _decode(case: Case, arguments: Arguments, *, tensor_cores: bool) -> Launch:
    """Several query tokens per request are a prefill, as documented."""
    if arguments["q"].shape[1] > 1:
        return _prefill(case, decode_as_prefill(arguments))
    wrapper = ENGINE.load("flashinfer", "BatchDecodeWithPagedKVCacheWrapper")
    backend = "fa2" if tensor_cores else "auto"
    made = wrapper(_workspace(arguments), "NHD", use_tensor_cores=tensor_cores, backend=backend)
    q, out, keys = (
        arguments["q"].flatten(0, 1),
        arguments["out"].flatten(0, 1),
        arguments["k_pages"],
    )
    heads, (page, kv_heads, dim) = q.shape[1], keys.shape[1:]
    pages = _pages(arguments["block_table"], arguments["lengths"], page)
    made.plan(*pages, heads, kv_heads, dim, page, **_options(arguments))
    return _run(made, q, out, arguments)


def _prefill(_: Case, arguments: Arguments) -> Launch:
    wrapper = ENGINE.load("flashinfer", "BatchPrefillWithPagedKVCacheWrapper")
    made = wrapper(_workspace(arguments), "NHD")
    q, keys = arguments["q"], arguments["k_pages"]
    heads, (page, kv_heads, dim) = q.shape[1], keys.shape[1:]
    pages = _pages(arguments["block_table"], arguments["lengths"], page)
    made.plan(
        arguments["query_starts"], *pages, heads, kv_heads, dim, page,
        causal=True, **_options(arguments),
    )  # fmt: skip
    return _run(made, q, arguments["out"], arguments)


def _run(wrapper: Any, q: torch.Tensor, out: torch.Tensor, arguments: Arguments) -> Launch:
    cache = (arguments["k_pages"], arguments["v_pages"])
    scales = {}
    if arguments["k_scale"] is not None:
        named = ("k_scale", "v_scale")
        scales = {name: number(arguments[name]) for name in named}
    return lambda: wrapper.run(q, cache, out=out, **scales)


def _options(arguments: Arguments) -> dict[str, Any]:
    return {
        "window_left": arguments["window"] - 1 if arguments["window"] else -1,
        "logits_soft_cap": arguments["soft_cap"] or None,
        "q_data_type": arguments["q"].dtype,
        "kv_data_type": arguments["k_pages"].dtype,
        "sm_scale": arguments["scale"],
    }


def _workspace(arguments: Arguments) -> torch.Tensor:
    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=arguments["q"].device)


def _pages(
    table: torch.Tensor, lengths: torch.Tensor, page: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    counts = -(-lengths // page)
    starts = torch.zeros(len(lengths) + 1, dtype=torch.int32, device=table.device)
    starts[1:] = counts.cumsum(0)
    used = torch.arange(table.shape[1], device=table.device) < counts[:, None]
    return starts, table[used], (lengths - (counts - 1) * page).int()


def _append_cannot(case: Case) -> str:
    if case["to"] == "slots":
        return "new tokens are placed by block tables, not by slots"
    if case["rows"] == "latent":
        return "keys and values are written together"
    if case["cache"] != "same":
        return "rows are stored as they are; they are quantised by another kernel before"
    return ""


def _append(case: Case, arguments: Arguments) -> Launch:
    append = ENGINE.load("flashinfer", "append_paged_kv_cache")
    table, starts, bounds = (arguments[name] for name in ("block_table", "starts", "query_starts"))
    new = bounds.diff()
    first = starts - bounds[:-1]
    request = torch.arange(len(starts), device=table.device).repeat_interleave(new)
    position = torch.arange(len(request), device=table.device) + first[request]
    bounds, ids, last = _pages(table, starts + new, int(case["page"]))
    k, v = (arguments[name][: len(request)] for name in ("k", "v"))
    cache = (arguments["k_pages"], arguments["v_pages"])
    where = (request.int(), position.int(), cache, ids, bounds, last, arguments["layout"])
    return lambda: append(k, v, *where)
