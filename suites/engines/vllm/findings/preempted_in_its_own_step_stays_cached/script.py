# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: by priorities, a request preempted in the step that scheduled it is hit uncomputed.

Needs vllm, no GPU. The manager is vLLM's; the calls are those of `Scheduler.schedule`.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import inspect

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK = 16
init_none_hash(sha256)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
manager = KVCacheManager(
    KVCacheConfig(
        num_blocks=32,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["full"], spec)],
        prefix_cache_retention_interval=None,
    ),
    max_model_len=1024,
    scheduler_block_size=BLOCK,
    hash_block_size=BLOCK,
)
hasher = get_request_block_hasher(BLOCK, sha256)
sampling = SamplingParams(max_tokens=1)
request = Request("low", list(range(80)), sampling, None, block_hasher=hasher)

# an earlier step has computed two blocks
manager.allocate_slots(request, 32)
request.num_computed_tokens = 32

# this step schedules two more, and then takes the request's blocks for one of a higher priority:
# nothing of the two is computed
manager.allocate_slots(request, 32)
assert "if preempted_req in scheduled_running_reqs" in inspect.getsource(Scheduler.schedule)
manager.free(request)
request.num_computed_tokens = 0

# the next step finds the request waiting
_, hit, _ = manager.get_computed_blocks(request)
print(f"computed: 32 tokens; hit when it is resumed: {hit} tokens")
assert hit == 64
