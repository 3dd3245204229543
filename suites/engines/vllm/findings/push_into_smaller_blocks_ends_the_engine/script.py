# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a push from an engine with larger blocks ends the one that decodes.

Needs vllm, no GPU and no NIXL. The methods are vLLM's; only the data that they read are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import queue
import threading
from collections import defaultdict
from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.utils import EngineTransferInfo, TransferTopology
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.stats import NixlKVConnectorStats


def topology(engine, block_size):
    """Return vLLM's record of an engine with one rank."""
    return TransferTopology(
        tp_rank=0, tp_size=1, block_size=block_size, engine_id=engine, is_mla=False,
        is_mamba=False, total_num_kv_heads=1, attn_backends=[],
    )  # fmt: skip


sender = topology("prefill", 32)
print("the sender writes", sender.block_size_ratio(16), "blocks for one of its own, and may")

receiver = topology("decode", 16)
receiver.register_remote_engine(
    "prefill",
    EngineTransferInfo(
        remote_tp_size=1,
        remote_block_len=1,
        remote_block_size=32,
        remote_physical_blocks_per_logical=1,
    ),
)
worker = NixlPushConnectorWorker.__new__(NixlPushConnectorWorker)
waiting = SimpleNamespace(
    pp_size=1, region_blocks_to_zero=None, remote=SimpleNamespace(engine_id="prefill")
)
vars(worker).update(
    transfer_topo=receiver,
    tp_rank=0,
    world_size=1,
    use_host_buffer=False,
    consumer_notification_counts_by_req=defaultdict(int),
    _pending_completion_notifs=queue.Queue(),
    _push_writer_wake=threading.Event(),
    _recving_metadata={"r": waiting},
    _recving_transfers={},
    _pending_recv_notifs={},
    _recv_failures=set(),
    _failed_recv_reqs=queue.Queue(),
    _replicated_pcp_done_sending=set(),
    xfer_stats=NixlKVConnectorStats(),
)
worker._pending_completion_notifs.put(b"r:1")  # the write has ended
try:
    worker.get_transfer_results()
except AssertionError as error:
    print("the receiver's step ends with AssertionError:", error)
else:
    raise SystemExit("the receiver goes on")
