"""Tiny models of families with routed experts, from configs alone: random weights, no download.

The weights are drawn so that the cache content decides the answer. With plain random weights the
next token hardly depends on the context: a lost state then changes no token. So embeddings are
small and the head is sharp, recurrences forget slowly, and convolutions weigh all their inputs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import torch
import transformers

Fields: TypeAlias = dict[str, Any]

VOCABULARY = 384
TEXT = range(8, 360)
"""Token ids of prompts; those of images and of control tokens lie outside."""

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
GROUPED: Fields = {**BASE, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
EXPERTS: Fields = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
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


MOE_FAMILIES: dict[str, Family] = {
    "qwen3_moe": Family(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**GROUPED, **EXPERTS, "norm_topk_prob": True},
        "experts",
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **GROUPED,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
        "sinks, windows, experts",
    ),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", "DeepseekV3Config", LATENT, "latent, experts"),
}


class Writer:
    """Writes prompts, which are equal for equal seeds."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no secret

    def text(self, count: int) -> tuple[int, ...]:
        """Return so many tokens of text."""
        return tuple(self._random.choices(TEXT, k=count))


@contextmanager
def _random(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def make(
    family: Family,
    dtype: torch.dtype = torch.float32,
    *,
    device: str = "cpu",
    seed: int = 0,
    **changes: Any,
) -> Any:
    """Make a tiny model, ready for inference. Equal for equal seeds.

    `changes` are fields of its config.
    """
    family = family._replace(fields={**family.fields, **changes})
    with torch.no_grad(), _random(seed):
        model = _attending(family)
        for parameter, values in model.named_parameters():
            sharpen(parameter, values)
        model.get_output_embeddings().weight[TEXT.stop :] = 0  # no answer holds a placeholder
    if dtype == torch.float64:
        model.set_experts_implementation("eager")  # the default has no float64
    return model.to(device=device, dtype=dtype).eval()


def _attending(family: Family) -> Any:
    """Make the model with torch's attention, or the family's own where it takes no other."""
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
    """Draw a parameter again where the default makes the model independent of its cache."""
    for ending, draw in _DRAWS:
        if name.endswith(ending) and "visual" not in name and "vision" not in name:
            draw(values)
