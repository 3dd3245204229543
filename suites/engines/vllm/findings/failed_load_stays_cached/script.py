# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: with kv_load_failure_policy=recompute, a block whose load failed is hit by others.

Needs vllm, no GPU. The cache manager and the handling of failed loads are vLLM's; the scheduler
around them has one running request and nothing else.
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


def request(name, length):
    """Return a request with that many tokens."""
    hasher = get_request_block_hasher(BLOCK, sha256)
    return Request(
        name, list(range(length)), SamplingParams(max_tokens=1), None, block_hasher=hasher
    )


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
first = request("first", 5 * BLOCK)
# four blocks are loaded by a connector within the step, the fifth one is computed
manager.allocate_slots(first, BLOCK, num_external_computed_tokens=4 * BLOCK)
first.num_computed_tokens = 5 * BLOCK
lost = manager.get_block_ids("first")[0][0]

scheduler = SimpleNamespace(
    kv_cache_config=config,
    kv_cache_manager=manager,
    recompute_kv_load_failures=True,
    failed_recving_kv_req_ids=set(),
    kv_holding_waiting=[],
    running=[first],
    block_size=BLOCK,
)
scheduler._update_requests_with_invalid_blocks = partial(
    Scheduler._update_requests_with_invalid_blocks, scheduler
)
print("rescheduled:", Scheduler._handle_invalid_blocks(scheduler, {lost}, {"first": BLOCK}))
print("tokens of it that count as computed:", first.num_computed_tokens)
manager.free(first)  # its user goes away before it is computed again

blocks, hit, *_ = manager.get_computed_blocks(request("second", 4 * BLOCK + 1))
found = blocks.get_block_ids()[0]
print(f"the next request hits {hit} tokens in blocks {found}; the load of block {lost} failed")
assert lost in found
