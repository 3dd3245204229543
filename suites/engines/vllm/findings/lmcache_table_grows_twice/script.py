# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0 and LMCache 0.5.6: LMCache appends to the block table of the worker.

Needs vllm and lmcache, no GPU: python script.py
"""

import os

os.environ["LMCACHE_LOG_LEVEL"] = os.environ["VLLM_LOGGING_LEVEL"] = "CRITICAL"

import inspect

from lmcache.integration.vllm.vllm_v1_adapter import RequestTracker
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

tracker = RequestTracker(
    req_id="r", prompt_len=32, token_ids=list(range(40)), allocated_block_ids=[1, 2, 3]
)
resumed = ([5, 6, 7],)  # the scheduler's result for a request that goes on
tracker.update([40], resumed, preempted=True, all_token_ids=list(range(41)))

# the same update in the worker, in the same process
assert "req_state.block_ids = new_block_ids" in inspect.getsource(GPUModelRunner._update_states)
table = resumed

later = ([8],)  # a step later there is a new block
tracker.update([41], later)
for blocks, new in zip(table, later, strict=True):  # as the worker's `_update_states`
    blocks.extend(new)
print("blocks of the request:", [5, 6, 7, 8], "in the worker's table:", table[0])
assert table[0] == [5, 6, 7, 8, 8]
