"""Sizes that the tiny models of many families share, and their prompts."""

from __future__ import annotations

import random
from typing import Any, NamedTuple, TypeAlias

Fields: TypeAlias = dict[str, Any]

VOCABULARY = 384
TEXT = range(8, 360)
"""Token ids of prompts; those of images and of control tokens lie outside."""
IMAGE, VIDEO, IMAGE_START, IMAGE_END = 370, 371, 372, 373

BASE: Fields = {
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
GROUPED: Fields = {
    **BASE,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
}
EXPERTS: Fields = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
WINDOWS: Fields = {
    "sliding_window": 24,
    "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
}
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
LATENT: Fields = {
    **BASE,
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


class Family(NamedTuple):
    """Recipe of a tiny model."""

    model: str
    config: str
    fields: Fields
    shows: str
    """The feature that the family stands for."""
    rotary: bool = True
    """Whether cached values depend on positions."""
    image: bool = False


class Writer:
    """Writes prompts, which are equal for equal seeds."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def text(self, count: int) -> tuple[int, ...]:
        """Return so many tokens of text."""
        return tuple(self._random.choices(TEXT, k=count))
