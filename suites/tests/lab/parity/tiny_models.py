"""Tiny models of many families, by name."""

from __future__ import annotations

from typing import Any

import torch
import transformers

from kvproof.suites.reference.parity.tiny_models import (
    BASE,
    EXPERTS,
    GROUPED,
    LATENT,
    MOE_FAMILIES,
    VOCABULARY,
    Family,
    Fields,
    make,
)

IMAGE, VIDEO, IMAGE_START, IMAGE_END = 370, 371, 372, 373
"""Token ids outside of `TEXT`."""

WINDOWS: Fields = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
}
SHARED: Fields = {
    "num_hidden_layers": 6,
    "sliding_window": 24,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "num_kv_shared_layers": 2,
}
"""The last two layers read what the two before them have cached (Q3)."""
DELTA: Fields = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 40,
    **EXPERTS,
}
INDEXED: Fields = {
    **LATENT,
    "index_n_heads": 32,  # scores of fewer heads are often exactly 0, and ties depend on shapes
    "index_head_dim": 16,
    "index_topk": 16,
}
MAMBA: Fields = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 32,
}


def without(fields: Fields, *names: str) -> Fields:
    """Leave out fields that a family does not have."""
    return {name: value for name, value in fields.items() if name not in names}


TEXT_FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", GROUPED, "dense"),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", GROUPED, "dense, normalised keys"),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**GROUPED, **WINDOWS, "query_pre_attn_scalar": 16},
        "windows",
    ),
    "gemma4": Family(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            **GROUPED,
            **WINDOWS,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCABULARY,
        },
        "windows, heads of unequal width",
    ),
    "gemma4_shared": Family(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            **GROUPED,
            **SHARED,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCABULARY,
        },
        "layers that read another layer's cache, heads of unequal width",
    ),
    "gemma3n": Family(
        "Gemma3nForCausalLM",
        "Gemma3nTextConfig",
        {
            **GROUPED,
            **SHARED,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": VOCABULARY,
            "laurel_rank": 8,
            "altup_num_inputs": 2,
            "activation_sparsity_pattern": [0.0] * 6,
        },
        "layers that read another layer's cache, windows",
    ),
    "gemma4_moe": Family(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            **GROUPED,
            **WINDOWS,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCABULARY,
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 2,
            "moe_intermediate_size": 40,
        },
        "windows, heads of unequal width, experts",
    ),
    "llama4": Family(
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {
            **GROUPED,
            "intermediate_size": 40,
            "intermediate_size_mlp": 96,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 32,
            "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        },
        "chunks",
    ),
    "deepseek_v32": Family(
        "DeepseekV32ForCausalLM", "DeepseekV32Config", INDEXED, "latent, indexer, experts"
    ),
    "glm_moe_dsa": Family(
        "GlmMoeDsaForCausalLM",
        "GlmMoeDsaConfig",
        {**INDEXED, "n_group": 1},
        "latent, indexer, experts",
    ),
    "hy_v4": Family(
        "HYV4ForCausalLM",
        "HYV4Config",
        {
            **without(INDEXED, "first_k_dense_replace"),
            "n_group": 1,
            "indexer_types": ["full", "shared"] * 2,
            "hc_mult": 2,
        },
        "latent, indexer in every other layer, experts",
    ),
    "axk2": Family(
        "AXK2ForCausalLM",
        "AXK2Config",
        {
            **without(INDEXED, "first_k_dense_replace"),
            "n_group": None,
            "topk_group": None,
            "gated_norm_rank": 8,
        },
        "latent, indexer, experts",
    ),
    "dots3_note": Family(
        "Dots3NoteForCausalLM",
        "Dots3NoteTextConfig",
        {
            **without(INDEXED, "first_k_dense_replace"),
            "n_group": 1,
            "sliding_window": 24,
            "layer_types": ["indexed_attention", "sliding_attention"] * 2,
            "mlp_layer_types": ["dense"] + ["sparse"] * 3,
            "head_dim": 24,
            "per_layer_config": {key: {"kv_lora_rank": 16} for key in ("01", "03")},
        },
        "latent, indexer, windows of other latents, experts",
    ),
    "hy_v3": Family(
        "HYV3ForCausalLM", "HYV3Config", {**GROUPED, **EXPERTS, "num_shared_experts": 1}, "experts"
    ),
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {**GROUPED, **DELTA, "norm_topk_prob": True},
        "gated delta rule, experts",
    ),
    "qwen3_5_moe": Family(
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextConfig",
        {**GROUPED, **DELTA},
        "gated delta rule, experts",
    ),
    "mamba2": Family(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            **without(BASE, "intermediate_size", "max_position_embeddings"),
            "num_heads": 8,
            "head_dim": 16,
            "expand": 2,
            "state_size": 16,
            "n_groups": 1,
            "conv_kernel": 4,
            "chunk_size": 32,
        },
        "recurrent only",
        rotary=False,
    ),
    "bamba": Family(
        "BambaForCausalLM",
        "BambaConfig",
        {**without(GROUPED, "head_dim"), **MAMBA, "attn_layer_indices": [1, 3]},
        "Mamba-2 and attention in turn",
    ),
    "falcon_h1": Family(
        "FalconH1ForCausalLM",
        "FalconH1Config",
        {**GROUPED, **MAMBA, "mamba_d_ssm": 128},
        "Mamba-2 beside attention in each layer",
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        "NemotronHConfig",
        {
            **GROUPED,
            "layers_block_type": ["mamba", "moe", "attention", "mamba"],
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 1,
            "ssm_state_size": 16,
            "conv_kernel": 4,
            "expand": 2,
            "chunk_size": 32,
            "time_step_min": 1e-30,  # transformers clamps steps in prefill and not in decode
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "moe_shared_expert_intermediate_size": 40,
        },
        "Mamba-2, attention and experts in turn",
        rotary=False,
    ),
    "kimi_linear": Family(
        "KimiLinearForCausalLM",
        "KimiLinearConfig",
        {
            **without(LATENT, "q_lora_rank", "n_routed_experts", "n_shared_experts"),
            "layer_types": DELTA["layer_types"],
            "linear_head_dim": 16,
            "linear_num_heads": 4,
            "num_local_experts": 8,
            "n_group": 1,
        },
        "KDA, latent, experts",
        rotary=False,
    ),
    "lfm2": Family(
        "Lfm2ForCausalLM",
        "Lfm2Config",
        {
            **without(GROUPED, "head_dim"),
            "layer_types": ["conv", "full_attention"] * 2,
            "conv_L_cache": 3,
        },
        "short convolutions",
    ),
}

_VISION: Fields = {
    "depth": 3,
    "num_heads": 2,
    "intermediate_size": 48,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "in_channels": 3,
    "out_hidden_size": 64,
    "initializer_range": 0.15,
}
_IMAGE_TOKENS: Fields = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": IMAGE_START,
    "vision_end_token_id": IMAGE_END,
    "tie_word_embeddings": False,
}


def _mrope(sections: list[int], **more: object) -> Fields:
    rope = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": sections, **more}
    return {"rope_parameters": rope}


IMAGE_FAMILIES: dict[str, Family] = {
    "qwen3_vl": Family(
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLConfig",
        {
            "text_config": {**GROUPED, **_mrope([3, 3, 2], mrope_interleaved=True)},
            "vision_config": {
                **_VISION,
                "hidden_size": 32,
                "num_position_embeddings": 64,
                "deepstack_visual_indexes": [0, 1],
            },
            **_IMAGE_TOKENS,
        },
        "images, deep stack",
        image=True,
    ),
    "qwen2_5_vl": Family(
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen2_5_VLConfig",
        {
            "text_config": {**without(GROUPED, "head_dim"), **_mrope([3, 3, 2])},
            "vision_config": {
                **_VISION,
                "hidden_size": 32,
                "fullatt_block_indexes": [1, 2],
                "window_size": 16,
            },
            **_IMAGE_TOKENS,
        },
        "images",
        image=True,
    ),
    "qwen3_5_moe_vl": Family(
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3_5MoeConfig",
        {
            "text_config": {
                **GROUPED,
                **DELTA,
                **_mrope([1, 1, 0], mrope_interleaved=True, partial_rotary_factor=0.25),
            },
            "vision_config": {**_VISION, "hidden_size": 32, "num_position_embeddings": 64},
            **_IMAGE_TOKENS,
        },
        "images, gated delta rule, experts",
        image=True,
    ),
    "gemma3_vl": Family(
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {
            "text_config": {**GROUPED, **WINDOWS, "query_pre_attn_scalar": 16},
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 48,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 4,
            },
            "image_token_id": IMAGE,
            "image_token_index": IMAGE,
            "boi_token_index": IMAGE_START,
            "eoi_token_index": IMAGE_END,
            "mm_tokens_per_image": 16,
            "tie_word_embeddings": False,
        },
        "images attended to in both directions, windows",
        image=True,
    ),
}

FAMILIES = {
    name: family
    for name, family in {**TEXT_FAMILIES, **MOE_FAMILIES, **IMAGE_FAMILIES}.items()
    if hasattr(transformers, family.config)
}
"""Those of the installed transformers: 5.17 has fewer than 5.23."""


def build(name: str, dtype: torch.dtype = torch.float32, **options: Any) -> Any:
    """Make the tiny model of a family, ready for inference; see `make`."""
    return make(FAMILIES[name], dtype, **options)
