# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: with mixed chunks a cached recurrent state lies at the wrong length of its prompt.

A prompt is prefilled while another request decodes. Needs sglang, no GPU. In the environment that
`kvproof targets install sglang==0.5.23` builds, some packages of it are missing:
python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from array import array
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from sglang_plain import make_cache, plan, request, run

cache = make_cache(pages=32, states=20)
prompt = array("q", range(1, 1001))
state_after = {}
"""Slot of a state -> the tokens that it has read, as the kernels are called to write it."""

first = request("a", prompt, cache)
while first.prefix_len < 700:
    plan(first, cache, chunk=256, decoding=1)
    start, end = first.prefix_len, first.extend_end
    slot, kept = run(first, cache)
    state_after[slot] = kept
    print(f"[{start}, {end}) computed, the state after {kept} tokens kept")

second = request("b", prompt[:650], cache)
found = state_after[int(second.kv.mamba_cow_src_index)]
print(f"a prompt hits {second.prefix_len} tokens and goes on from the state after {found}")
assert found != second.prefix_len
