# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: where blocks are masked, the event of a kept block has the tokens of the others.

Needs vllm, no GPU. The pool and its events are vLLM's.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

BLOCK = 4
init_none_hash(sha256)
pool = BlockPool(8, enable_caching=True, hash_block_size=BLOCK, enable_kv_cache_events=True)
request = Request(
    "a",
    list(range(100, 100 + 3 * BLOCK)),
    SamplingParams(max_tokens=1),
    pooling_params=None,
    block_hasher=get_request_block_hasher(BLOCK, sha256),
)
# a window of one block: the last of three full blocks is kept
pool.cache_full_blocks(
    request=request,
    blocks=pool.get_new_blocks(3),
    num_cached_blocks=0,
    num_full_blocks=3,
    block_size=BLOCK,
    kv_cache_group_id=1,
    block_mask=[False, False, True],
)
(event,) = pool.take_events()
print(
    "hashes:",
    len(event.block_hashes),
    "tokens:",
    event.token_ids,
    "parent:",
    event.parent_block_hash,
)
print("tokens of the kept block:", request.all_token_ids[2 * BLOCK :])
assert len(event.block_hashes) == 1
assert list(event.token_ids[:BLOCK]) != list(request.all_token_ids[2 * BLOCK :])
assert event.parent_block_hash is None
