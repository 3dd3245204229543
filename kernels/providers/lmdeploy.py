"""LMDeploy's Triton kernels: paged decode, prefill over a flattened copy, and KV fill."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.kernels.providers.engine import (
    Engine,
    allocating,
    into,
    is_power,
    only_requests_with_tokens,
    uneven_scales,
    value_scale,
    values_of,
)
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider

ENGINE = Engine("LMDeploy", "lmdeploy", "0.18.0")

LEAST_PAGE = 16
"""A page is the tile of a matrix product, which has at least 16 rows."""


def lmdeploy() -> Provider:
    """LMDeploy's PyTorch engine on CUDA, without FlashAttention 3."""
    kernels = {
        "paged_decode": Entry(only_requests_with_tokens(_decode), _decode_cannot),
        "paged_prefill": Entry(_prefill, _attention_cannot),
        "kv_fill": Entry(_fill, _fill_cannot),
    }
    return Provider(name="lmdeploy", version=ENGINE.version(), kernels=kernels)


def _kernel(module: str, name: str) -> Any:
    return ENGINE.load(f"lmdeploy.pytorch.kernels.cuda.{module}", name)


def _attention_cannot(case: Case) -> str:
    page = int(case["page"])
    if case["kv_dtype"] == "int4":
        return "INT4 has scales and zero points in two numbers"
    if not is_power(page):
        return f"the tile is the page, so its size is a power of two; it is {page}"
    if case["window"] == 1:
        return "a window is given without the token itself, and 0 means none"
    if uneven_scales(case):
        return "FP8 keys and values have one scale each, not one for each head"
    return ""


def _decode_cannot(case: Case) -> str:
    if int(case["page"]) < LEAST_PAGE:
        return f"the tile is the page, so it has at least {LEAST_PAGE} tokens"
    if int(case["q_tokens"]) > 1:
        return "query tokens are not masked against each other: all see the whole context"
    return _attention_cannot(case)


def _decode(_: Case, arguments: Arguments) -> Launch:
    attend = _kernel("pagedattention", "flash_attn_with_kvcache")
    out = arguments["out"].flatten(0, 1)
    q = allocating(arguments["q"].flatten(0, 1), out)
    keys, values, quantised = _cache(arguments)
    options = {
        "cache_seqlens": arguments["lengths"],
        "page_table": arguments["block_table"],
        **_options(arguments),
        **quantised,
    }
    return lambda: into(out, attend(q, keys, values, **options))


def _prefill(case: Case, arguments: Arguments) -> Launch:
    flatten = _kernel("flatten_kv_cache", "flatten_kv_cache")
    attend = _kernel("flashattention", "flash_attn_varlen_func")
    out, lengths, table = (arguments[name] for name in ("out", "lengths", "block_table"))
    q = allocating(arguments["q"], out)
    keys, values, quantised = _cache(arguments)
    page = int(case["page"])
    starts = lengths.cumsum(0) - lengths
    # The engine's size: whole pages, and one more, since tiles are read whole.
    size = (-(-int(lengths.sum()) // page) + 1) * page
    ends = torch.cat((starts[:1], lengths.cumsum(0))).int()
    options = {
        "cu_seqlens_q": arguments["query_starts"],
        "cu_seqlens_k": ends,
        "max_seqlen_q": arguments["longest_query"],
        "max_seqlen_k": arguments["longest"],
        "causal": True,
        **_options(arguments),
    }

    def launch() -> None:
        k, v = flatten(
            keys, values, lengths, table,
            start_loc=starts, out_size=size, out_dtype=q.dtype, **quantised,
        )  # fmt: skip
        into(out, attend(q, k, v, **options))

    return launch


def _options(arguments: Arguments) -> dict[str, Any]:
    window = arguments["window"]
    return {
        "softmax_scale": arguments["scale"],
        "window_size": window - 1 if window else -1,
        "softcap": arguments["soft_cap"] or -1.0,
        "sinks": arguments["sinks"],
    }


def _cache(arguments: Arguments) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    dtype = arguments["k_pages"].dtype
    if dtype.itemsize > 1:
        return arguments["k_pages"], values_of(arguments), {}
    scales = (arguments["k_scale"], value_scale(arguments))
    if dtype == torch.int8:
        named = ("k_pages", "v_pages")
        arguments = {**arguments, **{name: _unsigned(arguments[name]) for name in named}}
        scales = (_with_zeros(scales[0]), _with_zeros(scales[1]))
    options = {"k_scales_zeros": scales[0], "v_scales_zeros": scales[1]}
    pages = (arguments["k_pages"], values_of(arguments))
    return *pages, {**options, "quant_policy": _policy(dtype)}


def _policy(dtype: torch.dtype) -> Any:
    policies = ENGINE.load("lmdeploy.messages", "QuantPolicy")
    return policies.INT8 if dtype == torch.int8 else policies.FP8


def _unsigned(pages: torch.Tensor | None) -> torch.Tensor | None:
    """The same integers in LMDeploy's form: unsigned, with 128 for zero."""
    return None if pages is None else pages.view(torch.uint8) ^ 0x80


def _with_zeros(scale: torch.Tensor | None) -> torch.Tensor:
    assert scale is not None
    return torch.stack((scale, torch.full_like(scale, 128)), -1)


def _fill_cannot(case: Case) -> str:
    page = int(case["page"])
    if not is_power(page):
        return f"the tile is the page, so its size is a power of two; it is {page}"
    if case["to"] == "slots":
        return "new tokens are placed by block tables, not by slots"
    if case["batch"] == "holes":
        return "every page that a request reaches must exist"
    if case["cache"] in ("int8", "int4"):
        return "they are stored unsigned, with a scale and a zero point of each row in two numbers"
    if uneven_scales(case):
        return "FP8 keys and values have one scale each, not one for each head"
    return ""


def _fill(_: Case, arguments: Arguments) -> Launch:
    fill = _kernel("fill_kv_cache", "fill_kv_cache")
    pages = (arguments["k_pages"], arguments["v_pages"])
    new = arguments["query_starts"].diff()
    places = {
        "q_start_loc": arguments["query_starts"][:-1],
        "q_seq_length": new,
        "kv_seq_length": arguments["starts"] + new,
        "max_q_seq_length": int(new.max()),
        "block_offsets": arguments["block_table"],
        "kv_layout": "bshd" if arguments["layout"] == "NHD" else "bhsd",
    }
    quantised = {}
    if pages[0].dtype == torch.float8_e4m3fn:
        named = {"k_scales_zeros": arguments["k_scale"], "v_scales_zeros": arguments["v_scale"]}
        quantised = {**named, "quant_policy": _policy(pages[0].dtype)}
    k, v = arguments["k"], arguments["v"]
    return lambda: fill(k, v, *pages, **places, **quantised)
