# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a prompt that was loaded whole is computed on with a window that lacks a token.

Needs vllm, no GPU. The cache manager is vLLM's; a connector has loaded all 51 tokens of the prompt.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

BLOCK, WINDOW, PROMPT = 16, 20, 51
init_none_hash(sha256)

shape = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
config = KVCacheConfig(
    num_blocks=64,
    kv_cache_tensors=[],
    kv_cache_groups=[
        KVCacheGroupSpec(["full"], FullAttentionSpec(**shape)),
        KVCacheGroupSpec(["window"], SlidingWindowSpec(**shape, sliding_window=WINDOW)),
    ],
    prefix_cache_retention_interval=None,
)
manager = KVCacheManager(
    config, max_model_len=1024, scheduler_block_size=BLOCK, hash_block_size=BLOCK
)
request = Request(
    "r",
    list(range(PROMPT)),
    SamplingParams(max_tokens=1),
    None,
    block_hasher=get_request_block_hasher(BLOCK, sha256),
)
manager.allocate_slots(request, 0, num_external_computed_tokens=PROMPT, delay_cache_blocks=True)
table = manager.get_block_ids("r")[1]
print("blocks of the window, 0 is the null block:", table)

# Scheduler._update_waiting_for_remote_kv: "a full prompt hit re-computes" the last token
last = PROMPT - 1
first = last - WINDOW + 1
print(f"token {last} is computed again and attends to {first}..{last}")
print(f"token {first} is in block {table[first // BLOCK]}")
assert table[first // BLOCK] == 0
