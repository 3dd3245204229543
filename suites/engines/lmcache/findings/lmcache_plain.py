# mypy: ignore-errors
# - engines are not typed, and scripts are read more than they are checked
"""Common code of the scripts about LMCache 0.5.6: its cache server, and nothing of kvproof."""

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

__all__ = ["Group", "Server", "key", "pages"]


class Server:
    """LMCache's cache server without its sockets: 64 MiB, chunks of 64 tokens, blocks of 16."""

    def __init__(self, *, separate_object_groups=True):
        memory = L1MemoryManagerConfig(size_in_bytes=64 << 20, use_lazy=False, shm_name="")
        self.context = MPCacheServerContext(
            StorageManagerConfig(L1ManagerConfig(memory), EvictionConfig("LRU")),
            chunk_size=64,
            separate_object_groups=separate_object_groups,
        )
        self.transfer = LMCacheDrivenTransferModule(self.context)
        self.lookup = LookupModule(self.context)
        events = get_event_ipc_backend(torch.device("cpu"))
        self.event = events.export_event(events.create_event("cpu"), "cpu")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.transfer.close()
        self.context.close()

    def register(self, tensors, *groups, engine=1):
        """As an engine does: tensors in shared memory, and their groups."""
        shared = [migrate_to_shm_and_wrap(each) for each in tensors]
        self.transfer.register_kv_cache(
            engine, shared, "model", 1, EngineType.VLLM, {"kv_layout": "NHD"}, list(groups)
        )
        for each in shared:
            shm_unlink(each.shm_name)

    def found(self, request, tokens):
        """Look the prompt up, as a request does that has just arrived; returns tokens."""
        self.lookup.lookup(key(request, tokens, None), 1)
        return 64 * self.lookup.wait_prefetch_status(request, 10.0)

    def settled(self):
        """Wait up to two seconds for its threads; returns the reserved and locked counts then."""
        for _ in range(200):
            now = self.context.storage_manager.report_status()["l1_manager"]
            now = {"reserved": now["staging_object_count"], "locked": now["read_locked_count"]}
            if now == {"reserved": 0, "locked": 0}:
                break
            time.sleep(0.01)
        return now


def pages(*, heads=1, dtype=torch.bfloat16):
    """Keys and values of one layer: 20 blocks of 16 tokens, block 0 is vLLM's null block."""
    return torch.zeros((2, 20, 16, heads, 32), dtype=dtype)


def key(request, tokens, worker=0):
    """Name the first `tokens` tokens of the prompt 0, 1, 2, ...; a look-up has no worker."""
    return IPCCacheServerKey.from_token_ids(
        "model", 1, worker, list(range(256)), 0, tokens, request
    )
