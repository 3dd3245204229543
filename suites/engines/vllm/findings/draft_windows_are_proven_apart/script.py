# ruff: noqa: T201, D103 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a hit that one of two draft windows has not proven.

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
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    SlidingWindowSpec,
)
from vllm.v1.request import Request

BLOCK = 16
WINDOWS = (3 * BLOCK + 1, 4 * BLOCK + 1)
init_none_hash(sha256)
LAYER = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


def request(name, length):
    hasher = get_request_block_hasher(BLOCK, sha256)
    sampling = SamplingParams(max_tokens=1)
    return Request(name, list(range(length)), sampling, None, block_hasher=hasher)


def hit(windows):
    """Tokens that a prompt hits: draft window 1 lacks its block 1, draft window 2 its block 2."""
    groups = [KVCacheGroupSpec(["full"], FullAttentionSpec(**LAYER))]
    for number, size in windows.items():
        spec = SlidingWindowSpec(**LAYER, sliding_window=size)
        groups.append(KVCacheGroupSpec([f"draft {number}"], spec, is_eagle_group=True))
    manager = KVCacheManager(
        KVCacheConfig(
            num_blocks=64,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=None,
        ),
        max_model_len=1024,
        use_eagle=True,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
    )
    first = request("first", 7 * BLOCK)
    manager.allocate_slots(first, 7 * BLOCK)
    tables = manager.get_block_ids("first")[1:]
    manager.free(first)
    manager.evict_blocks({table[number] for number, table in zip(windows, tables, strict=True)})
    return manager.get_computed_blocks(request("second", 7 * BLOCK + 1))[1]


first, second = hit({1: WINDOWS[0]}), hit({2: WINDOWS[1]})
both = hit({1: WINDOWS[0], 2: WINDOWS[1]})
print(f"without its block 1, the first window alone hits {first} tokens")
print(f"without its block 2, the second window alone hits {second} tokens")
print(f"both hit {both}: the first has proven no hit of {both}, which needs its block 1")
assert (first, second, both) == (6 * BLOCK, BLOCK, BLOCK)
