# ruff: noqa: T201, D103 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a hit inside a chunk of local attention whose tokens are read from the null block.

Needs vllm, no GPU.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import Request

BLOCK, CHUNK = 16, 40
init_none_hash(sha256)
layer = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
manager = KVCacheManager(
    KVCacheConfig(
        num_blocks=32,
        kv_cache_tensors=[],
        kv_cache_groups=[
            KVCacheGroupSpec(["full"], FullAttentionSpec(**layer)),
            KVCacheGroupSpec(
                ["local"], ChunkedLocalAttentionSpec(**layer, attention_chunk_size=CHUNK)
            ),
        ],
        prefix_cache_retention_interval=None,
    ),
    max_model_len=1024,
    scheduler_block_size=BLOCK,
    hash_block_size=BLOCK,
)


def request(name, length):
    hasher = get_request_block_hasher(BLOCK, sha256)
    sampling = SamplingParams(max_tokens=1)
    return Request(name, list(range(length)), sampling, None, block_hasher=hasher)


first = request("first", 80)
manager.allocate_slots(first, 80)
first.num_computed_tokens = 80
local = manager.get_block_ids("first")[1]
manager.free(first)
manager.evict_blocks({local[2]})  # as the least recent one goes: it holds tokens 32..47

second = request("second", 70)
blocks, hit, _ = manager.get_computed_blocks(second)
manager.allocate_slots(second, 70 - hit, hit, blocks)
table = manager.get_block_ids("second")[1]
seen = range(hit // CHUNK * CHUNK, hit)
print(f"second hits {hit} tokens; its first new token is in the chunk of tokens {seen.start} to "
      f"{hit // CHUNK * CHUNK + CHUNK - 1}")  # fmt: skip
print(f"table of local attention: {table}; tokens {seen.start} to {seen.stop - 1} lie in blocks "
      f"{table[: hit // BLOCK]}")  # fmt: skip
assert hit == 32
assert table[:2] == [0, 0], "block 0 is the null block: nobody has computed what is read there"
