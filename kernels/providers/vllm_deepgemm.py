"""DeepGEMM's scores of indexer keys as vLLM calls them, with torch's choice.

vLLM's own choice is in its general library of kernels, next to those of this file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from kvproof.kernels.backend import multiprocessors
from kvproof.kernels.indexer.keys import parts_of
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
    if int(case["q_tokens"]) > MOST_QUERY_TOKENS and int(case["batch"]) > 1:
        return (
            f"requests have up to {MOST_QUERY_TOKENS} query tokens, or there is one of them; there"
            f" are {case['batch']} with {case['q_tokens']}"
        )
    if case["slots"]:
        return "positions are chosen, not slots"
    if case["lengths"] != "equal" or int(case["chosen"]) > int(case["context"]) - 1:
        return "torch chooses as many of each row as it has"
    return ""


def _choose(case: Case, arguments: Arguments) -> Launch:
    """Torch's choice is int64; forbidden columns have no score."""
    is_chunk = int(case["q_tokens"]) > MOST_QUERY_TOKENS
    q, out, lengths = arguments["q"], arguments["out"], arguments["lengths"]
    q_tokens, longest = q.shape[1], int(lengths.max())
    behind = torch.arange(q_tokens - 1, -1, -1, dtype=torch.int32, device=q.device)
    seen = (lengths[:, None] - behind).contiguous()
    score = (_of_chunk if is_chunk else _of_pages)(arguments, seen, longest)
    unseen = torch.arange(longest, device=q.device) >= seen.view(-1, 1)

    def run() -> None:
        found = score()
        if q_tokens > 1:
            found.masked_fill_(unseen, -torch.inf)
        best = found.topk(out.shape[2], dim=1, sorted=False).indices
        out.copy_(best.view(out.shape))

    return run


def _of_pages(arguments: Arguments, seen: torch.Tensor, longest: int) -> Callable[[], torch.Tensor]:
    """Scores of a step of decode; the schedule is made once a step, as in an engine."""
    scores = ENGINE.load(MODULE, "fp8_fp4_paged_mqa_logits")
    q, pages = arguments["q"], arguments["pages"]
    schedule = ENGINE.load(MODULE, "get_paged_mqa_logits_metadata")(
        seen, pages.shape[1], multiprocessors(q.device)
    )
    named = {
        "q": (q, None),
        "kv_cache": pages[:, :, None],
        "weights": arguments["weights"].flatten(0, 1),
        "context_lens": seen,
        "block_tables": arguments["block_table"],
        "schedule_metadata": schedule,
        "max_model_len": longest,
    }
    return lambda: scores(**named)


def _of_chunk(arguments: Arguments, seen: torch.Tensor, longest: int) -> Callable[[], torch.Tensor]:
    """Scores of a chunk of a prompt: keys are gathered first, in each layer."""
    scores = ENGINE.load(MODULE, "fp8_fp4_mqa_logits")
    values, scales = parts_of(arguments["pages"])
    table = arguments["block_table"][0, : -(-longest // values.shape[1])].long()
    named = {
        "q": (arguments["q"][0], None),
        "weights": arguments["weights"][0],
        "cu_seqlen_ks": torch.zeros_like(seen[0]),
        "cu_seqlen_ke": seen[0],
        "max_seqlen_k": longest,
    }

    def run() -> torch.Tensor:
        keys = values[table].flatten(0, 1)[:longest].view(torch.float8_e4m3fn)
        found: torch.Tensor = scores(kv=(keys, scales[table].flatten()[:longest]), **named)
        return found

    return run
