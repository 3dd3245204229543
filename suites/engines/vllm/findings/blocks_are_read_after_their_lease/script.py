# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: NixlConnector reads blocks from an engine that has given them up.

Needs vllm, no GPU and no NIXL. The methods are vLLM's; only the data that they read are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import time
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import (
    NixlPullConnectorScheduler,
)
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats
from vllm.v1.request import RequestStatus

LEASE = 30


def made(kind, **values):
    """Return an object of a class with these attributes and no start-up."""
    instance = kind.__new__(kind)
    vars(instance).update(values)
    return instance


scheduler = made(
    NixlPullConnectorScheduler,
    vllm_config=SimpleNamespace(
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, pipeline_parallel_size=1),
        num_prefill_lookahead_tokens=0,
    ),
    engine_id="prefill",
    transfer_tp_size=1,
    side_channel_host="127.0.0.1",
    side_channel_port=5600,
    is_bidirectional_kv_xfer_enabled=False,
    get_exchange_clipped_blocks=lambda blocks: blocks,
    _kv_lease_duration=LEASE,
    _registration_generation=0,
    _reqs_need_send={},
    _heartbeat_req_engine={},
    _has_mamba=False,
    _bounded_replay=False,
)
prefilled = SimpleNamespace(
    request_id="r",
    status=RequestStatus.FINISHED_LENGTH_CAPPED,
    num_computed_tokens=48,
    kv_transfer_params={"do_remote_decode": True},
)
held, handover = scheduler.request_finished(prefilled, ([1, 2, 3],))
print("the engine that prefilled holds the blocks:", held)
print("when the lease ends, as the router is told:", handover["remote_blocks_expiry_time"])

worker = made(
    NixlPullConnectorWorker,
    _reqs_to_send={"r": time.perf_counter() - 1},  # the lease has ended
    _reqs_to_process={"r"},
    consumer_notification_counts_by_req={},
    expected_consumer_notifications_by_req={},
    xfer_stats=NixlKVConnectorStats(),
)
given_up = set()
worker._reap_expired_send_leases(given_up)
print("it gives up after", LEASE, "seconds without a heartbeat:", given_up)

# now the request comes to the engine that decodes: its router was slow
request = SimpleNamespace(
    request_id="r", prompt_token_ids=list(range(48)), kv_transfer_params=handover
)
tokens, reads = scheduler.get_num_new_matched_tokens(request, 0)
print(f"the engine that decodes reads {tokens} tokens of blocks {handover['remote_block_ids']}")
assert given_up == {"r"}
assert (tokens, reads) == (48, True)
assert handover["remote_blocks_expiry_time"] is None
