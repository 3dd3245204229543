# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: while states are copied to the host, the next request ends the scheduler.

Needs sglang, no GPU: copies that take longer than two steps are stood in for by copies that are not
over yet. In the environment that `kvproof targets install sglang==0.5.23` builds, some packages of
it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from array import array
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from sglang_plain import PAGE, finish, make_cache, plan, request, run
from sglang_plain_host import attach

SLOTS = 5
"""State slots that SGLang plans for one running request."""


def serve(cache, number):
    """One prompt that no other begins like, from its arrival to its end."""
    cache.check_hicache_events()  # as the scheduler does before each step
    prompt = array("q", range(10_000 * number, 10_000 * number + PAGE + 1))
    req = request(str(number), prompt, cache)
    said = plan(req, cache)
    states = cache.req_to_token_pool.mamba_allocator
    room = f"{states.available_size()} slots free, {cache.mamba_evictable_size()} evictable"
    print(f"prompt {number}: {said.name} with {room}")
    run(req, cache)
    finish(req, cache)
    cache.flush_pending_backups()  # and after each


hosted = make_cache(pages=24, states=SLOTS, below=partial(attach, policy="write_through"))
try:
    for number in (1, 2, 3):
        serve(hosted, number)
except AssertionError as error:
    print(f"prompt {number} is admitted, computed, and ends the scheduler: {error}")
    assert number == 3
else:
    raise SystemExit("no prompt ended it")
