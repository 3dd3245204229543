"""SGLang's kernels: Triton decode and extend attention, and its CUDA store of new tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from kvproof.kernels.providers.engine import (
    Engine,
    decode_as_prefill,
    number,
    only_requests_with_tokens,
    slots_to_fill,
    tokens_of,
    uneven_scales,
    value_scale,
    values_of,
)
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider

ENGINE = Engine("SGLang", "sglang", "0.5.23")

OPS = "sglang.kernels.ops."

DEFAULT_SPLITS = 8
"""Default of --triton-attention-num-kv-splits."""

MORE_SPLITS = 32

SCHEDULED = 256
"""Fewest requests for which the kernel that chooses splits has room."""

HOPPER = 9

WARP = 32


def sglang() -> Provider:
    """SGLang on CUDA with its Triton attention backend, at its defaults."""
    kernels = {
        "paged_decode": _decode_entry(DEFAULT_SPLITS),
        "paged_prefill": Entry(_extend, _extend_cannot),
        "kv_fill": Entry(_fill, _fill_cannot),
    }
    return Provider(name="sglang", version=ENGINE.version(), kernels=kernels)


def sglang_more_splits() -> Provider:
    """Its decode kernel with at most 32 splits of the context."""
    kernels = {"paged_decode": _decode_entry(MORE_SPLITS)}
    return Provider(name="sglang_more_splits", version=ENGINE.version(), kernels=kernels)


def _decode_entry(most: int) -> Entry:
    return Entry(only_requests_with_tokens(partial(_decode, most)), _decode_cannot)


def _decode_cannot(case: Case) -> str:
    if case["kv_dtype"] in ("int8", "int4"):
        return "SGLang has no INT8 and INT4 keys and values"
    if uneven_scales(case):
        return "FP8 keys and values have one scale each, not one for each head"
    if int(case["q_tokens"]) > 1:
        return _extend_cannot(case)
    return ""


def _decode(most: int, case: Case, arguments: Arguments) -> Launch:
    """Several query tokens are verified by the extend kernel, as SGLang does."""
    if arguments["q"].shape[1] > 1:
        return _extend(case, decode_as_prefill(arguments))
    attend = ENGINE.load(f"{OPS}attention.decode_attention", "decode_attention_fwd")
    q, out = arguments["q"].flatten(0, 1), arguments["out"].flatten(0, 1)
    lengths = arguments["lengths"]
    seen = lengths.clamp(max=arguments["window"]) if arguments["window"] else lengths
    tokens = tokens_of(
        arguments["block_table"], lengths - seen, lengths, page_size=int(case["page"])
    )
    splits = _splits(most, seen, q.shape[1], arguments["k_pages"].shape[2])
    logits = torch.empty((*q.shape[:2], most, out.shape[-1]), device=q.device)
    sums = torch.empty((*q.shape[:2], most), device=q.device)
    options = {
        "sm_scale": arguments["scale"],
        "k_scale": number(arguments["k_scale"]),
        "v_scale": number(value_scale(arguments)),
        "logit_cap": arguments["soft_cap"],
        "sinks": arguments["sinks"],
        "has_mla": arguments["v_pages"] is None,
        "use_pdl": _starts_ahead(q.device),
        "page_size": int(case["page"]),
    }
    pools = _pools(arguments)
    return lambda: attend(q, *pools, out, *tokens, logits, sums, splits, most, **options)


def _splits(most: int, lengths: torch.Tensor, heads: int, kv_heads: int) -> torch.Tensor:
    choose = ENGINE.load(f"{OPS}attention.metadata", "get_num_kv_splits_triton")
    splits = torch.empty(len(lengths), dtype=torch.int32, device=lengths.device)
    room = max(SCHEDULED, 1 << (len(lengths) - 1).bit_length())
    processors = (
        torch.cuda.get_device_properties(lengths.device).multi_processor_count
        if lengths.is_cuda
        else 1
    )
    choose[(1,)](
        splits, lengths, len(lengths), 1, heads, kv_heads, most, processors, MAX_NUM_SEQ=room
    )
    return splits


def _starts_ahead(device: torch.device) -> bool:
    return device.type == "cuda" and bool(torch.cuda.get_device_capability(device)[0] >= HOPPER)


def _pools(arguments: Arguments) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values as [slots, heads, dim]."""
    return arguments["k_pages"].flatten(0, 1), values_of(arguments).flatten(0, 1)


def _extend_cannot(case: Case) -> str:
    if case["window"] == 1:
        return "a window is given without the token itself, and 0 means none"
    if case["kv_dtype"] in ("int8", "int4"):
        return "SGLang has no INT8 and INT4 keys and values"
    if uneven_scales(case):
        return "FP8 keys and values have one scale each, not one for each head"
    return ""


def _extend(case: Case, arguments: Arguments) -> Launch:
    """The cached part is read from pages, the new tokens from the dense K and V of the step."""
    attend = ENGINE.load(f"{OPS}attention.extend_attention", "extend_attention_fwd")
    lengths, window, page = arguments["lengths"], arguments["window"], int(case["page"])
    cached = lengths - arguments["query_starts"].diff()
    reach = cached.clamp(max=window - 1) if window else cached
    table = arguments["block_table"]
    old = tokens_of(table, cached - reach, cached, page_size=page)
    new = tokens_of(table, cached, lengths, page_size=page).slots
    pools = _pools(arguments)
    scales = (number(arguments["k_scale"]), number(value_scale(arguments)))
    dense = [_dense(pool[new], scale, arguments["q"].dtype)
             for pool, scale in zip(pools, scales, strict=True)]  # fmt: skip
    options = {
        "custom_mask": None,
        "is_causal": True,
        "mask_indptr": None,
        "max_len_extend": arguments["longest_query"],
        "k_scale": scales[0],
        "v_scale": scales[1],
        "sm_scale": arguments["scale"],
        "logit_cap": arguments["soft_cap"],
        "sliding_window_size": window - 1 if window else -1,
        "sinks": arguments["sinks"],
        "page_size": page,
    }
    q, out, starts = (arguments[name] for name in ("q", "out", "query_starts"))
    return lambda: attend(q, *dense, out, *pools, starts, *old, **options)


def _dense(rows: torch.Tensor, scale: float, dtype: torch.dtype) -> torch.Tensor:
    return rows if rows.dtype == dtype else (rows.float() * scale).to(dtype)


def _fill_cannot(case: Case) -> str:
    if case["rows"] == "latent":
        return "keys and values are stored together"
    if case["layout"] == "HND":
        return "a token's heads are stored as one row"
    if case["cache"] != "same":
        return "rows are stored as they are; they are quantised by another kernel before"
    if case["batch"] == "holes" or (case["to"] == "slots" and case["batch"] == "ragged"):
        return "a slot below 0 is an error, not a token to skip"
    if _row_bytes(case) % WARP:
        return f"a row of {_row_bytes(case)} bytes is no multiple of a warp's {WARP} threads"
    return ""


def _row_bytes(case: Case) -> int:
    size = 4 if case["dtype"] == "fp32" else 2
    return int(case["heads"]) * int(case["head_dim"]) * size


def _fill(case: Case, arguments: Arguments) -> Launch:
    store = ENGINE.load(f"{OPS}kvcache.kvcache", "store_cache")
    slots = slots_to_fill(arguments, page_size=int(case["page"]))
    rows: list[Any] = [arguments[name][: len(slots)].flatten(1) for name in ("k", "v")]
    pools = [arguments[name].flatten(2).flatten(0, 1) for name in ("k_pages", "v_pages")]
    # No slot is reserved: page 0 belongs to a request like any other.
    return lambda: store(*rows, *pools, slots, reserved_skip_index=-1)
