# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: a streaming session cannot be closed once a retracted turn of it was aborted.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from array import array
from pathlib import Path
from types import SimpleNamespace

sys.path.append(str(Path(__file__).resolve().parents[1]))
from sglang_plain import controller, finish, make_cache, plan, preempt, request, run, session

cache = make_cache(pages=8, states=20)
rows = cache.req_to_token_pool


def rows_after_a_close(name, first, end):
    """Run a turn, let `end` do with it, close its session; return the rows that stay in use."""
    before = len(rows.free_slots)
    sessions = controller(cache)
    sessions.sessions[name] = session(name)
    req = request(name, array("q", range(first, first + 100)), cache)
    req.session = sessions.sessions[name]
    req.session._inflight = True  # as `create_req` sets it
    plan(req, cache)
    run(req, cache)
    end(req)
    sessions.close(SimpleNamespace(session_id=name))
    for second in (10, 20):
        sessions.maybe_reap(second)
    return before - len(rows.free_slots)


def abort_in_the_queue(req):
    """Retract a turn, then abort it as the scheduler's `abort_request` does in the queue."""
    preempt(req, cache)
    req.session.abort_req()


plain = rows_after_a_close("a", 1, lambda req: finish(req, cache))
aborted = rows_after_a_close("b", 1000, abort_in_the_queue)
print(
    f"rows in use after the close: {plain} behind a finished turn, {aborted} behind an aborted one"
)
assert (plain, aborted) == (0, 1)
