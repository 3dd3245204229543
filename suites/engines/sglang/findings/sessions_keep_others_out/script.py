# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: a request waits for pages of a streaming session that no one frees.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from array import array
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from sglang_plain import PAGE, finish, make_cache, plan, request, run, session

cache = make_cache(pages=4, states=20)
turn = request("turn", array("q", range(1, 2 * PAGE)), cache)
turn.session = session("s")
plan(turn, cache)
run(turn, cache)
finish(turn, cache)
print("pages that are free or can be evicted beside an idle session:", end=" ")
allocator = cache.token_to_kv_pool_allocator
print((allocator.available_size() + cache.full_evictable_size()) // PAGE, "of 4")

first = request("first", array("q", range(1000, 1000 + 3 * PAGE)), cache)
answer = plan(first, cache)
print("the first in the queue needs 3 pages and one for its answer:", answer)
assert "NO_TOKEN" in str(answer), "it waits, and with it each later turn of the session"
