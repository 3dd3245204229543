# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a prompt of 3 tokens is read from the kernel block that has tokens 4 to 7.

Needs vllm, no GPU and no NIXL. The prefilling engine has blocks of 8 tokens over kernel blocks of
4, the decoding one blocks of 4. The methods are vLLM's; the data that they read are filled in.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from types import SimpleNamespace

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_worker import NixlPullConnectorWorker
from vllm.v1.kv_cache_interface import FullAttentionSpec

spec = FullAttentionSpec(block_size=4, num_kv_heads=1, head_size=8, dtype=torch.bfloat16)
worker = NixlPullConnectorWorker.__new__(NixlPullConnectorWorker)
worker._has_mamba = False
worker.kv_cache_config = SimpleNamespace(transfer_groups=[SimpleNamespace(kv_cache_spec=spec)])

decode = [[1]]
prefill = worker._logical_to_kernel_block_ids([[1]], 2)
print(
    "the prefilling engine's kernel blocks of the prompt:",
    prefill[0],
    "- tokens are in",
    prefill[0][0],
)
_, read = worker._apply_prefix_caching(decode, prefill, 1, 2)
print("the decoding engine reads:", read[0])
if read[0] == prefill[0][:1]:
    raise SystemExit("it reads no padding behind the prompt")
