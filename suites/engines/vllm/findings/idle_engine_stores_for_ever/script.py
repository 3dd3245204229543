# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: lazy offloading into a tier smaller than the GPU's cached blocks never ends.

Needs vllm, no GPU. Pools and the scheduler side of the connector are vLLM's; each copy ends one
step after it was scheduled, and no request is there at all.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")

from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler, TransferMeta

CACHED, TIER, STEPS = 44, 32, 1000


def filled(blocks):
    """Return a pool whose blocks are all cached and free, but the null block."""
    pool = BlockPool(blocks + 1, enable_caching=True, hash_block_size=16)
    taken = pool.get_new_blocks(blocks)
    for block in taken:
        key = make_block_hash_with_group_id(block.block_id.to_bytes(32, "big"), 0)
        pool._insert_block_hash(key, block, num_tokens=16)
    pool.free_blocks(taken)
    return pool


tier = SimpleCPUOffloadScheduler.__new__(SimpleCPUOffloadScheduler)
tier._lazy_mode, tier._cursor, tier._target_free = True, None, 12
tier.enable_kv_cache_events = False
tier._gpu_block_pool = filled(CACHED)
tier.cpu_block_pool = BlockPool(TIER + 1, enable_caching=True, hash_block_size=16)
tier._store_event_to_blocks, tier._abandoned_store_event_to_blocks = {}, {}
tier._pending_finished_stores = []

stored, under_way = 0, None
for step in range(STEPS):
    gpu, cpu, *_ = tier._prepare_lazy_store_specs()
    if under_way:
        tier._store_event_to_blocks.pop(step - 1)
        tier._process_store_completion(*under_way)
    under_way = (gpu, cpu) if gpu else None
    if under_way:
        tier._store_event_to_blocks[step] = TransferMeta(gpu, cpu)
    stored += len(gpu)
    if not tier.has_pending_stores():
        break
print(f"after {step + 1} steps without a request: {stored} blocks copied, of {CACHED} cached ones")
assert step + 1 == STEPS
