"""FlashAttention 3 as built and called by vLLM: paged decode and prefill on Hopper."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.kernels.providers.engine import (
    decode_as_prefill,
    only_requests_with_tokens,
)
from kvproof.kernels.providers.vllm import ENGINE
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider

MODULE = "vllm.vllm_flash_attn"

MOST_DIM = 256


def vllm_fa3() -> Provider:
    """Path of vLLM on Hopper with its FlashAttention backend."""
    kernels = {
        "paged_decode": Entry(only_requests_with_tokens(_decode), _cannot),
        "paged_prefill": Entry(_prefill, _cannot),
    }
    return Provider(name="vllm_fa3", version=ENGINE.version(), kernels=kernels)


def _cannot(case: Case) -> str:
    if case.get("latent"):
        return "latent keys are passed in two parts, which one page does not hold apart"
    if int(case["head_dim"]) > MOST_DIM:
        return f"head size {case['head_dim']} is over {MOST_DIM}"
    if case["kv_dtype"] in ("int8", "int4"):
        return "FlashAttention 3 has no INT8 and INT4"
    if case["kv_dtype"] == "fp8":
        return "FP8 keys need FP8 queries, and weights are rounded to FP8: another accuracy"
    return ""


def _decode(_: Case, arguments: Arguments) -> Launch:
    arguments = decode_as_prefill(arguments)
    plan = ENGINE.load(MODULE, "get_scheduler_metadata")
    q, keys = arguments["q"], arguments["k_pages"]
    schedule = plan(
        batch_size=len(arguments["lengths"]),
        max_seqlen_q=arguments["longest_query"],
        max_seqlen_k=arguments["longest"],
        num_heads_q=q.shape[1],
        num_heads_kv=keys.shape[2],
        headdim=q.shape[2],
        cache_seqlens=arguments["lengths"],
        qkv_dtype=q.dtype,
        cu_seqlens_q=arguments["query_starts"],
        page_size=keys.shape[1],
        causal=True,
        window_size=_window(arguments),
        has_softcap=arguments["soft_cap"] > 0,
    )
    return _attend(arguments, scheduler_metadata=schedule)


def _prefill(_: Case, arguments: Arguments) -> Launch:
    return _attend(arguments)


def _attend(arguments: Arguments, **options: Any) -> Launch:
    attend = ENGINE.load(MODULE, "flash_attn_varlen_func")
    q, sinks = arguments["q"], arguments["sinks"]
    named = {
        "q": q,
        "k": arguments["k_pages"],
        "v": arguments["v_pages"],
        "out": arguments["out"],
        "cu_seqlens_q": arguments["query_starts"],
        "max_seqlen_q": arguments["longest_query"],
        "seqused_k": arguments["lengths"],
        "max_seqlen_k": arguments["longest"],
        "block_table": arguments["block_table"],
        "softmax_scale": arguments["scale"],
        "causal": True,
        "window_size": list(_window(arguments)),
        "softcap": arguments["soft_cap"],
        "s_aux": None if sinks is None else sinks.to(torch.bfloat16),
        "fa_version": 3,
        **options,
    }
    return lambda: attend(**named)


def _window(arguments: Arguments) -> tuple[int, int]:
    window = arguments["window"]
    return (window - 1, 0) if window else (-1, -1)
