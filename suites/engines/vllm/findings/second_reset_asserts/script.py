# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a second reset of OffloadingConnector before the next step is an AssertionError.

Needs vllm, no GPU. `reset_cache` is vLLM's; the scheduler side around it has one store under way
and nothing else.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.scheduler import (
    OffloadingConnectorScheduler,
)

quiet = SimpleNamespace(reset=lambda: None)
scheduler = SimpleNamespace(
    _current_batch_load_jobs={},
    _current_batch_sync_loads={},
    _current_batch_jobs_to_flush=set(),
    _current_batch_allocated_block_ids=set(),
    _manager_locked=nullcontext,
    _jobs={7: SimpleNamespace(pending_count=1)},
    _req_status={},
    _job_counter=8,
    _reset_fence={},
    _block_id_to_pending_jobs={},
    _events_tracker=quiet,
    _chunks_being_loaded=None,
    manager=SimpleNamespace(reset_cache=lambda: None, on_reset_flushed=lambda: None),
)
scheduler._reset_cache = partial(OffloadingConnectorScheduler._reset_cache, scheduler)

OffloadingConnectorScheduler.reset_cache(scheduler)
print("after the first reset, jobs to flush:", scheduler._current_batch_jobs_to_flush)
try:
    OffloadingConnectorScheduler.reset_cache(scheduler)
except AssertionError as error:
    print("the second reset: AssertionError", error)
else:
    raise SystemExit("the second reset is taken")
