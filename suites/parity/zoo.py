"""Tiny models of many families, from configs alone: random weights, no download.

The weights are drawn so that what is cached decides the answer. With plain random weights the
next token hardly depends on the context: a lost state then changes no token. So embeddings are
small and the head is sharp, recurrences forget slowly, and convolutions weigh all their inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
import transformers

Fields: TypeAlias = dict[str, Any]

VOCABULARY = 384
TEXT = range(8, 360)
"""Token ids of prompts; those of images and of the control tokens lie outside."""
IMAGE, VIDEO, IMAGE_START, IMAGE_END = 370, 371, 372, 373

_BASE: Fields = {
    "vocab_size": VOCABULARY,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
    "initializer_range": 0.15,
    "max_position_embeddings": 2048,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
}
_GROUPED: Fields = {
    **_BASE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_EXPERTS: Fields = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
_WINDOWS: Fields = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
}
_DELTA: Fields = {
    "layer_types": ["linear_attention"] * 3 + ["full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "shared_expert_intermediate_size": 40,
    **_EXPERTS,
}
_LATENT: Fields = {
    **_BASE,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "kv_lora_rank": 24,
    "q_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 40,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
_INDEXED: Fields = {
    **_LATENT,
    "index_n_heads": 32,  # scores of fewer heads are often exactly 0, and ties depend on shapes
    "index_head_dim": 16,
    "index_topk": 16,
}
_MAMBA: Fields = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_chunk_size": 32,
}


def _without(fields: Fields, *names: str) -> Fields:
    return {name: value for name, value in fields.items() if name not in names}


class Family(NamedTuple):
    """How a tiny model is made."""

    model: str
    """Class in transformers."""
    config: str
    fields: Fields
    shows: str
    """What the family is in the zoo for."""
    rotary: bool = True
    """Whether what is cached depends on positions."""
    image: bool = False


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


FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", _GROUPED, "dense"),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", _GROUPED, "dense, normalised keys"),
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**_GROUPED, **_EXPERTS, "norm_topk_prob": True},
        "experts",
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **_GROUPED,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        "sinks, windows, experts",
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**_GROUPED, **_WINDOWS, "query_pre_attn_scalar": 16},
        "windows",
    ),
    "gemma4": Family(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            **_GROUPED,
            **_WINDOWS,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": VOCABULARY,
        },
        "windows, heads of unequal width",
    ),
    "gemma4_moe": Family(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            **_GROUPED,
            **_WINDOWS,
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
            **_GROUPED,
            "intermediate_size": 40,
            "intermediate_size_mlp": 96,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "attention_chunk_size": 32,
            "layer_types": ["chunked_attention"] * 3 + ["full_attention"],
        },
        "chunks",
    ),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", "DeepseekV3Config", _LATENT, "latent, experts"),
    "deepseek_v32": Family(
        "DeepseekV32ForCausalLM", "DeepseekV32Config", _INDEXED, "latent, indexer, experts"
    ),
    "glm_moe_dsa": Family(
        "GlmMoeDsaForCausalLM",
        "GlmMoeDsaConfig",
        {**_INDEXED, "n_group": 1},
        "latent, indexer, experts",
    ),
    "qwen3_next": Family(
        "Qwen3NextForCausalLM",
        "Qwen3NextConfig",
        {**_GROUPED, **_DELTA, "norm_topk_prob": True},
        "gated delta rule, experts",
    ),
    "qwen3_5_moe": Family(
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextConfig",
        {**_GROUPED, **_DELTA},
        "gated delta rule, experts",
    ),
    "mamba2": Family(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            **_without(_BASE, "intermediate_size", "max_position_embeddings"),
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
        {**_without(_GROUPED, "head_dim"), **_MAMBA, "attn_layer_indices": [1, 3]},
        "Mamba-2 and attention in turn",
    ),
    "falcon_h1": Family(
        "FalconH1ForCausalLM",
        "FalconH1Config",
        {**_GROUPED, **_MAMBA, "mamba_d_ssm": 128},
        "Mamba-2 beside attention in each layer",
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        "NemotronHConfig",
        {
            **_GROUPED,
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
            **_without(_LATENT, "q_lora_rank", "n_routed_experts", "n_shared_experts"),
            "layer_types": _DELTA["layer_types"],
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
            **_without(_GROUPED, "head_dim"),
            "layer_types": ["conv", "full_attention"] * 2,
            "conv_L_cache": 3,
        },
        "short convolutions",
    ),
    "qwen3_vl": Family(
        "Qwen3VLForConditionalGeneration",
        "Qwen3VLConfig",
        {
            "text_config": {**_GROUPED, **_mrope([3, 3, 2], mrope_interleaved=True)},
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
            "text_config": {**_without(_GROUPED, "head_dim"), **_mrope([3, 3, 2])},
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
                **_GROUPED,
                **_DELTA,
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
            "text_config": {**_GROUPED, **_WINDOWS, "query_pre_attn_scalar": 16},
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
"""Name -> how a tiny model of the family is made."""


@contextmanager
def _random(seed: int) -> Iterator[None]:
    """Draw from a seed, and leave the generator of the process as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def build(
    name: str, dtype: torch.dtype = torch.float32, *, device: str = "cpu", seed: int = 0
) -> Any:
    """Make a tiny model, ready for inference. Equal for equal seeds."""
    family = FAMILIES[name]
    with torch.no_grad(), _random(seed):
        model = _attending(family)
        for parameter, values in model.named_parameters():
            sharpen(parameter, values)
        model.get_output_embeddings().weight[TEXT.stop :] = 0  # no answer holds a placeholder
    if dtype == torch.float64:
        model.set_experts_implementation("eager")  # the default has no float64
    return model.to(device=device, dtype=dtype).eval()


def _attending(family: Family) -> Any:
    """Make the model with the attention of torch, or the family's own where it takes no other."""
    make = getattr(transformers, family.model)
    for attention in ("sdpa", "eager"):
        config = getattr(transformers, family.config)(**family.fields)
        config._attn_implementation = attention
        try:
            return make(config)
        except ValueError as error:
            if "attention implementation" not in str(error) or attention == "eager":
                raise
    raise AssertionError(family.model)


_DRAWS: tuple[tuple[str, Callable[[torch.Tensor], object]], ...] = (
    ("embed_tokens.weight", lambda values: values.normal_(std=0.02)),
    ("embeddings.weight", lambda values: values.normal_(std=0.02)),
    ("lm_head.weight", lambda values: values.normal_(std=1.0)),
    ("A_log", lambda values: values.copy_(values.clone().uniform_(1e-3, 5e-2).log())),
    ("conv1d.weight", lambda values: values.normal_(std=0.5)),
    ("conv.conv.weight", lambda values: values.normal_(std=0.5)),
    ("mm_input_projection_weight", lambda values: values.normal_(std=0.15)),  # zero by default
)


def sharpen(name: str, values: torch.Tensor) -> None:
    """Draw a parameter again where the default makes the model blind to its cache."""
    for ending, draw in _DRAWS:
        if name.endswith(ending) and "visual" not in name and "vision" not in name:
            draw(values)
