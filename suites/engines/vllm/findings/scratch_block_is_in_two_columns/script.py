# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: a state's running block is also the block of its last draft.

Needs vllm, no GPU. Allocation is vLLM's; the worker's append-only table and the column of
`preprocess_mamba` are written out.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheGroupSpec, MambaSpec
from vllm.v1.request import Request

BLOCK, PROMPT, DRAFTS = 4, 7, 4
init_none_hash(sha256)
spec = MambaSpec(
    block_size=BLOCK,
    shapes=((1,),),
    dtypes=(torch.float32,),
    mamba_cache_mode="align",
    num_speculative_blocks=DRAFTS,
)
config = KVCacheConfig(
    num_blocks=40,
    kv_cache_tensors=[],
    kv_cache_groups=[KVCacheGroupSpec(["0"], spec)],
    prefix_cache_retention_interval=None,
)
manager = KVCacheManager(
    config, max_model_len=192, scheduler_block_size=BLOCK, hash_block_size=BLOCK
)
hasher = get_request_block_hasher(BLOCK, sha256)
request = Request(
    "r", list(range(PROMPT)), SamplingParams(max_tokens=20), None, block_hasher=hasher
)
table = []  # the worker appends to it
for tokens in (PROMPT, 1 + DRAFTS, 1 + DRAFTS):
    new = manager.allocate_slots(request, tokens)
    table += new.get_block_ids()[0]
    # with asynchronous scheduling all drafts count as accepted until their step is known
    request.num_computed_tokens += tokens
    print(f"{tokens} more tokens: the worker's table is {table}")
# all drafts of the second step were rejected; the worker knows before it prepares the third one
computed = PROMPT + 1
column = -(-(computed + 1 + DRAFTS) // BLOCK) - 1
states = table[column : column + 1 + DRAFTS]
print(f"after {computed} tokens the states of the third step go to columns {column}.., {states}")
assert len({*states}) < len(states), "each state has a block of its own"
print("two of these states have one block")
