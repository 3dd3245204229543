# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: NixlPushConnector keeps a request that was aborted before it was scheduled.

Needs vllm, no GPU and no NIXL. The methods are vLLM's; only the data that they read are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import queue
import threading
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_scheduler import (
    NixlPushConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker
from vllm.v1.request import RequestStatus


def made(kind, **values):
    """Return an object of a class with these attributes and no start-up."""
    instance = kind.__new__(kind)
    vars(instance).update(values)
    return instance


scheduler = made(
    NixlPushConnectorScheduler,
    use_host_buffer=False,
    _reqs_need_recv={},
    _reqs_need_send={},
    _reqs_in_batch=set(),
    _reqs_not_processed=set(),
    _heartbeat_by_engine={},
    _heartbeat_req_engine={},
    _push_registration_deadlines={},
    _push_pending_registrations={},
    _newly_finished_push_blocks={},
)
request = SimpleNamespace(
    request_id="r",
    status=RequestStatus.FINISHED_ABORTED,
    kv_transfer_params={
        "do_remote_prefill": True,
        "remote_engine_id": "prefill",
        "remote_request_id": "r",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
    },
)
scheduler.request_finished(request, ([],))
meta = scheduler.build_connector_meta(SimpleNamespace())

worker = made(
    NixlPushConnectorWorker,
    pcp_rank=0,
    pcp_dcp_sharded=False,
    _physical_blocks_per_logical_kv_block=1,
    _remote_agents={},
    _recving_metadata={},
    _reqs_to_process=set(),
    _reqs_to_send={},
    _reg_send_inbox=queue.Queue(),
    _push_writer_wake=threading.Event(),
)
worker.start_load_kv(meta)
print("requests that the worker waits for:", list(worker._recving_metadata))
print("messages to the engine that prefilled:", worker._reg_send_inbox.qsize())
assert list(worker._recving_metadata) == ["r"]
assert worker._reg_send_inbox.empty()
