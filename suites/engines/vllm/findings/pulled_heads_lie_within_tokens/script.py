# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: Mooncake splits the heads of NHD blocks as if they were HND blocks, without a word.

Needs vllm, no GPU and no Mooncake. The functions are vLLM's; the data that they read are filled in.
"""

import os
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
os.environ["VLLM_KV_CACHE_LAYOUT"] = "NHD"
for name, each in (("uvicorn", "Server"), ("fastapi", "FastAPI"), ("fastapi", "HTTPException")):
    vars(sys.modules.setdefault(name, ModuleType(name))).setdefault(each, Exception)

vllms = import_module("vllm.distributed.kv_transfer.kv_connector.v1.mooncake.mooncake_connector")
utils = import_module("vllm.v1.attention.backends.utils")

chosen = utils.resolve_kv_cache_layout(
    SimpleNamespace(cache_config=SimpleNamespace(kv_cache_layout=None)), [["LBHNC", "LBNHC"]]
)
print("layout:", chosen.name)

TOKENS, HEADS = 4, 2
block = [f"token {token}, head {head}" for token in range(TOKENS) for head in range(HEADS)]
mine = [vllms.TransferRegion("layers.0", 0, 0, len(block), len(block))]
theirs = [vllms.TransferRegion("layers.0", 0, 0, TOKENS, TOKENS)]

spec = SimpleNamespace(kv_quant_mode=SimpleNamespace(is_nvfp4=False))
spec.page_size_bytes = spec.unpadded_page_size_bytes = len(block)
vllms.AttentionSpec = SimpleNamespace
worker = vllms.MooncakeConnectorWorker.__new__(vllms.MooncakeConnectorWorker)
worker.shutdown = lambda: None
worker.use_mla, worker.tp_size, worker._layer_specs = False, 1, {"layers.0": spec}
worker.kv_cache_config = SimpleNamespace(has_mamba_layers=False)
worker.transfer_topo = SimpleNamespace(total_num_kv_heads=HEADS)
refused = worker._validate_head_resharding_layout(2, mine)
refused = refused or vllms._validate_asymmetric_region_lengths(
    mine, theirs, 1, 2, producer_cache_replicated=False, total_num_kv_heads=HEADS
)
print("refused:", refused)
if refused:
    raise SystemExit("the split of heads is refused")

for rank in range(2):
    _, start, to, length = vllms._compute_sender_transfer_plan(
        0, 1, rank, 2, len(block), TOKENS, producer_cache_replicated=False, total_num_kv_heads=HEADS
    )
    got = block[start : start + length]
    for token, each in enumerate(got, start=to):
        print(f"worker {rank} reads as token {token}, head {rank}: {each}")
