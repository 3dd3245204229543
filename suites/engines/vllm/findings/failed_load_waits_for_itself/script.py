# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: blocks are reserved for a request whose load failed, and keep itself out.

Needs vllm, no GPU. `Scheduler.schedule` and the cache manager are vLLM's; only the data that they
read are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from types import SimpleNamespace
from unittest.mock import MagicMock

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import Request, RequestStatus

BLOCK, PROMPT, LOADED = 16, 192, 32
init_none_hash(sha256)
sizes = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
specs = [FullAttentionSpec(**sizes)]
config = KVCacheConfig(
    num_blocks=14,
    kv_cache_tensors=[],
    kv_cache_groups=[KVCacheGroupSpec([str(at)], spec) for at, spec in enumerate(specs)],
    prefix_cache_retention_interval=None,
)
manager = KVCacheManager(
    config, max_model_len=192, scheduler_block_size=BLOCK, hash_block_size=BLOCK
)


class Filled(Scheduler):
    """vLLM's scheduler without its start: options that are not set below are off, or 0."""

    def __getattr__(self, name):
        return 0


queue = create_request_queue(SchedulingPolicy.FCFS)
connector = MagicMock()  # the tier has the first two blocks of the prompt, and keeps them
connector.get_num_new_matched_tokens.return_value = (LOADED, True)
connector.get_loaded_kv_cache_group_ids.return_value = ()
scheduler = Filled.__new__(Filled)
vars(scheduler).update(
    kv_cache_config=config,
    kv_cache_manager=manager,
    connector=connector,
    connector_prefix_cache_stats=None,
    recompute_kv_load_failures=True,
    encoder_cache_manager=MagicMock(),
    aux_output_connector=None,
    ec_connector=None,
    dynamic_sd_lookup=None,
    scheduler_config=SimpleNamespace(
        max_num_batched_tokens=96, long_prefill_token_threshold=0, enable_chunked_prefill=True
    ),
    vllm_config=SimpleNamespace(speculative_config=None),
    scheduler_reserve_full_isl=True,
    block_size=BLOCK,
    max_model_len=192,
    max_num_scheduled_tokens=96,
    num_sampled_tokens_per_step=1,
    max_num_running_reqs=6,
    max_num_active_reqs=6,
    policy=SchedulingPolicy.FCFS,
    _pause_state=PauseState.UNPAUSED,
    waiting=create_request_queue(SchedulingPolicy.FCFS),
    kv_holding_waiting=queue,
    running=[],
    requests={},
    deferred_loads={},
    _kv_fetch_stages=None,
    deferred_waiting=set(),
    _inflight_prefills=set(),
    finished_req_ids=set(),
    reset_preempted_req_ids=set(),
    prev_step_scheduled_req_ids=set(),
    finished_recving_kv_req_ids=set(),
    failed_recving_kv_req_ids=set(),
)


hasher = get_request_block_hasher(BLOCK, sha256)
request = Request(
    "long", list(range(PROMPT)), SamplingParams(max_tokens=1), None, block_hasher=hasher
)
scheduler.requests["long"] = request
scheduler._enqueue_waiting_request(request)
print(f"12 blocks are needed, {manager.block_pool.get_num_free_blocks()} are free")
scheduler.schedule()
print(f"the first load: {request.status.name}")
assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
# the load has ended, and has failed
scheduler._handle_failed_recving({"long"})
scheduler.finished_recving_kv_req_ids.add("long")
for step in range(3):
    scheduler.schedule()
    free = manager.block_pool.get_num_free_blocks()
    reserved = scheduler._inflight_prefill_reserved_blocks()
    print(f"step {step}: {request.status.name}, {free} blocks are free, {reserved} are reserved")
    assert request.status == RequestStatus.WAITING
scheduler._inflight_prefills.clear()
scheduler.schedule()
print(f"without its own reservation: {request.status.name}")
assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
