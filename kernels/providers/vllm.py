"""vLLM's Triton kernels: unified attention, MLA decode, KV fill, copies and steps of states."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.kernels.providers.engine import (
    Engine,
    decode_as_prefill,
    only_requests_with_tokens,
    slots_to_fill,
    uneven_scales,
    value_scale,
    values_of,
)
from kvproof.kernels.providers.vllm_states import steps
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider

ENGINE = Engine("vLLM", "vllm", "0.33.0")

OPS = "vllm.v1.attention.ops."

LEAST_PROGRAMS = 128
"""Query blocks times KV heads from which the attention backend does not split the context."""

SEGMENTS = 16
"""Parts of the context below that number."""

MOST_SPLIT_TOKENS = 8
"""Most query tokens of a request for a split."""

SPLIT_TOKENS = 512
"""Tokens of a split of the MLA kernel."""

SPLITS_PER_PROCESSOR = 2


def vllm() -> Provider:
    """Path of vLLM on CUDA with its Triton attention backend, and for its Mamba states."""
    kernels = {
        "paged_decode": Entry(only_requests_with_tokens(_decode), _attention_cannot),
        "paged_prefill": Entry(_attend, _attention_cannot),
        "kv_fill": Entry(_fill, _fill_cannot),
        "state_copy": Entry(_copy_states),
        "state_step": steps(ENGINE),
    }
    return Provider(name="vllm", version=ENGINE.version(), kernels=kernels)


def vllm_mla() -> Provider:
    """The decode kernel of vLLM's Triton MLA backend, which addresses single tokens."""
    kernels = {"paged_decode": Entry(only_requests_with_tokens(_decode_mla), _mla_cannot)}
    return Provider(name="vllm_mla", version=ENGINE.version(), kernels=kernels)


def _attention_cannot(case: Case) -> str:
    if case.get("latent"):
        return "keys and values have one head size"
    if uneven_scales(case):
        return "FP8 keys and values have one scale each, not one for each head"
    return ""


def _decode(case: Case, arguments: Arguments) -> Launch:
    flat = decode_as_prefill(arguments)
    return _attend_int4(flat) if case["kv_dtype"] == "int4" else _attend(case, flat)


def _attend(_: Case, arguments: Arguments) -> Launch:
    attend = ENGINE.load(f"{OPS}triton_unified_attention", "unified_attention")
    options = {
        "k": arguments["k_pages"],
        "v": arguments["v_pages"],
        "max_seqlen_k": arguments["longest"],
        "causal": True,
        **_problem(arguments),
        **_quantised(arguments),
    }
    return lambda: attend(**options)


def _attend_int4(arguments: Arguments) -> Launch:
    """Its kernel alone: the rotations of queries and answers around it are no part of a cell."""
    attend = ENGINE.load(f"{OPS}int4_per_token_head", "_launch_packed_attn")
    segments = (
        "seq_threshold_3D", "num_par_softmax_segments", "softmax_segm_output", "softmax_segm_max",
        "softmax_segm_expsum",
    )  # fmt: skip
    unused = ("alibi_slopes", "qq_bias", "output_scale", "mm_prefix_range", *segments)
    options = {
        "k_cache": arguments["k_pages"],
        "v_cache": arguments["v_pages"],
        "use_alibi_sqrt": False,
        "packing_factor": 2,
        "k_scale_cache": arguments["k_scale"],
        "v_scale_cache": arguments["v_scale"],
        **dict.fromkeys(unused),
        **_problem(arguments),
    }
    return lambda: attend(**options)


def _problem(arguments: Arguments) -> dict[str, Any]:
    window = arguments["window"]
    return {
        "q": arguments["q"],
        "out": arguments["out"],
        "cu_seqlens_q": arguments["query_starts"],
        "max_seqlen_q": arguments["longest_query"],
        "seqused_k": arguments["lengths"],
        "softmax_scale": arguments["scale"],
        "window_size": (window - 1, 0) if window else (-1, -1),
        "block_table": arguments["block_table"],
        "softcap": arguments["soft_cap"],
        "sinks": arguments["sinks"],
        **_segments(arguments),
    }


def _quantised(arguments: Arguments) -> dict[str, Any]:
    keys, batch = arguments["k_pages"], len(arguments["lengths"])
    modes = ENGINE.load("vllm.v1.kv_cache_interface", "KVQuantMode")
    none = {"q_descale": None, "k_descale": None, "v_descale": None}
    if keys.dtype == torch.int8:
        scales = {"k_scale_cache": arguments["k_scale"], "v_scale_cache": arguments["v_scale"]}
        return {**none, **scales, "kv_quant_mode": modes.INT8_PER_TOKEN_HEAD}
    one = torch.ones(1, device=keys.device)
    named = {"k_descale": arguments["k_scale"], "v_descale": arguments["v_scale"]}
    shape = (batch, keys.shape[2])
    wide = {name: (one if scale is None else scale[:1]).expand(shape)
            for name, scale in named.items()}  # fmt: skip
    mode = modes.FP8_PER_TENSOR if keys.dtype == torch.float8_e4m3fn else modes.NONE
    return {**none, **wide, "kv_quant_mode": mode}


def _segments(arguments: Arguments) -> dict[str, Any]:
    """The workspace for splits of the context, if the backend may split it."""
    tokens, heads, dim = arguments["q"].shape
    most = LEAST_PROGRAMS // arguments["k_pages"].shape[2]
    if arguments["longest_query"] > MOST_SPLIT_TOKENS:
        return {}
    rows = max(tokens, most * arguments["longest_query"])
    shape = (rows, heads, SEGMENTS)
    device = arguments["q"].device
    padded = 1 << (dim - 1).bit_length()
    return {
        "seq_threshold_3D": most,
        "num_par_softmax_segments": SEGMENTS,
        "softmax_segm_output": torch.empty((*shape, padded), device=device),
        "softmax_segm_max": torch.empty(shape, device=device),
        "softmax_segm_expsum": torch.empty(shape, device=device),
    }


def _mla_cannot(case: Case) -> str:
    if case["window"] or case["sinks"]:
        return "the MLA kernel has no window and no sinks"
    if case["kv_dtype"] in ("int8", "int4"):
        return "the MLA kernel has no INT8 and INT4"
    if uneven_scales(case):
        return "FP8 keys and values have one scale each, not one for each head"
    return ""


def _decode_mla(case: Case, arguments: Arguments) -> Launch:
    attend = ENGINE.load(f"{OPS}triton_decode_attention", "decode_attention_fwd")
    rows = _rows(arguments)
    q, out, lengths = rows["q"], rows["out"], rows["lengths"]
    splits = _splits(int(lengths.max()), q.device)
    logits = torch.empty((*q.shape[:2], splits, out.shape[-1] + 1), device=q.device)
    sums = torch.empty(q.shape[:2], device=q.device)
    options = {
        "sm_scale": arguments["scale"],
        "page_size": int(case["page"]),
        "logit_cap": arguments["soft_cap"],
        "k_scale": _one(arguments["k_scale"], q.device),
        "v_scale": _one(value_scale(arguments), q.device),
        "is_mla": arguments["v_pages"] is None,
    }
    cache = (arguments["k_pages"], values_of(arguments))
    return lambda: attend(
        q, *cache, out, sums, rows["block_table"], lengths, logits, splits, **options
    )


def _rows(arguments: Arguments) -> Arguments:
    """One row per query token, with its visible context, as in the backend."""
    tokens, lengths = arguments["q"].shape[1], arguments["lengths"]
    seen = torch.arange(1 - tokens, 1, dtype=lengths.dtype, device=lengths.device)
    return {
        "q": arguments["q"].flatten(0, 1),
        "out": arguments["out"].flatten(0, 1),
        "block_table": arguments["block_table"].repeat_interleave(tokens, 0),
        "lengths": (lengths[:, None] + seen).flatten(),
    }


def _splits(longest: int, device: torch.device) -> int:
    """The rule of the MLA backend, by the longest request and the GPU."""
    wanted = 1 << (max(1, longest // SPLIT_TOKENS) - 1).bit_length()
    if device.type != "cuda":
        return wanted
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return int(min(wanted, processors * SPLITS_PER_PROCESSOR))


def _one(scale: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    return torch.ones((), device=device) if scale is None else scale.flatten()[0]


def _fill_cannot(case: Case) -> str:
    if case["rows"] == "latent":
        return "keys and values are written together"
    if case["cache"] == "int4":
        return "INT4 rows are rotated before they are written"
    if case["cache"] == "int8":
        return "INT8 is rounded half away from zero, and the scale of a row of zeros is 1e-6"
    if uneven_scales(case):
        return "FP8 keys and values have one scale each, not one for each head"
    return ""


def _fill(case: Case, arguments: Arguments) -> Launch:
    fill = ENGINE.load(f"{OPS}triton_reshape_and_cache_flash", "triton_reshape_and_cache_flash")
    slots = slots_to_fill(arguments, page_size=int(case["page"]))
    k, v, keys, values = (arguments[name] for name in ("k", "v", "k_pages", "v_pages"))
    if arguments["layout"] == "HND":
        keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    kind = "fp8" if keys.dtype == torch.float8_e4m3fn else "auto"
    scales = [_one(arguments[name], k.device) for name in ("k_scale", "v_scale")]
    return lambda: fill(k, v, keys, values, slots, kind, *scales)


def _copy_states(_: Case, arguments: Arguments) -> Launch:
    """Address and size of every copy, one program for each; vLLM's list has no padding."""
    copy = ENGINE.load("vllm.v1.worker.mamba_utils", "batch_memcpy")
    real = (arguments["sources"] > 0) & (arguments["destinations"] > 0)
    pools = [layer for name in ("conv", "ssm") for layer in arguments[name]]
    sources = _addresses(pools, arguments["sources"][real])
    destinations = _addresses(pools, arguments["destinations"][real])
    sizes = [layer[0].nbytes for layer in pools for _ in range(int(real.sum()))]
    counts = torch.tensor(sizes, dtype=torch.int64, device=sources.device)
    return lambda: copy(sources, destinations, counts)


def _addresses(pools: list[torch.Tensor], rows: torch.Tensor) -> torch.Tensor:
    found = [layer.data_ptr() + layer.stride(0) * layer.itemsize * row
             for layer in pools for row in rows.tolist()]  # fmt: skip
    return torch.tensor(found, dtype=torch.int64, device=rows.device)
