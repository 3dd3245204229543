# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: blocks of 8 on one side and context ranks with blocks of 4 end the step.

Needs vllm, no GPU and no NIXL. The methods are vLLM's; the data that they read are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from types import SimpleNamespace

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.v1.kv_cache_interface import MLAAttentionSpec

spec = MLAAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
worker = NixlPullConnectorWorker.__new__(NixlPullConnectorWorker)
worker.kv_cache_config = SimpleNamespace(transfer_groups=[SimpleNamespace(kv_cache_spec=spec)])

# 13 tokens: two blocks of 8 on the one side, four blocks of 4 on two ranks on the other
local, remote = worker._apply_dcp_prefix_caching(
    local_ids=[1, 2],
    remote_ids=[1, 2],
    remote_rank=0,
    local_dcp_size=2,
    local_dcp_rank=0,
    remote_dcp_size=1,
    local_num_computed_blocks=0,
)
mine = worker._logical_to_kernel_block_ids([local], 1)[0]
theirs = worker._logical_to_kernel_block_ids([remote], 2)[0]
print("rank 0 pairs its kernel blocks", mine, "with", theirs)
if len(mine) == len(theirs):
    raise SystemExit("these are as many, as _read_blocks asserts")
