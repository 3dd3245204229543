# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: with NixlPushConnector a request whose blocks are not pushed waits for ever.

Needs vllm, no GPU and no NIXL. The methods are vLLM's; only the data that they read are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import queue
import threading
import time
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_scheduler import (
    NixlPushConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats


def made(kind, **values):
    """Return an object of a class with these attributes and no start-up."""
    instance = kind.__new__(kind)
    vars(instance).update(values)
    return instance


# the engine that decodes has asked for a push, its time limit has passed
scheduler = made(
    NixlPushConnectorScheduler,
    use_host_buffer=False,
    _reqs_need_recv={},
    _reqs_need_send={},
    _reqs_in_batch=set(),
    _reqs_not_processed=set(),
    _heartbeat_by_engine={},
    _push_registration_deadlines={"r": time.perf_counter() - 1},
    _push_registration_timeout=480.0,
    _push_pending_registrations={},
    _newly_finished_push_blocks={},
)
meta = scheduler.build_connector_meta(SimpleNamespace())
print("time limits that are left:", scheduler._push_registration_deadlines)
print("what the worker is told of the request:", meta.reqs_not_processed or "nothing")

worker = made(
    NixlPushConnectorWorker,
    transfer_topo=SimpleNamespace(),
    tp_rank=0,
    use_host_buffer=False,
    _is_hma_required=False,
    _has_mamba=False,
    _pending_completion_notifs=queue.Queue(),
    _push_writer_wake=threading.Event(),
    _recving_metadata={"r": SimpleNamespace()},  # the request waits
    _recving_transfers={},
    _recv_failures=set(),
    _failed_recv_reqs=queue.Queue(),
    _replicated_pcp_done_sending=set(),
    _reqs_to_send={},
    _reqs_to_process=set(),
    _sending_transfers={},
    _sending_transfers_lock=threading.Lock(),
    _send_failures=set(),
    _evict_finished_inbox=queue.Queue(),
    xfer_stats=NixlKVConnectorStats(),
)
results = worker.get_transfer_results()
print("failed:", results.failed_recving or "none", "finished:", results.finished_recving or "none")
print("requests that wait for a push:", list(worker._recving_metadata))
assert not scheduler._push_registration_deadlines
assert not results.failed_recving
assert not results.finished_recving
