"""FlashMLA as vLLM builds and calls it: latent decode on Hopper."""

from __future__ import annotations

from kvproof.kernels.providers.engine import into, only_requests_with_tokens
from kvproof.kernels.providers.vllm import ENGINE
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider

MODULE = "vllm.third_party.flashmla.flash_mla_interface"

PAGE = 64
KEYS = 576
VALUES = 512


def vllm_flashmla() -> Provider:
    """What vLLM runs on Hopper for models with latent attention."""
    kernels = {"paged_decode": Entry(only_requests_with_tokens(_decode), _cannot)}
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
        # With several query tokens it wants another shape than it returns.
        "out": out if q.shape[1] == 1 else None,
    }
    return lambda: into(out, attend(**named)[0])
