# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a push between equal kernel blocks of unlike blocks ends the step that decodes.

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


receiver = topology("decode", 16)
receiver.register_remote_engine(
    "prefill",
    EngineTransferInfo(
        remote_tp_size=1,
        remote_block_len=1,
        remote_block_size=16,
        remote_physical_blocks_per_logical=2,  # its blocks have 32 tokens
    ),
)
print("ratio of the kernel blocks:", receiver.block_size_ratio(16))
worker = NixlPushConnectorWorker.__new__(NixlPushConnectorWorker)
waiting = SimpleNamespace(
    pp_size=1,
    region_blocks_to_zero=None,
    local_physical_block_ids=[[1]],
    remote=SimpleNamespace(engine_id="prefill", block_ids=()),  # a push brings no table
)
vars(worker).update(
    transfer_topo=receiver,
    tp_rank=0,
    world_size=1,
    use_host_buffer=False,
    enable_permute_local_kv=False,
    _physical_blocks_per_logical_kv_block=1,
    _group_spec_types=[object],
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
    shutdown=lambda: None,
)
worker._pending_completion_notifs.put(b"r:1")  # the write has ended
try:
    worker.get_transfer_results()
except IndexError as error:
    print("the receiver's step ends with IndexError:", error)
else:
    raise SystemExit("the receiver goes on")
