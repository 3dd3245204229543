# ruff: noqa: T201 - a plain script: it prints, and its functions explain themselves
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""vLLM 0.33.0: after a reset, an event of the CPU tier clears blocks that the GPU stored later.

Needs vllm, no GPU. Pools, their events and the connector's `take_events` are vLLM's; they are
joined as `Scheduler.update_from_output` joins them: first the manager's, then the connector's.
"""

import os

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from types import SimpleNamespace

from vllm.distributed.kv_events import AllBlocksCleared, BlockStored
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request
from vllm.v1.simple_kv_offload.manager import SimpleCPUOffloadScheduler

BLOCK = 16
init_none_hash(sha256)
gpu, cpu = (
    BlockPool(8, enable_caching=True, hash_block_size=BLOCK, enable_kv_cache_events=True)
    for _ in range(2)
)
connector = SimpleNamespace(cpu_block_pool=cpu, kv_event_medium="CPU")

# reset_prefix_cache(reset_connector=True), while nothing runs: no step publishes its events
assert gpu.reset_prefix_cache()
assert cpu.reset_prefix_cache()

# the next step stores a block
request = Request(
    "a",
    list(range(BLOCK + 1)),
    SamplingParams(max_tokens=1),
    pooling_params=None,
    block_hasher=get_request_block_hasher(BLOCK, sha256),
)
gpu.cache_full_blocks(
    request=request,
    blocks=gpu.get_new_blocks(1),
    num_cached_blocks=0,
    num_full_blocks=1,
    block_size=BLOCK,
    kv_cache_group_id=0,
)
published = [*gpu.take_events(), *SimpleCPUOffloadScheduler.take_events(connector)]
print("published:", [type(event).__name__ for event in published])
print("fields of AllBlocksCleared:", list(AllBlocksCleared.__struct_fields__))

router = set()
for event in published:
    if isinstance(event, AllBlocksCleared):
        router.clear()
    elif isinstance(event, BlockStored):
        router.update(event.block_hashes)
found = gpu.get_cached_block(request.block_hashes[0], [0])
print("the engine finds the block:", found is not None, "- a router that replays:", bool(router))
assert found is not None
assert not router
