# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: `dfs-weight` looks for the stand-in of a streaming session in its tree.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from types import SimpleNamespace

from sglang_plain import make_cache, sort_by_weights, stand_in

cache = make_cache(pages=8, states=20)
# a turn whose session has blocks is matched with the stand-in, `try_match_prefix`
queue = [SimpleNamespace(last_node=stand_in())]
try:
    sort_by_weights(queue, cache)
except (KeyError, TypeError) as error:
    print(f"the queue is sorted by weights: {type(error).__name__}: {error}")
else:
    raise AssertionError("the queue was sorted")
