"""LMCache's interface to the adapter, and its drift. Engine environment only."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import drift_of_calls, found_drift, refuse
from kvproof.harness.contract.differences import Difference

VERSIONS = ("0.5.6",)
"""The releases that this adapter was written for."""

_SIGNATURES = {
    "Transfer.store": "self key instance_id gpu_block_ids event_ipc_handle",
    "Transfer.retrieve": (
        "self key instance_id gpu_block_ids event_ipc_handle skip_first_n_tokens"
    ),
    "Transfer.register_kv_cache": (
        "self instance_id kv_caches model_name world_size engine_type layout_hints "
        "engine_group_infos"
    ),
    "Transfer.unregister_kv_cache": "self instance_id",
    "Lookup.lookup": "self key tp_size",
    "Lookup.wait_prefetch_status": "self request_id timeout",
    "Lookup.free_lookup_locks": "self key tp_size",
    "Lookup.end_session": "self request_id",
    "StorageManager.delete_l1_keys": "self keys force",
    "get_layout_desc": "cache_context num_tokens object_group_id",
    "downsample_and_stage_block_ids": "cache_context block_ids",
    "fold": "found num_chunks num_ranks group_windows",
    "unfold": "hit_length num_chunks num_ranks group_windows",
}
"""Callable -> its expected parameters."""

_ACCEPTED = {
    "Context": "storage_manager_config chunk_size separate_object_groups",
    "Group": "engine_group_id layer_indices tokens_per_block sw_size_tokens",
    "Key.from_token_ids": (
        "model_name world_size worker_id token_ids start end request_id cache_salt"
    ),
    "create_cache_context": ("layout_hints engine_group_infos engine_type separate_object_groups"),
    "transfer_kv_per_object_group": (
        "cache_context memory_objs object_group_id batch_size skip_first_n_tokens direction "
        "transfer_key"
    ),
    "L1MemoryManagerConfig": "size_in_bytes use_lazy shm_name",
    "EvictionConfig": "eviction_policy eviction_ratio",
}
"""Parameters of long signatures that the adapter passes."""


@cache
def engine() -> Any:
    """Everything used of LMCache, and torch."""
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")
    import lmcache.lmcache_native as native
    import torch
    from lmcache.utils import EngineType
    from lmcache.v1.distributed import config
    from lmcache.v1.distributed.bitmap_ops.fold import fold, unfold
    from lmcache.v1.distributed.storage_manager import StorageManager
    from lmcache.v1.memory_allocators.host_memory_allocator import HostMemoryAllocator
    from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey
    from lmcache.v1.multiprocess.engine_context import MPCacheServerContext
    from lmcache.v1.multiprocess.group_view import EngineGroupInfo
    from lmcache.v1.multiprocess.modules import lmcache_driven_transfer as driven
    from lmcache.v1.multiprocess.modules.lookup import LookupModule
    from lmcache.v1.multiprocess.modules.management import ManagementModule
    from lmcache.v1.multiprocess.posix_shm import shm_unlink
    from lmcache.v1.platform.base.event_ipc import get_event_ipc_backend
    from lmcache.v1.platform.cache_context import create_cache_context

    moves = _first(
        "lmcache.v1.multiprocess.object_group_transfer",
        "lmcache.v1.multiprocess.modules.lmcache_driven_transfer",
    )
    memory = _first("lmcache.v1.platform.devices.cpu.shm", "lmcache.v1.platform.cpu.shm")
    return SimpleNamespace(
        torch=torch,
        Bitmap=native.Bitmap,
        Context=MPCacheServerContext,
        Direction=native.TransferDirection,
        EngineType=EngineType,
        EvictionConfig=config.EvictionConfig,
        Group=EngineGroupInfo,
        HostMemoryAllocator=HostMemoryAllocator,
        Key=IPCCacheServerKey,
        L1ManagerConfig=config.L1ManagerConfig,
        L1MemoryManagerConfig=config.L1MemoryManagerConfig,
        Lookup=LookupModule,
        Management=ManagementModule,
        StorageManager=StorageManager,
        StorageManagerConfig=config.StorageManagerConfig,
        Transfer=driven.LMCacheDrivenTransferModule,
        create_cache_context=create_cache_context,
        downsample_and_stage_block_ids=moves.downsample_and_stage_block_ids,
        fold=fold,
        get_event_ipc_backend=get_event_ipc_backend,
        get_layout_desc=driven.get_layout_desc,
        kept_pages=memory._CPU_SHM_KEEP_ALIVE,
        shm_unlink=shm_unlink,
        share=memory.migrate_to_shm_and_wrap,
        transfer_kv_per_object_group=moves.transfer_kv_per_object_group,
        unfold=unfold,
    )


def _first(*names: str) -> Any:
    """Import the first module that is there: releases keep the same functions in other places."""
    for name in names[:-1]:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    return importlib.import_module(names[-1])


def version() -> str:
    """The release that is installed."""
    return importlib.metadata.version("lmcache").partition("+")[0]


@cache
def differences() -> tuple[Difference, ...]:
    """Differences between the installed LMCache and the expected interface."""
    return found_drift(version(), VERSIONS, engine, _compared)


def _compared(found: Any) -> tuple[Difference, ...]:
    known = version() in VERSIONS
    return drift_of_calls(found, known=known, signatures=_SIGNATURES, accepted=_ACCEPTED)


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    refuse("LMCache", differences())
