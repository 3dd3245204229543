# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23, `write_through_selective`: a hybrid model never copies a prefix that is hit whole.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from array import array
from functools import partial
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from sglang_plain import PAGE, finish, make_cache, plan, request, run
from sglang_plain_host import GPU, attach

GPU.idle = True


def copied(cache, lengths):
    """Tokens that are on the host once prompts of these lengths were served, each from the last."""
    hits = []
    for turn, length in enumerate(lengths):
        req = request(str(turn), array("q", range(length)), cache)
        hits.append(req.prefix_len)
        plan(req, cache)
        run(req, cache)
        finish(req, cache)
        cache.flush_pending_backups()
    host = cache.cache_controller.mem_pool_host
    return hits, host.size - host.available_size()


def hosted():
    """A pool that is large enough for everything, above a host tier."""
    return make_cache(pages=24, states=20, below=partial(attach, policy="write_through_selective"))


prompt = 4 * PAGE + 1
hits, tokens = copied(hosted(), [prompt] * 10)
print(f"one prompt ten times: hits {hits}, {tokens} tokens on the host")
assert hits[1:] == [4 * PAGE] * 9
assert tokens == 0
hits, tokens = copied(hosted(), [prompt, prompt + PAGE])
print(f"it and one that is a page longer: hits {hits}, {tokens} tokens on the host")
assert tokens == 4 * PAGE
