# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: Mooncake sends two context ranks one and the same block.

Needs vllm, no GPU and no Mooncake. The functions are vLLM's; the data that they read are filled in.
"""

import asyncio
import os
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
for name, each in (("uvicorn", "Server"), ("fastapi", "FastAPI"), ("fastapi", "HTTPException")):
    vars(sys.modules.setdefault(name, ModuleType(name))).setdefault(each, Exception)

vllms = import_module("vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector")

told = vllms.MooncakeXferMetadata.__struct_fields__
print("a pull tells", ", ".join(each for each in told if each.endswith("_size")))
if any("dcp" in each or "context" in each for each in told):
    raise SystemExit("a pull tells of context ranks")

BLOCK = 64  # bytes of four tokens
regions = [vllms.TransferRegion("layers.0", 0, 0, BLOCK, BLOCK)]
worker = vllms.MooncakeConnectorWorker.__new__(vllms.MooncakeConnectorWorker)
worker.shutdown = lambda: None
worker.tp_rank, worker.tp_size, worker.use_mla = 0, 1, True
worker._physical_blocks_per_logical_kv_block = 1
worker.transfer_topo = SimpleNamespace(local_replicates_kv_cache=True)
worker.kv_cache_config = SimpleNamespace(transfer_groups=[SimpleNamespace(kv_cache_spec=None)])

# 8 tokens: blocks 1 and 2 on one worker; on two context ranks, block 1 of each
prompt = SimpleNamespace(local_block_ids=[[1, 2]])
for rank in range(2):
    pull = SimpleNamespace(
        req_blocks={"prompt": ("prompt", [[1]])},
        remote_hostname="decode",
        remote_port=1,
        remote_tp_rank=rank,
        remote_tp_size=2,
    )
    sources, *_ = asyncio.run(
        worker._build_transfer_params([("prompt", prompt)], pull, regions, regions)
    )
    print(f"rank {rank} gets block {sources[0] // BLOCK}, and should get block {rank + 1}")
