# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a failed load leaves a placeholder, and a request with one answer never ends.

Needs vllm, no GPU. The cache manager, the handling of failed loads and the count after a schedule
are vLLM's; the scheduler around them has one request.
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
only = Request("only", list(range(65)), SamplingParams(max_tokens=1), None, block_hasher=hasher)
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
# 64 tokens are loaded, the last one of the prompt is computed, its answer has a placeholder
manager.allocate_slots(only, 1, num_external_computed_tokens=64)
only.num_computed_tokens, only.num_output_placeholders, only.num_in_flight_tokens = 65, 1, 1
scheduler = SimpleNamespace(
    kv_cache_config=config,
    kv_cache_manager=manager,
    recompute_kv_load_failures=True,
    failed_recving_kv_req_ids=set(),
    kv_holding_waiting=[],
    running=[only],
    requests={"only": only},
    block_size=BLOCK,
    max_model_len=1024,
    defer_block_free=False,
    _inflight_prefills=set(),
)
scheduler._update_requests_with_invalid_blocks = partial(
    Scheduler._update_requests_with_invalid_blocks, scheduler
)
# the first block has not arrived: the answer is dropped
only.num_in_flight_tokens -= 1
lost = manager.get_block_ids("only")[0][0]
print("rescheduled:", Scheduler._handle_invalid_blocks(scheduler, {lost}, {"only": 1}))
print("answers still awaited:", only.num_output_placeholders)
# the whole prompt is computed again
again = SimpleNamespace(
    num_scheduled_tokens={"only": 65 - only.num_computed_tokens},
    has_structured_output_requests=False,
)
Scheduler._update_after_schedule(scheduler, again)
print("computed:", only.num_computed_tokens, "of", only.num_prompt_tokens)
print("counts as a chunk of its prompt, so that nothing is sampled:", only.is_prefill_chunk)
# the test by which schedule() leaves out requests whose last answer is under way
awaited = only.num_output_placeholders
last = only.num_computed_tokens + 2 - awaited >= only.num_prompt_tokens + only.max_tokens
skipped = awaited > 0 and last
print("schedule() leaves it out:", skipped)
assert only.is_prefill_chunk
assert skipped
