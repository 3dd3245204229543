"""Cost of the canary in a step of decoding, beside the attention of that step.

`python -m kvproof.suites.tests.lab.canary_cost` on a GPU: 64 requests of 4,096 tokens, 32 layers of
32 query and 8 KV heads of 128 in bfloat16. Device time from replayed graphs: one layer of attention
times 32, and the canary's two kernels, for several shares of requests.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from kvproof.kernels.canary.canary import Canary, Rows
from kvproof.kernels.dispatch import paged_decode
from kvproof.kernels.timing import clocks, device_facts, measure

REQUESTS, TOKENS, LAYERS, HEADS, KV_HEADS, DIM, PAGE = 64, 4096, 32, 32, 8, 128, 16
SHARES = (1.0, 0.25, 1 / 16)


def main() -> int:
    """Measure, and write one line of JSON."""
    if not torch.cuda.is_available():
        sys.stdout.write("NOT RUN: there is no GPU, and no time is taken without one\n")
        return 3
    pages = REQUESTS * TOKENS // PAGE
    order = torch.randperm(pages, device="cuda", dtype=torch.int32) + 1
    table = order.view(REQUESTS, TOKENS // PAGE)
    layers = {"ours": _attention(table, pages + 1), "vllm FA3": _flash(table, pages + 1)}
    attention = {name: _us(each) * LAYERS for name, each in layers.items() if each is not None}
    found: dict[str, Any] = {"attention_us": attention, "canary_us": {}}
    for share in SHARES:
        canary = Canary.beside(pages + 1, PAGE, "cuda", share=share)
        found["canary_us"][f"share {share:.3f}"] = _canary(canary, table)
    write = {"device": device_facts()["name"], **found, **clocks()}
    sys.stdout.write(json.dumps(write) + "\n")
    return 0


def _us(launch: Callable[[], None]) -> float:
    return round(statistics.median(measure([launch])) * 1e6, 2)


def _pools(pages: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = pages, PAGE, KV_HEADS, DIM
    return tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))


def _attention(table: torch.Tensor, pages: int) -> Callable[[], None]:
    keys, values = _pools(pages)
    q = torch.randn((REQUESTS, 1, HEADS, DIM), device="cuda", dtype=torch.bfloat16)
    lengths = torch.full((REQUESTS,), TOKENS, device="cuda", dtype=torch.int32)
    out = torch.empty_like(q)
    return lambda: paged_decode(q, keys, values, table, lengths, out=out, scale=DIM**-0.5)


def _flash(table: torch.Tensor, pages: int) -> Callable[[], None] | None:
    try:
        from vllm.vllm_flash_attn import flash_attn_varlen_func
    except ImportError:
        return None
    keys, values = _pools(pages)
    q = torch.randn((REQUESTS, HEADS, DIM), device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    starts = torch.arange(REQUESTS + 1, device="cuda", dtype=torch.int32)
    lengths = torch.full((REQUESTS,), TOKENS, device="cuda", dtype=torch.int32)

    def launch() -> None:
        flash_attn_varlen_func(
            q, keys, values, out=out, max_seqlen_q=1, cu_seqlens_q=starts, max_seqlen_k=TOKENS,
            seqused_k=lengths, causal=True, block_table=table, fa_version=3,
        )  # fmt: skip

    return launch


def _canary(canary: Canary, table: torch.Tensor) -> dict[str, Any]:
    """Time the two kernels; the words are right, so that no request takes a shorter way."""
    known = torch.randint(0, 100_000, (REQUESTS, TOKENS), dtype=torch.int32)
    every = Rows(
        known.cuda(),
        torch.zeros(REQUESTS, dtype=torch.int64, device="cuda"),
        torch.arange(REQUESTS, device="cuda"),
        known.view(-1).cuda(),
        torch.arange(TOKENS, device="cuda").repeat(REQUESTS),
        torch.arange(REQUESTS + 1, device="cuda", dtype=torch.int32) * TOKENS,
    )
    places = torch.arange(TOKENS, device="cuda")
    slots = table[:, places // PAGE].long() * PAGE + places % PAGE
    canary.write(every, slots.view(-1))
    rows = every._replace(
        inputs=every.tokens[:, -1].contiguous(),
        positions=torch.full((REQUESTS,), TOKENS - 1, device="cuda"),
        starts=torch.arange(REQUESTS + 1, device="cuda", dtype=torch.int32),
    )
    own = slots[:, -1].contiguous()
    times = {
        "write": _us(lambda: canary.write(rows, own)),
        "check": _us(lambda: canary.check(rows, table, entry=PAGE)),
    }
    seen = canary.wait()
    assert seen.slots
    assert not seen.wrong, seen
    return times


if __name__ == "__main__":
    sys.exit(main())
