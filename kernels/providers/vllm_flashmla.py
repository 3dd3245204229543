"""FlashMLA as vLLM builds and calls it: dense and sparse latent decode on Hopper."""

from __future__ import annotations

from kvproof.kernels.providers.engine import into, only_requests_with_tokens
from kvproof.kernels.providers.vllm import ENGINE
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider

MODULE = "vllm.third_party.flashmla.flash_mla_interface"

PAGE = 64
KEYS = 576
VALUES = 512
HEADS = (64, 128)
"""Query heads of sparse attention; others are padded by the caller."""

CHOSEN = 64
"""Tokens of a tile of sparse attention over FP8 rows."""

WIDE_HEADS = (8, 16, 32, 64, 128)
WIDE_CHOSEN = 128
"""Heads, and tokens of two tiles, of sparse attention over bfloat16 rows."""


def vllm_flashmla() -> Provider:
    """Decode of models with latent attention on Hopper, as vLLM chooses it."""
    kernels = {
        "paged_decode": Entry(only_requests_with_tokens(_decode), _cannot),
        "sparse_latent": Entry(_sparse, _sparse_cannot),
    }
    return Provider(name="vllm_flashmla", version=ENGINE.version(), kernels=kernels)


def _cannot(case: Case) -> str:
    if (case["latent"], case["head_dim"]) != (VALUES, KEYS):
        return f"latent rows have {KEYS} columns, {VALUES} of them values"
    if case["page"] != PAGE:
        return f"a page has {PAGE} tokens; it has {case['page']}"
    if case["kv_dtype"] not in ("bf16", "fp16"):
        return "dense pages have the dtype of the query"
    if case["window"] or case["sinks"] or case["soft_cap"]:
        return "dense attention has no window, no sinks and no soft cap"
    return ""


def _decode(_: Case, arguments: Arguments) -> Launch:
    """The schedule is made by the first launch and kept, as in an engine's step."""
    attend = ENGINE.load(MODULE, "flash_mla_with_kvcache")
    schedule, _nothing = ENGINE.load(MODULE, "get_mla_metadata")()
    q, out = arguments["q"], arguments["out"]
    named = {
        "q": q,
        "k_cache": arguments["k_pages"],
        "block_table": arguments["block_table"],
        "cache_seqlens": arguments["lengths"],
        "head_dim_v": out.shape[-1],
        "tile_scheduler_metadata": schedule,
        "softmax_scale": arguments["scale"],
        "causal": True,
        # One KV head, and the query tokens times their heads.
        "out": out.view(len(out), 1, -1, out.shape[-1]),
    }
    return lambda: into(out, attend(**named)[0])


def _sparse_cannot(case: Case) -> str:
    return _wide_cannot(case) if case["kv_dtype"] == "bf16" else _narrow_cannot(case)


def _narrow_cannot(case: Case) -> str:
    if int(case["heads"]) not in HEADS:
        return f"there are {HEADS[0]} or {HEADS[1]} heads; it has {case['heads']}"
    if case["page"] != PAGE:
        return f"a page has {PAGE} tokens; it has {case['page']}"
    if int(case["chosen"]) % CHOSEN:
        return f"tokens are chosen by multiples of {CHOSEN}; it has {case['chosen']}"
    return ""


def _wide_cannot(case: Case) -> str:
    if int(case["heads"]) not in WIDE_HEADS:
        known = ", ".join(map(str, WIDE_HEADS))
        return f"there are {known} heads; it has {case['heads']}"
    if int(case["chosen"]) % WIDE_CHOSEN:
        return f"tokens are chosen by multiples of {WIDE_CHOSEN}; it has {case['chosen']}"
    return ""


def _sparse(case: Case, arguments: Arguments) -> Launch:
    return (_wide if case["kv_dtype"] == "bf16" else _narrow)(arguments)


def _wide(arguments: Arguments) -> Launch:
    """The kernel that vLLM runs for decodes and prefills over bfloat16 pages."""
    attend = ENGINE.load(MODULE, "flash_mla_sparse_fwd")
    out = arguments["out"]
    named = {
        "q": arguments["q"],
        "kv": arguments["pages"].view(-1, 1, KEYS),
        "indices": arguments["indices"][:, None],
        "sm_scale": arguments["scale"],
        "attn_sink": arguments["sinks"],
        "out": out,
    }
    return lambda: into(out, attend(**named)[0])


def _narrow(arguments: Arguments) -> Launch:
    """Each query token as a request of its own, as vLLM's backend sends decodes."""
    attend = ENGINE.load(MODULE, "flash_mla_with_kvcache")
    schedule, _nothing = ENGINE.load(MODULE, "get_mla_metadata")()
    out = arguments["out"]
    named = {
        "q": arguments["q"][:, None],
        "k_cache": arguments["pages"][:, :, None],
        "block_table": None,
        "cache_seqlens": None,
        "head_dim_v": VALUES,
        "tile_scheduler_metadata": schedule,
        "softmax_scale": arguments["scale"],
        "is_fp8_kvcache": True,
        "indices": arguments["indices"][:, None],
        "attn_sink": arguments["sinks"],
    }
    return lambda: into(out, attend(**named)[0].view(out.shape))
