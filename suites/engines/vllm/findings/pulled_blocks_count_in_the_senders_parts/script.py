# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: Mooncake writes a prompt over blocks of other requests where block sizes are unlike.

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

# both sides have kernel blocks of 4 tokens; 2 are a block of the side that prefills, 1 is one of
# the side that decodes
KERNEL = 4 * 16  # bytes
mine, theirs = (
    [vllms.TransferRegion("layers.0", 0, base, KERNEL, KERNEL)] for base in (0, 1 << 20)
)
refused = vllms._validate_asymmetric_region_lengths(
    mine, theirs, 1, 1, producer_cache_replicated=False, total_num_kv_heads=1
)
print("refused:", refused)
if refused:
    raise SystemExit("blocks of unlike sizes are refused")

worker = vllms.MooncakeConnectorWorker.__new__(vllms.MooncakeConnectorWorker)
worker.shutdown = lambda: None
worker.tp_rank, worker.tp_size, worker.use_mla = 0, 1, False
worker._physical_blocks_per_logical_kv_block = 2
topology = SimpleNamespace(local_replicates_kv_cache=False, total_num_kv_heads=1)
worker.transfer_topo = topology
groups = [SimpleNamespace(kv_cache_spec=None)]
worker.kv_cache_config = SimpleNamespace(transfer_groups=groups, has_mamba_layers=False)

# 4 tokens: half of block 1 on one side, block 2 on the other
prompt = SimpleNamespace(local_block_ids=[[1]])
pull = SimpleNamespace(
    req_blocks={"prompt": ("prompt", [[2]])},
    remote_hostname="decode",
    remote_port=1,
    remote_tp_rank=0,
    remote_tp_size=1,
)
sources, targets, lengths, *_ = asyncio.run(
    worker._build_transfer_params([("prompt", prompt)], pull, mine, theirs)
)
for target, length in zip(targets, lengths, strict=True):
    first = (target - theirs[0].base_addr) // KERNEL
    written = [*range(first, first + length // KERNEL)]
    print(f"the decoding side asked for block 2; written are {written}")
