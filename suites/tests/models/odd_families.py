"""Tiny models of families that cannot run, from configs alone."""

from __future__ import annotations

from typing import Any

import torch
import transformers

TEXT: dict[str, Any] = {
    "vocab_size": 384,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EYES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
}
IMAGE = 370


def _zamba() -> Any:
    fields = TEXT | {
        "num_hidden_layers": 6, "num_key_value_heads": 4, "attn_layer_period": 3,
        "attn_layer_offset": 1, "mamba_d_state": 8, "mamba_dt_rank": 8, "n_mamba_heads": 2,
        "use_mamba_kernels": False,
    }  # fmt: skip
    return transformers.ZambaForCausalLM(transformers.ZambaConfig(**fields))


def _recurrent_gemma() -> Any:
    fields = TEXT | {"lru_width": 64, "attention_window_size": 24, "num_hidden_layers": 3}
    return transformers.RecurrentGemmaForCausalLM(transformers.RecurrentGemmaConfig(**fields))


def _xlstm() -> Any:
    config = transformers.xLSTMConfig(vocab_size=384, hidden_size=64, num_heads=4, num_blocks=2)
    return transformers.xLSTMForCausalLM(config)


def _rwkv() -> Any:
    fields = {"vocab_size": 384, "hidden_size": 64, "num_hidden_layers": 2, "context_length": 512}
    return transformers.RwkvForCausalLM(transformers.RwkvConfig(**fields))


def _mllama() -> Any:
    eyes = {
        "hidden_size": 32, "num_hidden_layers": 1, "num_global_layers": 1, "attention_heads": 2,
        "intermediate_size": 64, "image_size": 32, "patch_size": 16, "vision_output_dim": 64,
        "intermediate_layers_indices": [0], "max_num_tiles": 1, "supported_aspect_ratios": [[1, 1]],
    }  # fmt: skip
    text = TEXT | {
        "cross_attention_layers": [1],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
    }
    config = transformers.MllamaConfig(vision_config=eyes, text_config=text)
    return transformers.MllamaForConditionalGeneration(config)


def _paligemma() -> Any:
    eyes = {"model_type": "siglip_vision_model", "patch_size": 16, "projection_dim": 64}
    config = transformers.PaliGemmaConfig(
        vision_config=EYES | eyes,
        text_config=TEXT | {"model_type": "gemma", "head_dim": 16},
        image_token_index=IMAGE,
        projection_dim=64,
        hidden_size=64,
        vocab_size=384,
    )
    return transformers.PaliGemmaForConditionalGeneration(config)


def _mistral3() -> Any:
    eyes = {"model_type": "pixtral", "patch_size": 8, "head_dim": 16}
    config = transformers.Mistral3Config(
        vision_config=EYES | eyes,
        text_config=TEXT | {"model_type": "mistral", "head_dim": 16, "sliding_window": None},
        image_token_index=IMAGE,
        spatial_merge_size=2,
    )
    return transformers.Mistral3ForConditionalGeneration(config)


_MAKE = {
    "mistral3": _mistral3,
    "mllama": _mllama,
    "paligemma": _paligemma,
    "recurrent_gemma": _recurrent_gemma,
    "rwkv": _rwkv,
    "xlstm": _xlstm,
    "zamba": _zamba,
}


def odd(family: str, *, sharp: bool = True) -> Any:
    """Make a model; `sharp`: large weights, so that what it has read decides."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _MAKE[family]().eval()
        for name, values in model.named_parameters():
            if sharp and values.ndim > 1 and "embed" not in name and not name.endswith("A_log"):
                values.data.normal_(0, 0.15)
    return model
