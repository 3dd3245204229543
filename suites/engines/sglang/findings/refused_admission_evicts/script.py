# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: a prompt that hits and does not fit evicts another prompt before it is refused.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from array import array
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from sglang_plain import PAGE, finish, make_cache, plan, request, run

SLOTS = 5
"""State slots that SGLang plans for one running request, which holds three of them."""

cache = make_cache(pages=24, states=SLOTS)
states = cache.req_to_token_pool.mamba_allocator


def prompt(number, length=PAGE + 1):
    """Tokens that no other prompt begins with."""
    return array("q", range(10_000 * number, 10_000 * number + length))


def give_back(req):
    """As the scheduler does with the slot of a request that was not added."""
    if req.kv.holds_mamba:
        states.free(req.kv.mamba_pool_idx.unsqueeze(-1))
    req.kv.mamba_pool_idx = req.kv.mamba_cow_src_index = None
    req.kv.mamba_needs_clear = False


for number in (1, 2):
    served = request(str(number), prompt(number), cache)
    plan(served, cache)
    run(served, cache)
    finish(served, cache)
states.alloc(3)  # a request runs
before = cache.mamba_evictable_size()
large = request("large", prompt(2, 60 * PAGE), cache)
said = plan(large, cache)
give_back(large)
after = cache.mamba_evictable_size()
print(f"{before} prompts are cached; one that hits {large.prefix_len} tokens comes: {said.name}")
lost = request("again", prompt(1), cache)
print(f"{after} are cached then; the first hits {lost.prefix_len} tokens when it comes again")
assert (before, after, lost.prefix_len) == (2, 1, 0)
