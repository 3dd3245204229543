"""The part of SGLang 0.5.23 that the adapter uses, and how it differs from what was expected.

Imported in the engine's environment only; the engine itself is imported by `engine()`.
"""

from __future__ import annotations

import importlib.metadata
import logging
from array import array
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters import sglang_stubs
from kvproof.harness.adapters.drift import attribute_drift, signature_drift
from kvproof.harness.target import TargetConfig

VERSION = "0.5.23"
"""The release that this adapter was written for."""

MOST_REQUESTS = 64
"""Rows of the table from requests to slots: more than any test case has at once."""

_SIGNATURES = {
    "Req.init_next_round_input": "self tree_cache cow_mamba",
    "Req.refresh_fill_ids": "self",
    "Req.reset_for_retract": "self",
    "Req.finished": "self",
    "alloc_for_extend": "batch",
    "alloc_for_decode": "batch token_per_req",
    "checkpoint_kv_cache": "req tree_cache",
    "release_kv_cache": "req tree_cache checkpoint",
    "evict_from_tree_cache": "tree_cache num_tokens",
    "pad_mm_tokens": "input_ids mm_inputs",
    "ReqToTokenPool.__init__": "self size max_context_len device enable_memory_saver",
    "ReqToTokenPool.clear": "self",
    "TokenToKVPoolAllocator.__init__": "self size dtype device kvcache need_sort",
    "PagedTokenToKVPoolAllocator.__init__": "self size page_size dtype device kvcache need_sort",
    "UnifiedRadixCache.__init__": "self params",
    "UnifiedRadixCache.reset": "self",
    "UnifiedRadixCache.lock": "self node_id skip_lock_components",
    "UnifiedRadixCache.unlock": "self lock",
    "UnifiedRadixCache.full_evictable_size": "self",
    "UnifiedRadixCache.full_protected_size": "self",
    "UnifiedRadixCache.all_values_flatten": "self",
}
"""What the adapter calls -> its parameters in VERSION."""

_ACCEPTED = {
    "Req.__init__": (
        "rid origin_input_text origin_input_ids sampling_params return_logprob lora_id cache_salt"
    ),
    "CacheInitParams": (
        "disable req_to_token_pool token_to_kv_pool_allocator page_size tree_components"
    ),
    "ServerArgs": "model_path page_size attention_backend",
    "SamplingParams": "max_new_tokens",
    "MultimodalDataItem": "modality offsets",
    "MultimodalInputs": "mm_items im_token_id video_token_id audio_token_id",
}
"""Of long signatures, the parameters that the adapter passes."""

_ATTRIBUTES = {
    "request": (
        "rid origin_input_ids output_ids full_untruncated_fill_ids extend_end prefix_len "
        "last_node lock finished_reason skip_radix_cache_insert logprob_start_len kv.holds_kv "
        "kv.req_pool_idx kv.cache_protected_len kv.kv_allocated_len kv.kv_committed_len"
    ),
    "cache": "tree_core.walk_for_kv_canary req_to_token_pool token_to_kv_pool_allocator",
    "cache.token_to_kv_pool_allocator": "size page_size free_pages available_size clear",
    "cache.req_to_token_pool": "req_to_token free_slots",
}
"""What the adapter reads or sets on the engine's objects."""


@cache
def engine() -> Any:
    """Everything used of SGLang and torch; takes seconds the first time."""
    sglang_stubs.install()
    logging.getLogger("sglang").setLevel(logging.CRITICAL)
    import torch
    from sglang.srt.managers.mm_utils import pad_mm_tokens
    from sglang.srt.managers.schedule_batch import (
        FINISH_ABORT,
        FINISH_LENGTH,
        Modality,
        MultimodalDataItem,
        MultimodalInputs,
        Req,
    )
    from sglang.srt.mem_cache import allocation, common
    from sglang.srt.mem_cache.allocator import (
        PagedTokenToKVPoolAllocator,
        TokenToKVPoolAllocator,
    )
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.components import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    return SimpleNamespace(
        torch=torch,
        CacheInitParams=CacheInitParams,
        ComponentType=ComponentType,
        FINISH_ABORT=FINISH_ABORT,
        FINISH_LENGTH=FINISH_LENGTH,
        Modality=Modality,
        MultimodalDataItem=MultimodalDataItem,
        MultimodalInputs=MultimodalInputs,
        PagedTokenToKVPoolAllocator=PagedTokenToKVPoolAllocator,
        Req=Req,
        ReqToTokenPool=ReqToTokenPool,
        SamplingParams=SamplingParams,
        ServerArgs=ServerArgs,
        TokenToKVPoolAllocator=TokenToKVPoolAllocator,
        UnifiedRadixCache=UnifiedRadixCache,
        alloc_for_decode=allocation.alloc_for_decode,
        alloc_for_extend=allocation.alloc_for_extend,
        checkpoint_kv_cache=common.checkpoint_kv_cache,
        evict_from_tree_cache=common.evict_from_tree_cache,
        pad_mm_tokens=pad_mm_tokens,
        release_kv_cache=common.release_kv_cache,
        set_global_server_args_for_scheduler=set_global_server_args_for_scheduler,
    )


@cache
def drift() -> tuple[str, ...]:
    """Differences between the installed SGLang and what this adapter was written for."""
    version = importlib.metadata.version("sglang")
    if version != VERSION:
        return (f"version {version} is installed, the adapter was written for {VERSION}",)
    try:
        found = engine()
    except ImportError as error:
        return (str(error),)
    return (
        *signature_drift(found, _SIGNATURES, _ACCEPTED),
        *attribute_drift(_objects(), _ATTRIBUTES),
    )


def _objects() -> SimpleNamespace:
    """A cache and a request, to be looked at."""
    return SimpleNamespace(
        cache=new_cache(TargetConfig(num_blocks=3, block_size=2)),
        request=engine().Req("", "", array("q", [0]), engine().SamplingParams()),
    )


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    if differences := drift():
        raise RuntimeError(f"SGLang is not what the adapter expects: {'; '.join(differences)}")


def new_cache(config: TargetConfig) -> Any:
    """The unified radix cache as the stock factory builds it, with pools on the CPU.

    Page 0 is SGLang's own sink for padding: it is the null block.
    """
    names, page = engine(), config.block_size
    _publish(page)
    slots = (config.num_blocks - 1) * page
    rows = names.ReqToTokenPool(MOST_REQUESTS, slots + page, "cpu", enable_memory_saver=False)
    rest = (names.torch.bfloat16, "cpu", None, False)
    allocator = (
        names.TokenToKVPoolAllocator(slots, *rest)
        if page == 1
        else names.PagedTokenToKVPoolAllocator(slots, page, *rest)
    )
    return names.UnifiedRadixCache(
        names.CacheInitParams(
            disable=not config.prefix_caching,
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=allocator,
            page_size=page,
            tree_components=(names.ComponentType.FULL,),
        )
    )


@cache
def _publish(page: int) -> None:
    """The settings that SGLang keeps for the whole process; only these are read."""
    arguments = engine().ServerArgs(
        model_path="none", page_size=page, attention_backend="torch_native"
    )
    engine().set_global_server_args_for_scheduler(arguments)
