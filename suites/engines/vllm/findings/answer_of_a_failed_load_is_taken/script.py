# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: after a failed load, the answer of the step in flight is not marked to be dropped.

Needs vllm, no GPU. The cache manager and the handling of failed loads are vLLM's; the scheduler
around them has one request, with two steps in flight as asynchronous scheduling has them.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from functools import partial
from types import SimpleNamespace

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
hasher = get_request_block_hasher(BLOCK, sha256)
only = Request("only", list(range(65)), SamplingParams(max_tokens=9), None, block_hasher=hasher)
spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
config = KVCacheConfig(
    num_blocks=64,
    kv_cache_tensors=[],
    kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    prefix_cache_retention_interval=None,
)
manager = KVCacheManager(
    config, max_model_len=1024, scheduler_block_size=BLOCK, hash_block_size=BLOCK
)
# step 1: 64 tokens are loaded, the last one of the prompt is computed and answered
manager.allocate_slots(only, 1, num_external_computed_tokens=64)
# step 2 is scheduled before step 1 has ended: it computes the answer of step 1
only.num_computed_tokens, only.num_output_placeholders, only.num_in_flight_tokens = 66, 2, 2
scheduler = SimpleNamespace(
    kv_cache_config=config,
    kv_cache_manager=manager,
    recompute_kv_load_failures=True,
    failed_recving_kv_req_ids=set(),
    kv_holding_waiting=[],
    running=[only],
    block_size=BLOCK,
    max_model_len=1024,
)
scheduler._update_requests_with_invalid_blocks = partial(
    Scheduler._update_requests_with_invalid_blocks, scheduler
)
# step 1 ends: the first block has not arrived. Its own answer is dropped
only.num_in_flight_tokens -= 1
lost = manager.get_block_ids("only")[0][0]
print("rescheduled:", Scheduler._handle_invalid_blocks(scheduler, {lost}, {"only": 1}))
print("tokens that count as computed:", only.num_computed_tokens)
print("tokens still in flight:       ", only.num_in_flight_tokens)
print("of them to be dropped:        ", only.num_stale_output_tokens)
print("answers still awaited:        ", only.num_output_placeholders)
# step 2 ends: it has read the block that did not arrive
Scheduler._update_request_with_output(scheduler, only, [666], only.num_stale_output_tokens > 0)
print("the answer:", list(only.output_token_ids))
assert list(only.output_token_ids) == [666]
