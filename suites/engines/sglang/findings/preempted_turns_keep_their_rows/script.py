# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: a preempted turn of a streaming session frees no row of the request table.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from array import array
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from sglang_plain import make_cache, plan, preempt, request, run, session

cache = make_cache(pages=8, states=20)
rows = cache.req_to_token_pool


def freed_by_a_preemption(name, first, turn_of):
    """Run a prompt, preempt it as `ScheduleBatch.release_req` does; return the rows it frees."""
    req = request(name, array("q", range(first, first + 100)), cache)
    req.session = turn_of
    plan(req, cache)
    run(req, cache)
    before = len(rows.free_slots)
    preempt(req, cache)
    return len(rows.free_slots) - before


plain = freed_by_a_preemption("a", 1, None)
turn = freed_by_a_preemption("b", 1000, session("s"))
print(f"rows that a preemption frees: {plain} of a plain request, {turn} of a session's turn")
assert (plain, turn) == (1, 0)
