# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: a request waits for window slots that it holds itself.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import runpy
import sys
from types import SimpleNamespace

if len(sys.argv) > 1:
    runpy.run_path(sys.argv[1])["install"]()

from sglang.srt.mem_cache.prefill_budget import SWAPrefillBudget
from sglang.srt.model_executor.pool_configurator import MemoryPoolConfigurator


def budget(page, window, pool, locked):
    """Return SGLang's budget where one request has locked slots and nothing else runs."""
    MemoryPoolConfigurator.validate_swa_pool_size(pool, window, page)
    print(f"a pool of {pool} tokens is taken, for windows of {window} and pages of {page}")
    allocator = SimpleNamespace(
        page_size=page,
        size_swa=pool,
        available_size=lambda: pool - locked,
        full_available_size=lambda: 96,
        swa_available_size=lambda: pool - locked,
    )
    tree = SimpleNamespace(
        sliding_window_size=window,
        evictable_size=lambda: 0,
        full_evictable_size=lambda: 0,
        swa_evictable_size=lambda: 0,
        supports_mamba=lambda: False,
    )
    return SWAPrefillBudget(allocator, tree)


# the nodes of two chunks: the last one alone is shorter than the window
between = budget(page=8, window=9, pool=32, locked=16 + 8)
tokens = between.available_chunk_tokens(16)
print("8 tokens are free; the next chunk of the only request gets", tokens)
assert tokens is None
before = budget(page=4, window=10, pool=20, locked=12)
fits, _ = before.check_prefill(
    extend_input_len=9, total_tokens=39, max_new_tokens=26, input_tokens=21,
    swa_host_hit_length=0, chunk_limit=300,
)  # fmt: skip
print("8 tokens are free beside a hit of 12; the other 9 tokens of the only request are", end=" ")
print("admitted" if fits else "not admitted, nor a shorter chunk of them")
assert not fits
