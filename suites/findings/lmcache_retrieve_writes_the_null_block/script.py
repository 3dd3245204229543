# ruff: noqa: T201 - a plain script: it prints, and says what it shows
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""LMCache 0.5.6: a retrieve writes into the null block.

Needs lmcache and torch, no GPU: python script.py
"""

import os
import time

os.environ["LMCACHE_LOG_LEVEL"] = "CRITICAL"
import torch
from lmcache.utils import EngineType
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
from lmcache.v1.multiprocess.engine_context import MPCacheServerContext
from lmcache.v1.multiprocess.group_view import EngineGroupInfo as Group
from lmcache.v1.multiprocess.modules.lmcache_driven_transfer import LMCacheDrivenTransferModule
from lmcache.v1.multiprocess.modules.lookup import LookupModule
from lmcache.v1.multiprocess.posix_shm import shm_unlink
from lmcache.v1.platform.base.event_ipc import get_event_ipc_backend
from lmcache.v1.platform.devices.cpu.shm import migrate_to_shm_and_wrap

# LMCache's cache server without its sockets: chunks of 64 tokens, blocks of 16
events = get_event_ipc_backend(torch.device("cpu"))
event = events.export_event(events.create_event("cpu"), "cpu")
memory = L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False, shm_name="")
context = MPCacheServerContext(
    StorageManagerConfig(L1ManagerConfig(memory), EvictionConfig("LRU")),
    chunk_size=64,
    separate_object_groups=True,
)
transfer, lookup = LMCacheDrivenTransferModule(context), LookupModule(context)


def register(tensors, *groups, engine=1):
    """As an engine does: tensors in shared memory, and their groups."""
    shared = [migrate_to_shm_and_wrap(each) for each in tensors]
    hints = {"kv_layout": "NHD"}
    transfer.register_kv_cache(engine, shared, "model", 1, EngineType.VLLM, hints, list(groups))
    for each in shared:
        shm_unlink(each.shm_name)


def pages(*, heads=1, dtype=torch.bfloat16):
    """Keys and values of one layer: 20 blocks of 16 tokens, block 0 is vLLM's null block."""
    return torch.zeros((2, 20, 16, heads, 32), dtype=dtype)


def key(request, tokens, worker=0):
    """Name the first `tokens` tokens of the prompt 0, 1, 2, ...; a look-up has no worker."""
    return IPCCacheServerKey.from_token_ids(
        "model", 1, worker, list(range(256)), 0, tokens, request
    )


def found(request, tokens):
    """Look the prompt up, as a request does that has just arrived; returns tokens."""
    lookup.lookup(key(request, tokens, None), 1)
    return 64 * lookup.wait_prefetch_status(request, 10.0)


def settled(**wanted):
    """Wait up to two seconds for LMCache's threads; returns what is reserved and locked then."""
    for _ in range(200):
        now = context.storage_manager.report_status()["l1_manager"]
        now = {"reserved": now["staging_object_count"], "locked": now["read_locked_count"]}
        if now == {"reserved": 0, "locked": 0, **wanted}:
            break
        time.sleep(0.01)
    return now


layer = pages()
register([layer], Group(0, (0,), 16, sw_size_tokens=96))
layer[:, 1:] = 1
transfer.store(key("a", 128), 1, [[1, 2, 3, 4, 5, 6, 7, 8]], event)
settled()

# A window of 96 looks back from token 128 at 33..127: it needs both chunks, and of the first one
# not the first 32 tokens. The engine has null blocks in their place.
assert found("b", 128) == 128
layer[:, 9:] = 0
null = layer[:, 0].clone()
transfer.retrieve(key("b", 128), 1, [[0, 0, 9, 10, 11, 12, 13, 14]], event)
settled()
changed = int((layer[:, 0] != null).sum())
print(f"{changed} of {null.numel()} numbers of the null block have changed")
assert changed == null.numel()

transfer.close()
context.close()
