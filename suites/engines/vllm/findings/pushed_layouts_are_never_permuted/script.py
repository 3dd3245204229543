# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a push from LBNHC to LBHNC passes the check, and no side permutes.

Needs vllm, no GPU and no NIXL. The check is vLLM's; only the data that it reads are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from types import SimpleNamespace

from vllm.distributed.kv_transfer.kv_connector.utils import EngineTransferInfo, TransferTopology
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.push_worker import NixlPushConnectorWorker

TOKENS, HEADS = 4, 2
LENGTH = TOKENS * HEADS


def worker_of(engine, layout, other):
    """Return a worker of one rank that knows the other side's sizes."""
    topology = TransferTopology(
        tp_rank=0, tp_size=1, block_size=TOKENS, engine_id=engine, is_mla=False,
        is_mamba=False, total_num_kv_heads=HEADS, attn_backends=[],
    )  # fmt: skip
    topology.local_physical_heads = HEADS
    topology.register_remote_engine(
        other,
        EngineTransferInfo(
            remote_tp_size=1,
            remote_block_len=LENGTH,
            remote_block_size=TOKENS,
            remote_physical_blocks_per_logical=1,
        ),
    )
    worker = NixlPushConnectorWorker.__new__(NixlPushConnectorWorker)
    vars(worker).update(
        transfer_topo=topology, dcp_size=1, use_mla=False, use_host_buffer=False,
        kv_cache_layout=layout, backend_name="FLASH_ATTN", block_len_per_layer=[LENGTH],
        kv_transfer_config=SimpleNamespace(enable_permute_local_kv=True),
        enable_permute_local_kv=False, dst_num_blocks={other: 1}, region_group_ids=[],
        _has_mamba=False, _is_hma_required=False, _head_sharded_draft_regions=[],
        _physical_blocks_per_logical_kv_block=1, _transfer_layer_region_indices=[0],
        _layer_specs={}, _is_region_replicated=lambda _: False, shutdown=lambda: None,
    )  # fmt: skip
    return worker


sender = worker_of("prefill", "LBNHC", "decode")
receiver = worker_of("decode", "LBHNC", "prefill")
told = SimpleNamespace(
    engine_id="decode", kv_cache_layout="LBHNC", attn_backend_name="FLASH_ATTN",
    block_size=TOKENS, block_lens=[LENGTH], block_strides=[LENGTH], num_blocks=1,
    kv_caches_base_addr=[0], region_num_blocks=None, region_group_ids=None, region_names=None,
    region_mem_types=None, physical_blocks_per_logical_kv_block=1,
)  # fmt: skip
sender._validate_remote_agent_handshake(told, 1)  # the side that writes checks; the other does not

print("the sender takes the other layout, and will permute what it receives:")
print("  sender", sender.enable_permute_local_kv, "receiver", receiver.enable_permute_local_kv)
if receiver.enable_permute_local_kv or not sender.enable_permute_local_kv:
    raise SystemExit("the receiver permutes")

block = [f"token {token}, head {head}" for token in range(TOKENS) for head in range(HEADS)]
print("a block is written as it lies; the receiver reads, head by head:")
for place, each in enumerate(block):
    print(f"  as token {place % TOKENS}, head {place // TOKENS}: {each}")
