# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a request whose load failed holds nothing, waits for room, and hides later ones.

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
    SlidingWindowSpec,
)
from vllm.v1.request import Request, RequestStatus

BLOCK, PROMPT = 16, 49
init_none_hash(sha256)
sizes = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
specs = [FullAttentionSpec(**sizes), SlidingWindowSpec(**sizes, sliding_window=12)]
config = KVCacheConfig(
    num_blocks=13,
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
connector = MagicMock()  # nothing is left to load for a request whose load has failed
connector.get_num_new_matched_tokens.return_value = (0, False)
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


def held(request):
    """Count the blocks of a request."""
    return sum(
        not block.is_null
        for manager_of_group in manager.coordinator.single_type_managers
        for block in manager_of_group.req_to_blocks.get(request.request_id, ())
    )


hasher = get_request_block_hasher(BLOCK, sha256)
for at, name in enumerate(("first", "second")):
    prompt = list(range(1000 * at, 1000 * at + PROMPT))
    request = Request(name, prompt, SamplingParams(max_tokens=9), None, block_hasher=hasher)
    # the prompt is loaded: its blocks are allocated, and it waits among those that hold blocks
    assert manager.allocate_slots(
        request, 0, num_external_computed_tokens=PROMPT, delay_cache_blocks=True
    )
    request.num_computed_tokens, request.status = PROMPT, RequestStatus.WAITING_FOR_REMOTE_KVS
    scheduler.requests[name] = request
    scheduler._enqueue_waiting_request(request)
    print(f"{name}: {held(request)} blocks for a load of {PROMPT} tokens")
# both loads have ended, and have failed
scheduler._handle_failed_recving({"first", "second"})
scheduler.finished_recving_kv_req_ids |= {"first", "second"}

for step in range(3):
    scheduled = scheduler.schedule().num_scheduled_tokens
    state = {each.request_id: (each.status.name, held(each)) for each in queue}
    free = manager.block_pool.get_num_free_blocks()
    print(f"step {step}: scheduled {scheduled or 'nothing'}, {free} blocks are free, {state}")
    assert not scheduled
    assert state == {"first": ("WAITING", 0), "second": ("WAITING_FOR_REMOTE_KVS", 6)}

# the first one belongs here, since it holds nothing any more, and it hides no other one
scheduler.waiting.add_request(queue.pop_request())
scheduled = scheduler.schedule().num_scheduled_tokens
print(f"the first one behind those that hold blocks: scheduled {scheduled}")
assert scheduled == {"second": PROMPT}
