"""The interface of SGLang that the adapter uses, per release, and its drift.

0.5.15 has one tree class for each kind of model, 0.5.23 the unified tree for all. Engine
environment only; `engine()` imports the engine.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import os
from array import array
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import attribute_drift, drift_of_calls, found_drift, refuse
from kvproof.harness.adapters.sglang import stubs as sglang_stubs
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.target import Group, TargetConfig

VERSIONS = ("0.5.15", "0.5.23")


@cache
def version() -> str:
    """The installed release, without the name of its build; empty where there is none."""
    try:
        return importlib.metadata.version("sglang").partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def like() -> str:
    """The known release that the installed one is driven like: by its kind of trees."""
    if version() in VERSIONS:
        return version()
    found = importlib.util.find_spec("sglang")
    folders = (found.submodule_search_locations or ()) if found else ()
    old = any((Path(each) / _OLD_TREE).exists() for each in folders)
    return VERSIONS[0] if old else VERSIONS[-1]


_OLD_TREE = "srt/mem_cache/mamba_radix_cache.py"
"""A module of releases with one tree class for each kind of model: those up to 0.5.20."""

_SRT = "sglang.srt."

_EVERYWHERE = {
    "configs.mamba_utils": "Mamba2CacheParams Mamba2StateShape",
    "managers.schedule_batch": (
        "FINISH_ABORT FINISH_LENGTH Modality MultimodalDataItem MultimodalInputs Req ScheduleBatch"
    ),
    "mem_cache.allocator": "PagedTokenToKVPoolAllocator TokenToKVPoolAllocator",
    "mem_cache.allocator.swa": "SWATokenToKVPoolAllocator",
    "mem_cache.cache_init_params": "CacheInitParams",
    "mem_cache.common": "release_kv_cache",
    "mem_cache.memory_pool": "HybridLinearKVPool HybridReqToTokenPool ReqToTokenPool",
    "mem_cache.swa_memory_pool": "SWAKVPool",
    "model_executor.forward_batch_info": "ForwardMode",
    "sampling.sampling_params": "SamplingParams",
    "managers.scheduler_components.batch_result_processor": "SchedulerBatchResultProcessor",
    "server_args": "ServerArgs set_global_server_args_for_scheduler",
}
"""Module -> the names that the adapter uses."""

_IMPORTS = {
    "0.5.15": {
        "managers.mm_utils": "MultiModalityDataPaddingPatternMultimodalTokens",
        "mem_cache.base_prefix_cache": "DecLockRefParams",
        "mem_cache.chunk_cache": "ChunkCache SWAChunkCache",
        "mem_cache.common": "alloc_for_decode alloc_for_extend maybe_cache_unfinished_req",
        "mem_cache.mamba_radix_cache": "MambaRadixCache",
        "mem_cache.radix_cache": "RadixCache",
        "server_args": "get_global_server_args",
        "mem_cache.swa_radix_cache": "SWARadixCache",
    },
    "0.5.23": {
        "managers.mm_utils": "pad_mm_tokens",
        "mem_cache.base_prefix_cache": (
            "EvictParams InitLoadBackParams InsertParams MatchPrefixParams"
        ),
        "mem_cache.l2_transfer": "L2TransferEngine",
        "mem_cache.memory_pool": "MHATokenToKVPool",
        "mem_cache.pool_host.base": "host_memory_budget_scope",
        "mem_cache.pool_host.common": "ALLOC_MEMORY_FUNCS alloc_with_host_register",
        "mem_cache.pool_host.mha": "MHATokenToKVPoolHost",
        "managers.cache_controller": "LayerDoneCounter",
        "mem_cache.allocation": "alloc_for_decode alloc_for_extend",
        "mem_cache.common": "checkpoint_kv_cache",
        "mem_cache.radix_cache": "RadixCache RadixKey",
        "mem_cache.unified_cache.components": "ComponentType",
        "mem_cache.unified_radix_cache": "UnifiedRadixCache",
        "runtime_context": "get_memory get_server_args",
    },
}

_OF_RELEASE: Mapping[str, Mapping[str, str]] = {
    "0.5.15": {
        "Req._refresh_fill_ids": "self",
        "Req.set_extend_range": "self start end",
        "alloc_for_extend": "batch",
        "maybe_cache_unfinished_req": "req tree_cache kwargs",
        "release_kv_cache": "req tree_cache is_insert",
        "RadixCache.__init__": "self params",
        "SWARadixCache.__init__": "self params",
        "SWARadixCache.inc_lock_ref": "self node",
        "SWARadixCache.dec_lock_ref": "self node params skip_swa",
        "MambaRadixCache.__init__": "self params",
        "SchedulerBatchResultProcessor._mamba_prefix_cache_update": "self req batch result i",
    },
    "0.5.23": {
        "Req.refresh_fill_ids": "self",
        "alloc_for_extend": "batch",
        "pad_mm_tokens": "input_ids mm_inputs",
        "checkpoint_kv_cache": "req tree_cache",
        "release_kv_cache": "req tree_cache checkpoint",
        "UnifiedRadixCache.__init__": "self params",
        "UnifiedRadixCache.lock": "self node_id skip_lock_components",
        "UnifiedRadixCache.unlock": "self lock",
        "UnifiedRadixCache.full_evictable_size": "self",
        "UnifiedRadixCache.swa_protected_size": "self",
        "UnifiedRadixCache.init_hicache": "self server_args params",
        "UnifiedRadixCache.init_load_back": "self params",
        "UnifiedRadixCache.check_hicache_events": "self",
        "UnifiedRadixCache.flush_pending_backups": "self",
        "UnifiedRadixCache.ready_to_load_host_cache": "self",
        "UnifiedRadixCache.inc_host_lock_ref": "self node_id",
        "UnifiedRadixCache.dec_host_lock_ref": "self node_id params",
        "UnifiedRadixCache.path_device_indices": "self node",
        "L2TransferEngine.__init__": "self io_backend",
        "L2TransferEngine.submit_device_to_host": "self transfers",
        "MHATokenToKVPoolHost.backup_from_device_all_layer": (
            "self device_pool host_indices device_indices io_backend"
        ),
        "MHATokenToKVPoolHost.load_to_device_per_layer": (
            "self device_pool host_indices device_indices layer_id io_backend is_draft"
        ),
        "alloc_with_host_register": (
            "dims dtype device pin_memory allocator registration_granularity_bytes"
        ),
        "LayerDoneCounter.wait_until": "self threshold",
        "SchedulerBatchResultProcessor._mamba_prefix_cache_update": (
            "self req batch result i known_boundary"
        ),
    },
}
"""Release -> a function that the adapter calls in it -> its parameters."""

_SIGNATURES = {
    "Req.init_next_round_input": "self tree_cache cow_mamba",
    "Req.reset_for_retract": "self",
    "Req.finished": "self",
    "ScheduleBatch.maybe_evict_swa": "self",
    "ScheduleBatch._collect_deferred_mamba_cow_and_clear": "self reqs",
    "ScheduleBatch._mamba_radix_cache_v2_req_prepare_for_extend": "self req",
    "SchedulerBatchResultProcessor._mamba_check_track_boundary": "self req batch result i",
    "alloc_for_decode": "batch token_per_req",
    "ReqToTokenPool.__init__": "self size max_context_len device enable_memory_saver",
    "ReqToTokenPool.clear": "self",
    "TokenToKVPoolAllocator.__init__": "self size dtype device kvcache need_sort",
    "PagedTokenToKVPoolAllocator.__init__": "self size page_size dtype device kvcache need_sort",
    **(_OF_RELEASE[like()] if version() else {}),
}
"""The same in every release, and those of the installed one."""

_ACCEPTED = {
    "Req.__init__": "rid origin_input_text origin_input_ids sampling_params return_logprob lora_id",
    "CacheInitParams": (
        "disable req_to_token_pool token_to_kv_pool_allocator page_size sliding_window_size "
        "enable_mamba_extra_buffer"
    ),
    "HybridLinearKVPool": (
        "size dtype page_size head_num head_dim full_attention_layer_ids device mamba_pool"
    ),
    "HybridReqToTokenPool": (
        "size mamba_size mamba_spec_state_size max_context_len device enable_memory_saver "
        "cache_params mamba_layer_ids enable_mamba_extra_buffer"
    ),
    "ServerArgs": (
        "model_path page_size attention_backend mamba_radix_cache_strategy mamba_track_interval"
    ),
    "SamplingParams": "max_new_tokens",
    "MultimodalDataItem": "modality offsets",
    "MultimodalInputs": "mm_items im_token_id video_token_id audio_token_id",
    "SWATokenToKVPoolAllocator": "size size_swa page_size dtype device kvcache need_sort",
    "SWAKVPool": (
        "size size_swa page_size dtype head_num head_dim swa_attention_layer_ids "
        "full_attention_layer_ids device"
    ),
}
"""Parameters of long signatures that the adapter passes."""

_MAMBA = (
    "mamba_pool_idx mamba_ping_pong_track_buffer mamba_next_track_idx mamba_last_track_seqlen "
    "mamba_cow_src_index mamba_needs_clear"
)
_OLD_KV = "req_pool_idx cache_protected_len kv_allocated_len kv_committed_len swa_evicted_seqlen"
_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "0.5.15": {
        "request": (
            f"rid origin_input_ids output_ids full_untruncated_fill_ids prefix_indices last_node "
            f"finished_reason skip_radix_cache_insert logprob_start_len decode_batch_idx "
            f"swa_uuid_for_lock swa_prefix_lock_released {_OLD_KV} {_MAMBA}"
        ),
        "cache": (
            "root_node.children root_node.swa_tombstone root_node.swa_uuid "
            "req_to_token_pool token_to_kv_pool_allocator"
        ),
    },
    "0.5.23": {
        "request": (
            "rid origin_input_ids output_ids full_untruncated_fill_ids extend_end prefix_len "
            "last_node lock finished_reason skip_radix_cache_insert logprob_start_len "
            "decode_batch_idx swa_branching_seqlen kv.holds_kv kv.req_pool_idx "
            "kv.cache_protected_len kv.kv_allocated_len kv.kv_committed_len kv.swa_dead_lo "
            "kv.get_evicted_seqlen " + " ".join(f"kv.{name}" for name in _MAMBA.split())
        ),
        "cache": (
            "tree_core.walk_for_kv_canary tree_core.collect_path_info req_to_token_pool "
            "token_to_kv_pool_allocator"
        ),
    },
}
"""Attributes of engine objects that the adapter reads or sets."""

_HOST = {
    "hosted": (
        "tree_core ongoing_write_through ongoing_load_back load_back_threshold shutdown "
        "cache_controller.write_queue cache_controller.layer_done_counter.set_consumer "
        "cache_controller.l2_transfer_engine.device_to_host_stream "
        "cache_controller.l2_transfer_engine.host_to_device_stream "
        "cache_controller.mem_pool_host.entries "
        "cache_controller.mem_pool_host.anchor_entry.host_pool.free_slots "
        "cache_controller.mem_pool_host.anchor_entry.host_pool.release_slots "
        "cache_controller.mem_pool_host.anchor_entry.host_pool.kv_buffer"
    ),
    "hosted_states": (
        "mamba_evictable_size req_to_token_pool.mamba_pool.host_capacity_tokens "
        "req_to_token_pool.mamba_allocator.available_size"
    ),
    "request": "best_match_node host_hit_length host_loaded_length needs_host_load_back",
}
"""The same of a cache with a host tier."""

_POOLS = {
    "cache.token_to_kv_pool_allocator": (
        "full_attn_allocator.free_pages swa_attn_allocator.free_pages full_to_swa_index_mapping "
        "full_available_size swa_available_size clear"
    ),
    "cache.req_to_token_pool": "req_to_token free_slots",
    "states.req_to_token_pool": "mamba_pool mamba_allocator.free_slots mamba_allocator.free",
    "states": "supports_mamba",
}


def unified() -> bool:
    """Whether one tree serves all kinds of models."""
    return like() != "0.5.15"


@cache
def engine() -> Any:
    """The imported names of SGLang and torch; takes seconds the first time.

    Windows move with every decoded token, by SGLang's own setting, not every 128 tokens.
    """
    os.environ.setdefault("SGLANG_SWA_EVICTION_INTERVAL", "1")
    sglang_stubs.install()
    if not unified():
        sglang_stubs.without_image_processors()
    logging.getLogger("sglang").setLevel(logging.CRITICAL)
    names = SimpleNamespace(torch=importlib.import_module("torch"))
    for modules in (_EVERYWHERE, _IMPORTS[like()]):
        for module, wanted in modules.items():
            for name in wanted.split():
                setattr(names, name, _found(module, name))
    if not unified():
        sglang_stubs.allocate_on_cpu()
    return names


def _found(module: str, name: str) -> Any:
    """Return a name of a module, or of the one that it moved to."""
    loaded = importlib.import_module(_SRT + module)
    if module in _MOVED and not hasattr(loaded, name):
        loaded = importlib.import_module(_SRT + _MOVED[module])
    return getattr(loaded, name)


_MOVED = {"mem_cache.common": "mem_cache.allocation"}
"""Module -> where its allocations are since 0.5.16."""


@cache
def publish(page: int) -> None:
    """The settings that SGLang keeps for the whole process; only these are read."""
    arguments = engine().ServerArgs(
        model_path="none",
        page_size=page,
        attention_backend="torch_native",
        mamba_radix_cache_strategy="extra_buffer",
        mamba_track_interval=1,
    )
    engine().set_global_server_args_for_scheduler(arguments)


def grid(page: int) -> None:
    """Put checkpoints of states at every page: the engine has 64 tokens, or the model's number."""
    names = engine()
    if unified():
        names.get_server_args()._mamba_cache_chunk_size = page
        return
    arguments = names.get_global_server_args()
    arguments._mamba_cache_chunk_size = arguments.mamba_track_interval = page


@cache
def differences() -> tuple[Difference, ...]:
    """Differences between the installed SGLang and the expected interface."""
    return found_drift(version(), VERSIONS, engine, _compared)


def _compared(found: Any) -> tuple[Difference, ...]:
    known = version() in VERSIONS
    calls = drift_of_calls(found, known=known, signatures=_SIGNATURES, accepted=_ACCEPTED)
    if any(each.blocks for each in calls):
        return calls
    return (
        *calls,
        *attribute_drift(_objects(), {**_ATTRIBUTES[like()], **_POOLS}),
        *attribute_drift(_objects(), _HOST if unified() else {}),
    )


def _objects() -> SimpleNamespace:
    groups = (Group("full", 2), Group("window", 2, 4))
    hybrid = (Group("full", 1), Group("state", 1))
    new = _pools().new_cache
    return SimpleNamespace(
        cache=new(TargetConfig(num_blocks=7, block_size=2, groups=groups)),
        states=new(TargetConfig(num_blocks=7, block_size=1, groups=hybrid, state_rows=9)),
        request=engine().Req("", "", array("q", [0]), engine().SamplingParams()),
        **(_hosted(new, hybrid) if unified() else {}),
    )


def _hosted(new: Callable[[TargetConfig], Any], hybrid: tuple[Group, ...]) -> dict[str, Any]:
    plain = TargetConfig(num_blocks=7, block_size=1, host_blocks=3, host_policy="write_through")
    states = replace(plain, groups=hybrid, state_rows=9, host_rows=3)
    return {"hosted": new(plain), "hosted_states": new(states)}


def _pools() -> Any:
    """`pools`, imported late: it needs this module."""
    return importlib.import_module("kvproof.harness.adapters.sglang.pools")


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    refuse("SGLang", differences())
