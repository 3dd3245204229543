"""The part of vLLM 0.33.0 that the adapter uses, and how it differs from what was expected.

Imported in the engine's environment only; the engine itself is imported by `engine()`.
"""

from __future__ import annotations

import importlib.metadata
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import attribute_drift, signature_drift
from kvproof.harness.target import Group, TargetConfig

VERSION = "0.33.0"
"""The release that this adapter was written for."""

_MAX_MODEL_LEN = 1 << 30
"""Far above any request, so that the pool is the only limit."""

_SIGNATURES = {
    "KVCacheManager.__init__": (
        "self kv_cache_config max_model_len scheduler_block_size hash_block_size "
        "max_in_flight_tokens enable_caching use_eagle num_hash_lookahead_tokens "
        "num_prefill_lookahead log_stats enable_kv_cache_events dcp_world_size pcp_world_size "
        "metrics_collector watermark enable_mamba_shared_prefix_checkpoint"
    ),
    "KVCacheManager.new_step_starts": "self",
    "KVCacheManager.get_computed_blocks": "self request max_cache_hit_length",
    "KVCacheManager.allocate_slots": (
        "self request num_new_tokens num_new_computed_tokens new_computed_blocks "
        "num_lookahead_tokens num_external_computed_tokens delay_cache_blocks num_encoder_tokens "
        "full_sequence_must_fit reserved_blocks has_scheduled_reqs skip_zeroing_group_ids"
    ),
    "KVCacheManager.free": "self request",
    "KVCacheManager.get_block_ids": "self request_id",
    "KVCacheManager.evict_blocks": "self block_ids",
    "KVCacheManager.reset_prefix_cache": "self",
    "KVCacheManager.record_prefix_cache_stats": "self request num_hits",
    "KVCacheManager.make_prefix_cache_stats": "self",
    "KVCacheManager.take_kv_cache_block_copies": "self",
    "BlockPool.free_blocks": "self ordered_blocks",
    "BlockPool.get_num_free_blocks": "self",
    "FreeKVCacheBlockQueue.get_all_free_blocks": "self",
    "Request.__init__": (
        "self request_id prompt_token_ids sampling_params pooling_params client_index "
        "arrival_time prompt_embeds prompt_is_token_ids mm_features lora_request cache_salt "
        "priority trace_headers block_hasher resumable session_id reasoning_ended "
        "reasoning_parser_kwargs abort_immediately kv_hints"
    ),
    "Request.append_output_token_ids": "self token_ids",
    "get_request_block_hasher": "hash_block_size caching_hash_fn num_hash_lookahead_tokens",
    "init_none_hash": "hash_fn",
    "get_hash_fn_by_name": "hash_fn_name",
    "KVCacheConfig": (
        "num_blocks kv_cache_tensors kv_cache_groups prefix_cache_retention_interval "
        "kv_cache_layout hash_block_size cache_hit_alignment_tokens hisparse_host_num_blocks "
        "hisparse_host_block_stride hisparse_shared_host_pool kv_tp_replicas"
    ),
    "KVCacheGroupSpec": (
        "layer_names kv_cache_spec is_eagle_group host_resident enable_kv_transfer role"
    ),
    "LoRARequest": (
        "lora_name lora_int_id lora_path base_model_name load_inplace is_3d_lora_weight"
    ),
    "MultiModalFeatureSpec": "data modality identifier mm_position mm_hash",
    "PlaceholderRange": "offset length is_embed",
}
"""What the adapter calls -> its parameters in VERSION."""

_ACCEPTED = {
    "FullAttentionSpec": "block_size num_kv_heads head_size dtype",
    "SlidingWindowSpec": "block_size num_kv_heads head_size dtype sliding_window",
    "ChunkedLocalAttentionSpec": "block_size num_kv_heads head_size dtype attention_chunk_size",
    "MambaSpec": "block_size shapes dtypes mamba_cache_mode",
    "SamplingParams": "max_tokens skip_reading_prefix_cache",
}
"""Of long signatures, the parameters that the adapter passes."""

_ATTRIBUTES = {
    "request": (
        "num_tokens num_computed_tokens num_in_flight_tokens num_preemptions status block_hashes "
        "_all_token_ids _output_token_ids shared_prefix_boundary"
    ),
    "manager": "block_pool empty_kv_cache_blocks",
    "manager.block_pool": "blocks free_block_queue cached_block_hash_to_block._cache",
    "manager.block_pool.null_block": "block_id ref_cnt block_hash is_null",
    "manager.prefix_cache_stats": "queries hits preempted_queries preempted_hits",
}
"""What the adapter reads or sets on the engine's objects."""


@cache
def engine() -> Any:
    """Everything used of vLLM and torch; takes seconds the first time."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import torch
    from vllm.lora.request import LoRARequest
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import block_pool, kv_cache_manager, kv_cache_utils
    from vllm.v1.kv_cache_interface import (
        ChunkedLocalAttentionSpec,
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MambaSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.request import Request, RequestStatus

    return SimpleNamespace(
        float32=torch.float32,
        BlockPool=block_pool.BlockPool,
        ChunkedLocalAttentionSpec=ChunkedLocalAttentionSpec,
        FreeKVCacheBlockQueue=kv_cache_utils.FreeKVCacheBlockQueue,
        FullAttentionSpec=FullAttentionSpec,
        KVCacheConfig=KVCacheConfig,
        KVCacheGroupSpec=KVCacheGroupSpec,
        KVCacheManager=kv_cache_manager.KVCacheManager,
        LoRARequest=LoRARequest,
        MambaSpec=MambaSpec,
        MultiModalFeatureSpec=MultiModalFeatureSpec,
        PlaceholderRange=PlaceholderRange,
        Request=Request,
        RequestStatus=RequestStatus,
        SamplingParams=SamplingParams,
        SlidingWindowSpec=SlidingWindowSpec,
        get_hash_fn_by_name=get_hash_fn_by_name,
        get_request_block_hasher=kv_cache_utils.get_request_block_hasher,
        init_none_hash=kv_cache_utils.init_none_hash,
    )


@cache
def drift() -> tuple[str, ...]:
    """Differences between the installed vLLM and what this adapter was written for."""
    version = importlib.metadata.version("vllm")
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
    """A manager and a request, to be looked at."""
    config = TargetConfig(num_blocks=2, block_size=1)
    request = engine().Request("", [0], engine().SamplingParams(), None)
    return SimpleNamespace(manager=new_manager(config), request=request)


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    if differences := drift():
        raise RuntimeError(f"vLLM is not what the adapter expects: {'; '.join(differences)}")


def new_manager(config: TargetConfig) -> Any:
    """A `KVCacheManager` with dense retention. Groups have one block size."""
    names = engine()
    groups = [
        names.KVCacheGroupSpec([f"layer {index}"], _spec(group))
        for index, group in enumerate(config.layout)
    ]
    return names.KVCacheManager(
        names.KVCacheConfig(
            num_blocks=config.num_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=groups,
            prefix_cache_retention_interval=None,
        ),
        max_model_len=_MAX_MODEL_LEN,
        scheduler_block_size=config.block_size,
        hash_block_size=config.block_size,
        enable_caching=config.prefix_caching,
        log_stats=True,
    )


def _spec(group: Group) -> Any:
    """One layer of one head; states in the mode that caches them at block borders."""
    names = engine()
    if group.kind == "state":
        return names.MambaSpec(
            block_size=group.block_size,
            shapes=((1, 1),),
            dtypes=(names.float32,),
            mamba_cache_mode="align",
        )
    layer = {
        "block_size": group.block_size,
        "num_kv_heads": 1,
        "head_size": 1,
        "dtype": names.float32,
    }
    if group.kind == "window":
        return names.SlidingWindowSpec(**layer, sliding_window=group.size)
    if group.kind == "chunk":
        return names.ChunkedLocalAttentionSpec(**layer, attention_chunk_size=group.size)
    return names.FullAttentionSpec(**layer)


def hasher(block_size: int, algorithm: str) -> Any:
    """What gives a request its block hashes; the root hash is global to the process."""
    function = engine().get_hash_fn_by_name(algorithm)
    engine().init_none_hash(function)
    return engine().get_request_block_hasher(block_size, function)
