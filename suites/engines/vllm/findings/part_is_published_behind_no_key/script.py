# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: the parent of a published part of a block is a hash that no event has.

Needs vllm, no GPU. The pool and its events are vLLM's.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

BLOCK, UNIT = 8, 2
init_none_hash(sha256)
pool = BlockPool(8, enable_caching=True, hash_block_size=UNIT, enable_kv_cache_events=True)
request = Request(
    "a",
    list(range(100, 100 + BLOCK + 2 * UNIT)),
    SamplingParams(max_tokens=1),
    pooling_params=None,
    block_hasher=get_request_block_hasher(UNIT, sha256),
)
blocks = pool.get_new_blocks(2)
pool.cache_full_blocks(
    request=request,
    blocks=blocks,
    num_cached_blocks=0,
    num_full_blocks=1,
    block_size=BLOCK,
    kv_cache_group_id=0,
)
pool.cache_partial_block(
    request=request,
    block=blocks[1],
    num_tokens=BLOCK + 2 * UNIT,
    kv_cache_group_id=0,
    block_size=BLOCK,
)
whole, part = pool.take_events()
print("whole block:", whole.block_hashes, "of tokens", list(whole.token_ids))
print(
    "its part:",
    part.block_hashes,
    "behind",
    part.parent_block_hash,
    "of tokens",
    list(part.token_ids),
)
assert part.parent_block_hash not in whole.block_hashes
assert len(part.token_ids) == UNIT
