"""The calls of vLLM that the adapter makes, by release."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import NamedTuple

from kvproof.harness.contract.profile import Kind

SIGNATURES = {
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
    "KVCacheManager.remove_skipped_blocks": (
        "self request_id processed_computed_tokens num_prompt_tokens"
    ),
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
    "get_group_id": "key",
}
"""Callable -> its parameters, in the newest release."""

CALLS = {
    "KVCacheManager.__init__": (
        "self kv_cache_config max_model_len= enable_caching= use_eagle= log_stats= "
        "scheduler_block_size? hash_block_size? max_num_batched_tokens?"
    ),
    "KVCacheManager.get_computed_blocks": "self request",
    "KVCacheManager.allocate_slots": (
        "self request num_new_tokens num_new_computed_tokens new_computed_blocks"
    ),
    "BlockPool.free_blocks": "self ordered_blocks",
    "Request.__init__": (
        "self request_id prompt_token_ids sampling_params pooling_params mm_features= "
        "lora_request= cache_salt= block_hasher= eos_token_id?"
    ),
    "get_request_block_hasher": "hash_block_size caching_hash_fn",
    "KVCacheConfig": (
        "num_blocks= kv_cache_tensors= kv_cache_groups= prefix_cache_retention_interval?"
    ),
    "KVCacheGroupSpec": "layer_names kv_cache_spec is_eagle_group?",
    "LoRARequest": "lora_name lora_int_id lora_path",
    "MultiModalFeatureSpec": "data= modality= identifier= mm_position=",
    "PlaceholderRange": "offset length",
}
"""The adapter's calls: by position, `by keyword=`, `by keyword where accepted?`. A release that is
not in `RELEASES` is judged by whether they are valid there."""

ACCEPTED = {
    "FullAttentionSpec": "block_size num_kv_heads head_size dtype",
    "SlidingWindowSpec": "block_size num_kv_heads head_size dtype sliding_window",
    "ChunkedLocalAttentionSpec": "block_size num_kv_heads head_size dtype attention_chunk_size",
    "MambaSpec": "block_size shapes dtypes mamba_cache_mode",
    "SamplingParams": "max_tokens skip_reading_prefix_cache",
}
"""Parameters of long signatures that the adapter passes."""

ATTRIBUTES = {
    "request": (
        "num_tokens num_computed_tokens num_in_flight_tokens num_preemptions status block_hashes "
        "_all_token_ids _output_token_ids shared_prefix_boundary"
    ),
    "manager": "block_pool empty_kv_cache_blocks",
    "manager.block_pool": "blocks free_block_queue cached_block_hash_to_block._cache",
    "manager.block_pool.null_block": "block_id ref_cnt block_hash is_null",
    "manager.prefix_cache_stats": "queries hits preempted_queries preempted_hits",
}
"""Attributes of engine objects that the adapter reads or sets."""


_KINDS: tuple[Kind, ...] = ("full", "window", "chunk", "state")


def _layouts(most: int) -> tuple[tuple[Kind, ...], ...]:
    """Return one to `most` groups of any kinds, but not chunked local attention alone.

    No such model exists; its requests would hold nothing at the end of a chunk.
    """
    mixes = (mix for count in range(1, most + 1) for mix in product(_KINDS, repeat=count))
    return tuple(mix for mix in mixes if set(mix) != {"chunk"})


class Release(NamedTuple):
    """How one release differs from the newest. A signature of None: it is not there."""

    signatures: Mapping[str, str | None] = {}
    accepted: Mapping[str, str] = {}
    attributes: Mapping[str, str] = {}
    kinds: tuple[Kind, ...] = _KINDS
    """Kinds of groups whose prefix it caches."""
    layouts: tuple[tuple[Kind, ...], ...] = _layouts(4)
    """Groups that it serves together."""
    whole_request: bool = True
    """Admission needs room for the whole request, also if only a chunk is computed."""
    draft_groups: bool = True
    """Draft models are claimed. Until 0.20 no group is marked: all of attention give up a block."""
    no_read: bool = True
    """Requests can skip reading."""


_ABSENT = {
    "KVCacheManager.record_prefix_cache_stats": None,
    "KVCacheManager.take_kv_cache_block_copies": None,
    "KVCacheManager.get_computed_blocks": "self request",
    "get_request_block_hasher": "block_size caching_hash_fn",
}
"""Until 0.23 in common: matching counts, and no block is ever copied."""

_0_23 = Release(
    signatures={
        **_ABSENT,
        "KVCacheManager.__init__": (
            "self kv_cache_config max_model_len scheduler_block_size hash_block_size "
            "max_num_batched_tokens enable_caching use_eagle log_stats enable_kv_cache_events "
            "dcp_world_size pcp_world_size metrics_collector"
        ),
        "KVCacheManager.allocate_slots": (
            "self request num_new_tokens num_new_computed_tokens new_computed_blocks "
            "num_lookahead_tokens num_external_computed_tokens delay_cache_blocks "
            "num_encoder_tokens full_sequence_must_fit reserved_blocks"
        ),
        "KVCacheManager.remove_skipped_blocks": "self request_id total_computed_tokens",
        "BlockPool.free_blocks": "self ordered_blocks prepend",
        "Request.__init__": (
            "self request_id prompt_token_ids sampling_params pooling_params client_index "
            "arrival_time prompt_embeds prompt_is_token_ids mm_features lora_request cache_salt "
            "priority trace_headers block_hasher resumable reasoning_ended "
            "reasoning_parser_kwargs abort_immediately"
        ),
        "KVCacheConfig": "num_blocks kv_cache_tensors kv_cache_groups",
        "KVCacheGroupSpec": "layer_names kv_cache_spec is_eagle_group",
        "LoRARequest": (
            "lora_name lora_int_id lora_path base_model_name tensorizer_config_dict "
            "load_inplace is_3d_lora_weight"
        ),
    },
    attributes={
        "request": (
            "num_tokens num_computed_tokens num_preemptions status block_hashes "
            "_all_token_ids _output_token_ids"
        )
    },
    layouts=tuple(mix for mix in _layouts(3) if len(mix) == 1 or len(set(mix)) > 1),
)

_0_22 = _0_23._replace(
    signatures={
        **_0_23.signatures,
        "KVCacheManager.__init__": (
            "self kv_cache_config max_model_len hash_block_size max_num_batched_tokens "
            "enable_caching use_eagle log_stats enable_kv_cache_events dcp_world_size "
            "pcp_world_size metrics_collector"
        ),
        "KVCacheManager.allocate_slots": (
            "self request num_new_tokens num_new_computed_tokens new_computed_blocks "
            "num_lookahead_tokens num_external_computed_tokens delay_cache_blocks "
            "num_encoder_tokens full_sequence_must_fit"
        ),
        "BlockPool.free_blocks": "self ordered_blocks",
    },
)

_0_19 = _0_23._replace(
    signatures={
        **_0_23.signatures,
        "KVCacheManager.__init__": (
            "self kv_cache_config max_model_len hash_block_size enable_caching use_eagle "
            "log_stats enable_kv_cache_events dcp_world_size pcp_world_size metrics_collector"
        ),
        "KVCacheManager.allocate_slots": (
            "self request num_new_tokens num_new_computed_tokens new_computed_blocks "
            "num_lookahead_tokens num_external_computed_tokens delay_cache_blocks "
            "num_encoder_tokens"
        ),
        "BlockPool.free_blocks": "self ordered_blocks",
        "Request.__init__": (
            "self request_id prompt_token_ids sampling_params pooling_params client_index "
            "arrival_time prompt_embeds mm_features lora_request cache_salt priority "
            "trace_headers block_hasher resumable reasoning_ended"
        ),
        "KVCacheGroupSpec": "layer_names kv_cache_spec",
        "LoRARequest": (
            "lora_name lora_int_id lora_path base_model_name tensorizer_config_dict load_inplace"
        ),
    },
    whole_request=False,
    draft_groups=False,
)

_0_18 = _0_19._replace(
    kinds=("full", "window", "state"),
    layouts=tuple(mix for mix in _0_19.layouts if "chunk" not in mix),
    draft_groups=True,
)
"""Driven with draft models, which exclude chunked local attention; 0.19.1 is driven with it."""

_0_12 = _0_19._replace(
    signatures={
        **_0_19.signatures,
        "KVCacheManager.new_step_starts": None,
        "KVCacheManager.evict_blocks": None,
        "KVCacheManager.remove_skipped_blocks": None,
        "KVCacheManager.allocate_slots": (
            "self request num_new_tokens num_new_computed_tokens new_computed_blocks "
            "num_lookahead_tokens delay_cache_blocks num_encoder_tokens"
        ),
        "Request.__init__": (
            "self request_id prompt_token_ids sampling_params pooling_params eos_token_id "
            "client_index arrival_time prompt_embeds mm_features lora_request cache_salt "
            "priority trace_headers block_hasher"
        ),
        "LoRARequest": (
            "lora_name lora_int_id lora_path lora_local_path long_lora_max_len base_model_name "
            "tensorizer_config_dict"
        ),
        "MultiModalFeatureSpec": "data modality identifier mm_position",
    },
    accepted={"MambaSpec": "block_size shapes dtypes"},
    kinds=("full", "window", "chunk"),
    layouts=(("window",), ("full", "window"), ("full", "chunk")),
)

_0_11 = _0_12._replace(
    signatures={
        **_0_12.signatures,
        "KVCacheManager.__init__": (
            "self kv_cache_config max_model_len enable_caching use_eagle log_stats "
            "enable_kv_cache_events dcp_world_size"
        ),
        "Request.__init__": (
            "self request_id prompt_token_ids sampling_params pooling_params eos_token_id "
            "client_index arrival_time prompt_embeds mm_features lora_request "
            "structured_output_request cache_salt priority trace_headers block_hasher"
        ),
    },
    accepted={**_0_12.accepted, "SamplingParams": "max_tokens"},
    attributes={
        "request": (
            "num_tokens num_computed_tokens status block_hashes _all_token_ids _output_token_ids"
        ),
        "manager": "block_pool",
        "manager.prefix_cache_stats": "queries hits",
    },
    no_read=False,
)

RELEASES = {
    "0.11.0": _0_11,
    "0.12.0": _0_12,
    "0.18.1": _0_18,
    "0.19.1": _0_19,
    "0.22.1": _0_22,
    "0.23.0": _0_23,
    "0.33.0": Release(),
}
