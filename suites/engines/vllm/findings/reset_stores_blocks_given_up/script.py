# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: after a reset OffloadingConnector stores a block that a window has given up.

Needs vllm, no GPU. `_update_req_states`, `_reset_cache` and `_build_store_jobs` are vLLM's; the
scheduler side around them has one running request with one window.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from functools import partial
from types import SimpleNamespace
from unittest.mock import MagicMock

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
    RequestGroupState,
)
from vllm.v1.request import RequestStatus

GIVEN_UP = 7
running = SimpleNamespace(
    status=RequestStatus.RUNNING,
    is_finished=lambda: False,
    num_computed_tokens=16,
    num_prompt_tokens=12,
)
# four blocks of four tokens; a window of one block, all of it was stored
state = RequestGroupState(offload_keys=["a", "b", "c", "d"], block_ids=[5, 6, GIVEN_UP, 8])
state.next_stored_chunk_idx = 4
status = MagicMock(req=running, group_states=[state], transfer_jobs=set())
status.storable_chunks = lambda *_: 4
window = MagicMock(
    tokens_per_chunk=4,
    sliding_window_size_in_chunks=1,
    requires_cow_source=False,
    is_eagle_group=False,
    group_idx=0,
)
scheduler = MagicMock(
    config=SimpleNamespace(
        kv_group_configs=[window], blocks_per_chunk=1, retention_interval=None, num_workers=1
    ),
    _req_status={"long": status},
    _sliding_window_groups=[0],
    _current_batch_allocated_block_ids=set(),
    _current_batch_jobs_to_flush=set(),
    _block_id_to_pending_jobs={},
    _jobs={},
    _job_counter=9,
    _reset_fence={},
    _chunks_being_loaded=None,
)
scheduler._generate_job_id.return_value = 9
scheduler._calc_num_offloadable_tokens = lambda _, tokens: tokens
scheduler._final_swa_alignment_blocks.return_value = None
scheduler._reachable_store_block_mask.return_value = None
scheduler.manager.prepare_store = lambda keys, _: SimpleNamespace(
    keys_to_store=keys, store_spec=None
)
for name in ("_update_req_states", "_reset_cache", "_build_store_jobs"):
    setattr(scheduler, name, partial(getattr(OffloadingConnectorScheduler, name), scheduler))


def step(tokens, allocated):
    """Return the blocks that the stores of a step copy."""
    output = MagicMock(
        num_scheduled_tokens={"long": tokens},
        finished_req_ids=(),
        scheduled_new_reqs=(),
        kv_cache_block_copies=(),
    )
    output.scheduled_cached_reqs = SimpleNamespace(req_ids=(), new_block_ids=(), resumed_req_ids=())
    scheduler._current_batch_allocated_block_ids = allocated
    scheduler._update_req_states(output)
    return [
        list(map(int, job.src_spec.block_ids))
        for job in scheduler._build_store_jobs(output).values()
    ]


print(f"the window has given block {GIVEN_UP} up, another request gets it")
print("stores of that step:", step(1, {GIVEN_UP}))
scheduler._reset_cache()
stored = step(1, set())
print("stores of the step after a reset:", stored)
assert any(GIVEN_UP in blocks for blocks in stored)
print(f"block {GIVEN_UP} is stored as the third block of 'long', with what the other one wrote")
