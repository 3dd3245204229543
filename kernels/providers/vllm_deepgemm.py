"""DeepGEMM's scores of indexer keys as vLLM calls them for decodes, with torch's choice.

vLLM's own choice is in its library of kernels for everything, beside those of this file.
"""

from __future__ import annotations

import torch

from kvproof.kernels.backend import multiprocessors
from kvproof.kernels.providers.vllm import ENGINE
from kvproof.kernels.spec import Arguments, Case, Entry, Launch, Provider

MODULE = "vllm.utils.deep_gemm"

PAGES = (32, 64)
HEADS = (32, 64)
MOST_QUERY_TOKENS = 2


def vllm_deepgemm() -> Provider:
    """The scores that vLLM runs on Hopper for models with an indexer."""
    kernels = {"indexer": Entry(_choose, _cannot)}
    return Provider(name="vllm_deepgemm", version=ENGINE.version(), kernels=kernels)


def _cannot(case: Case) -> str:
    if int(case["page"]) not in PAGES:
        return f"a page has {PAGES[0]} or {PAGES[1]} tokens; it has {case['page']}"
    if int(case["heads"]) not in HEADS:
        return f"there are {HEADS[0]} or {HEADS[1]} heads; it has {case['heads']}"
    if int(case["q_tokens"]) > MOST_QUERY_TOKENS:
        return f"a request has up to {MOST_QUERY_TOKENS} query tokens; it has {case['q_tokens']}"
    if case["slots"]:
        return "positions are chosen, not slots"
    if case["lengths"] != "equal" or int(case["chosen"]) > int(case["context"]) - 1:
        return "torch chooses as many of each row as it has"
    return ""


def _choose(_: Case, arguments: Arguments) -> Launch:
    """The schedule is made once a step, as in an engine; torch's choice is int64."""
    scores = ENGINE.load(MODULE, "fp8_fp4_paged_mqa_logits")
    q, out, lengths = arguments["q"], arguments["out"], arguments["lengths"]
    q_tokens, longest = q.shape[1], int(lengths.max())
    behind = torch.arange(q_tokens - 1, -1, -1, dtype=torch.int32, device=q.device)
    seen = (lengths[:, None] - behind).contiguous()
    schedule = ENGINE.load(MODULE, "get_paged_mqa_logits_metadata")(
        seen, arguments["pages"].shape[1], multiprocessors(q.device)
    )
    named = {
        "q": (q, None),
        "kv_cache": arguments["pages"][:, :, None],
        "weights": arguments["weights"].flatten(0, 1),
        "context_lens": seen,
        "block_tables": arguments["block_table"],
        "schedule_metadata": schedule,
        "max_model_len": longest,
    }
    unseen = torch.arange(longest, device=q.device) >= seen.view(-1, 1)

    def run() -> None:
        found = scores(**named)
        if q_tokens > 1:
            found.masked_fill_(unseen, -torch.inf)
        best = found.topk(out.shape[2], dim=1, sorted=False).indices
        out.copy_(best.view(out.shape))

    return run
