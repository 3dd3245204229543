# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: Mooncake moves latent blocks of 4 tokens into blocks of 8, without a word.

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

TOKEN = 16  # bytes
mine, theirs = (
    [vllms.TransferRegion("layers.0", 0, base, size * TOKEN, size * TOKEN)]
    for base, size in ((0, 4), (0, 8))
)
refused = vllms._validate_asymmetric_region_lengths(
    mine, theirs, 1, 1, producer_cache_replicated=True
)
print("refused:", refused)
if refused:
    raise SystemExit("blocks of unlike sizes are refused")

worker = vllms.MooncakeConnectorWorker.__new__(vllms.MooncakeConnectorWorker)
worker.shutdown = lambda: None
worker.tp_rank, worker.tp_size, worker.use_mla = 0, 1, True
worker._physical_blocks_per_logical_kv_block = 1
worker.transfer_topo = SimpleNamespace(local_replicates_kv_cache=True)
worker.kv_cache_config = SimpleNamespace(transfer_groups=[SimpleNamespace(kv_cache_spec=None)])

# 8 tokens: blocks 1 and 2 of four tokens on one side, block 1 of eight tokens on the other
prompt = SimpleNamespace(local_block_ids=[[1, 2]])
pull = SimpleNamespace(
    req_blocks={"prompt": ("prompt", [[1]])},
    remote_hostname="decode",
    remote_port=1,
    remote_tp_rank=0,
    remote_tp_size=1,
)
sources, targets, lengths, *_ = asyncio.run(
    worker._build_transfer_params([("prompt", prompt)], pull, mine, theirs)
)
for source, target, length in zip(sources, targets, lengths, strict=True):
    block, to = source // mine[0].block_len, target // theirs[0].block_len
    print(f"{length // TOKEN} tokens of block {block} go to the first tokens of block {to}")
