# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: tokens that were decoded after embeddings are not hit by the next turn.

Needs vllm, no GPU.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.request import Request

BLOCK = 16
ANSWER = list(range(100, 100 + BLOCK))
init_none_hash(sha256)
LAYER = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)


def request(name, embedded, ids):
    """A prompt of rows of embeddings, and of ids after them, whose rows are zero."""
    hasher, sampling = get_request_block_hasher(BLOCK, sha256), SamplingParams(max_tokens=64)
    tokens = [7] * BLOCK + ids
    if not embedded:
        return Request(name, tokens, sampling, None, block_hasher=hasher)
    rows = torch.zeros(len(tokens), 1)
    rows[:BLOCK] = 1.0
    mask = [False] * BLOCK + [True] * len(ids)
    given = {"prompt_embeds": rows, "prompt_is_token_ids": mask}
    return Request(name, tokens, sampling, None, block_hasher=hasher, **given)


def hit(embedded):
    """Tokens that the second turn hits: the prompt and the answer of the first, and one more."""
    manager = KVCacheManager(
        KVCacheConfig(
            num_blocks=16,
            kv_cache_tensors=[],
            kv_cache_groups=[KVCacheGroupSpec(["full"], LAYER)],
            prefix_cache_retention_interval=None,
        ),
        max_model_len=1024,
        scheduler_block_size=BLOCK,
        hash_block_size=BLOCK,
    )
    first = request("first", embedded, [])
    manager.allocate_slots(first, BLOCK)
    first.num_computed_tokens = BLOCK
    first.append_output_token_ids(ANSWER)
    manager.allocate_slots(first, BLOCK)
    first.num_computed_tokens = 2 * BLOCK
    manager.free(first)
    return manager.get_computed_blocks(request("second", embedded, [*ANSWER, 5]))[1]


ids, rows = hit(embedded=False), hit(embedded=True)
print(f"a prompt of ids, its answer, and a second turn: {ids} tokens are hit")
print(f"the same with a prompt of embeddings:           {rows}")
assert (ids, rows) == (2 * BLOCK, BLOCK)
