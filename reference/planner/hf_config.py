"""A Hugging Face `config.json` -> what each layer caches (P1, A3).

Only fields that decide about the cache are read; transformers is not needed. A family that is not
in the table is refused rather than guessed: a wrong guess is a wrong plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kvproof.reference.planner import hf_attention as attention
from kvproof.reference.planner import hf_compressed
from kvproof.reference.planner import hf_recurrent as recurrent
from kvproof.reference.planner.hf_fields import Fields
from kvproof.reference.planner.layer_spec import Experts, LayerSpec, ModelSpec, PlanError

Family: TypeAlias = Callable[[Fields], list[LayerSpec]]

_DENSE = (  # noqa: SIM905 - words read better than a list of strings
    "llama qwen2 qwen3 phi3 mistral mixtral starcoder2 olmo olmo2 olmoe granite granitemoe gemma "
    "stablelm cohere glm glm4 glm4_moe ernie4_5 ernie4_5_moe qwen2_moe qwen3_moe minimax_m2 "
    "seed_oss smollm3 gpt_oss gemma2 gemma3_text cohere2 olmo3 exaone4 ministral "
    "qwen2_vl_text qwen2_5_vl_text qwen3_vl_text qwen3_vl_moe_text dots1 hunyuan_v1_dense"
).split()

FAMILIES: dict[str, Family] = {
    **dict.fromkeys(_DENSE, attention.plain),
    "gemma3n_text": attention.gemma3n,
    "gemma4_text": attention.gemma4,
    "llama4_text": attention.llama4,
    "deepseek_v2": attention.latent,
    "deepseek_v3": attention.latent,
    "kimi_k2": attention.latent,
    "glm4_moe_lite": attention.latent,
    "minicpm3": attention.latent,
    "deepseek_v32": attention.indexed,
    "glm_moe_dsa": attention.indexed,
    "deepseek_v4": hf_compressed.compressed,
    "qwen3_next": recurrent.gated_delta,
    "qwen3_5_text": recurrent.gated_delta,
    "qwen3_5_moe_text": recurrent.gated_delta,
    "kimi_linear": recurrent.kimi_linear,
    "nemotron_h": recurrent.nemotron_h,
    "bamba": recurrent.bamba,
    "granitemoehybrid": recurrent.granite_hybrid,
    "falcon_h1": recurrent.falcon_h1,
    "mamba2": recurrent.mamba2,
    "lfm2": recurrent.short_conv,
    "lfm2_moe": recurrent.short_conv,
    "jamba": recurrent.jamba,
}
"""`model_type` of the text model -> its layers."""

_TEXT = {
    "qwen2_vl": "qwen2_vl_text",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "mistral3": "mistral",
}
"""`model_type` of a model with media -> that of a text model that has none of its own."""

_DIFFUSION = "its tokens change after they were written, so no cached block stays true"
_CROSS = "its cross-attention reads encoder states, which are no prefix of the tokens"
_REFUSED = {
    **dict.fromkeys(("llada", "llada_moe", "dream", "sdar", "diffusion_gemma"), _DIFFUSION),
    **dict.fromkeys(("t5", "mt5", "bart", "whisper", "mllama", "t5gemma", "moonshine"), _CROSS),
}


def read_model(config: Mapping[str, Any], *, kv_dtype: str = "auto") -> ModelSpec:
    """Return the cache specs of a model; `kv_dtype` is for attention, not for states.

    Raises PlanError for an unknown or unsupported family, and for a missing or invalid field.
    """
    family, text = _text_config(config)
    _refuse(family, text)
    fields = Fields(family, text, kv_dtype)
    layers = FAMILIES[family](fields)
    return ModelSpec(
        family=family,
        depth=max((layer.index + 1 for layer in layers if not layer.draft), default=0),
        layers=tuple(layers),
        max_len=fields.whole("max_position_embeddings", 0) or fields.whole("model_max_length", 0),
        experts=_experts(fields),
        notes=tuple(fields.notes),
    )


def _text_config(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    outer = config.get("model_type")
    if not isinstance(outer, str):
        raise PlanError(
            f"model_type {outer!r} is not a name", "give the config.json of a Hugging Face model"
        )
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return _TEXT.get(outer, outer), dict(config)
    named = str(inner.get("model_type", outer))
    dtype = {key: config[key] for key in ("dtype", "torch_dtype") if key in config}
    return _TEXT.get(named, named), {**dtype, **inner}


def _refuse(family: str, config: Mapping[str, Any]) -> None:
    reason = _REFUSED.get(family, "")
    if config.get("is_encoder_decoder"):
        reason = _CROSS
    if reason:
        raise PlanError(f"model_type {family!r} cannot be served: {reason}", "see rule A3")
    if family not in FAMILIES:
        raise PlanError(
            f"model_type {family!r} is not known", f"known are {', '.join(sorted(FAMILIES))}"
        )


_COUNTS = ("num_local_experts", "n_routed_experts", "num_experts")
_TOP_K = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk")


def _experts(fields: Fields) -> Experts | None:
    count = next((n for name in _COUNTS if (n := fields.whole(name, 0))), 0)
    per_token = next((n for name in _TOP_K if (n := fields.whole(name, 0))), 0)
    if not (count and per_token):
        return None
    layers = _routed_layers(fields)
    return Experts(layers, per_token, count) if layers else None


def _routed_layers(fields: Fields) -> int:
    kinds = fields.names("mlp_layer_types") or fields.names("layers_block_type")
    if kinds:
        return sum(kind in ("sparse", "moe") for kind in kinds)
    pattern = fields.text("hybrid_override_pattern", "")
    if pattern:
        return pattern.count("E")
    depth = fields.whole("num_hidden_layers")
    listed = fields.numbers("moe_layers")
    if listed is not None:
        return len(listed)
    dense = set(fields.numbers("mlp_only_layers") or ())
    first = max(fields.whole("first_k_dense_replace", 0), fields.whole("num_dense_layers", 0))
    step = fields.whole("decoder_sparse_step", 0) or fields.whole("interleave_moe_layer_step", 1)
    period, offset = fields.whole("expert_layer_period", 0), fields.whole("expert_layer_offset", 0)
    if period:
        return sum(layer % period == offset for layer in range(depth))
    return sum(
        layer >= first and (layer + 1) % step == 0 and layer not in dense for layer in range(depth)
    )
