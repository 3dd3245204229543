# ruff: noqa: T201 - a plain script: it prints
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""SGLang 0.5.23: without a radix cache two prompts of one batch are cut, and one of them answers.

Needs sglang, no GPU. In the environment that `kvproof targets install sglang==0.5.23` builds, some
packages of it are missing: python script.py <kvproof>/harness/adapters/sglang/stubs.py
"""

import sys
from array import array
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1]))
from sglang_plain import PAGE, adder, make_cache, request

cache = make_cache(pages=64, states=20)
cache.disable = True  # `--disable-radix-cache`: requests with `ignore_eos` take another way in
batch = adder(cache, chunk=3 * PAGE + 10)
first = request("first", array("q", range(1, 5 * PAGE)), cache)
second = request("second", array("q", range(1000, 1000 + 2 * PAGE)), cache)
second.sampling_params.ignore_eos = True
for each in (first, second):
    batch.add_one_req(each, has_chunked_req=False, truncation_align_size=None)
for each in batch.can_run_list:
    cut = len(each.full_untruncated_fill_ids) - each.extend_end
    print(f"{each.rid}: computes up to {each.extend_end}, {cut} tokens are left")
print("the one that is known to be cut:", batch.new_chunked_req.rid)
assert len(batch.can_run_list) == 2
assert all(each.extend_end < len(each.full_untruncated_fill_ids) for each in batch.can_run_list)
assert batch.new_chunked_req is second, "the other one answers after a part of its prompt"
