# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: two workers that share one head are refused by one that decodes, without a word.

Needs vllm, no GPU and no NIXL. The method is vLLM's; the data that it reads are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.utils import EngineTransferInfo, TransferTopology
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker

topology = TransferTopology(
    tp_rank=0, tp_size=1, block_size=16, engine_id="decode", is_mla=False, is_mamba=False,
    total_num_kv_heads=1, attn_backends=[],
)  # fmt: skip
topology.register_remote_engine(
    "prefill",
    EngineTransferInfo(
        remote_tp_size=2,
        remote_block_len=1,
        remote_block_size=16,
        remote_physical_blocks_per_logical=1,
    ),
)
worker = NixlPullConnectorWorker.__new__(NixlPullConnectorWorker)
vars(worker).update(transfer_topo=topology, dcp_size=1, _has_mamba=False, use_mla=False)
try:
    worker._validate_remote_agent_handshake(
        SimpleNamespace(engine_id="prefill", block_size=16), remote_tp_size=2
    )
except AssertionError as error:
    print("the handshake fails with AssertionError:", repr(str(error)))
    if str(error):
        raise SystemExit("it says why") from None
else:
    raise SystemExit("the pair is served")
