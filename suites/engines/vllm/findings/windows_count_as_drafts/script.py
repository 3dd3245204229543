# ruff: noqa: T201, D103 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a window of the model that looks like one of its draft model loses a hit.

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
init_none_hash(sha256)
LAYER = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}


def request(name, length):
    hasher = get_request_block_hasher(BLOCK, sha256)
    sampling = SamplingParams(max_tokens=1)
    return Request(name, list(range(length)), sampling, None, block_hasher=hasher)


def hit(draft_window):
    """Tokens that a prompt hits once the last block of the model's window group is gone."""
    windows = [SlidingWindowSpec(**LAYER, sliding_window=size) for size in (32, draft_window)]
    manager = KVCacheManager(
        KVCacheConfig(
            num_blocks=64,
            kv_cache_tensors=[],
            kv_cache_groups=[
                KVCacheGroupSpec(["full"], FullAttentionSpec(**LAYER)),
                KVCacheGroupSpec(["window"], windows[0]),
                KVCacheGroupSpec(["draft"], windows[1], is_eagle_group=True),
            ],
            prefix_cache_retention_interval=None,
        ),
        max_model_len=1024,
        use_eagle=True,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
    )
    first = request("first", 6 * BLOCK)
    manager.allocate_slots(first, 6 * BLOCK)
    first.num_computed_tokens = 6 * BLOCK
    last = manager.get_block_ids("first")[1][4]
    manager.free(first)
    manager.evict_blocks({last})  # as the least recent one goes: it holds tokens 64 to 79
    return manager.get_computed_blocks(request("second", 5 * BLOCK + 1))[1]


other, equal = hit(48), hit(32)
print(f"the draft model's window is another one: {other} tokens are hit")
print(f"it is the model's own:                   {equal}")
assert (other, equal) == (64, 48)
