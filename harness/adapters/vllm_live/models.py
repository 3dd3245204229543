"""Tiny models with random weights, by the kinds of their caches, and the sizes of their engine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from kvproof.harness.adapters.vllm_live.traits import EAGER, GRAPHS, TIERS, USUAL
from kvproof.harness.contract.whole_engine import EngineConfig, GroupKind, Refused
from kvproof.harness.model.chain import VOCABULARY

Kind: TypeAlias = tuple[tuple[GroupKind, ...], str]
"""Kinds of groups, and which steps are captured."""
LAYERS = 2
"""Layers of each kind."""
BLOCK = 16
"""Tokens."""
LONGEST, REQUESTS, TOKENS = 256, 16, 1280
"""Most tokens of a request, requests, and tokens of a step."""
BLOCKS, COLD_BLOCKS = 200, 160
"""Most blocks of a history's pool, the null block included; those of a cold engine."""
_SIZES = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
_DENSE = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu"}
_WINDOWS = {
    "torch_dtype": "bfloat16",  # the engine refuses float16 for this family
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 64,
}


def kind_of(config: EngineConfig) -> Kind:
    """Return what needs a worker of its own: kinds of layers, and which steps are captured."""
    groups = sorted({replace(each, layers=1) for each in config.groups}, key=str)
    return tuple(groups), str(config.settings.get(GRAPHS, USUAL))


def cold_kind(config: EngineConfig) -> Kind:
    """Return the kind of the worker that answers again: it runs eagerly."""
    return kind_of(config)[0], EAGER


def check(config: EngineConfig) -> None:
    """Raise Refused for a configuration that no worker here can have."""
    alone = (config.tensor_parallel, config.heads, config.kernel_block_size) == (1, 1, 0)
    if config.block_size != BLOCK or not alone or config.drafts or config.embeds:
        raise Refused(f"the card runs blocks of {BLOCK}, one worker, and no drafts")
    if config.connector not in ("", *TIERS) or config.runner != "v2":
        raise Refused(f"the card runs runner v2, and of connectors {', '.join(TIERS)}")
    sizes = (config.blocks, config.max_length, config.max_requests, config.token_budget)
    most = (BLOCKS, LONGEST, REQUESTS, TOKENS)
    if any(each > limit for each, limit in zip(sizes, most, strict=True)):
        raise Refused(f"the card runs at most {most} blocks, tokens, requests, tokens of a step")


def model_of(groups: Sequence[GroupKind]) -> dict[str, Any]:
    """Return the configuration of a model whose layers are of these kinds. Raises Refused."""
    windows = [each for each in groups if each.kind == "window"]
    if len(windows) != len(groups) - 1 or len(windows) > 1:
        raise Refused("the tiny models have full attention, and one window at most")
    if not windows:
        return {**_SIZES, **_DENSE, "num_hidden_layers": LAYERS}
    kinds = ["sliding_attention", "full_attention"] * LAYERS
    size = windows[0].size
    return {
        **_SIZES,
        **_WINDOWS,
        "num_hidden_layers": len(kinds),
        "layer_types": kinds,
        "sliding_window": size,
    }


@cache
def model_folder(groups: tuple[GroupKind, ...]) -> str:
    """Write the configuration of a model that is never downloaded; return its folder."""
    folder = Path(tempfile.mkdtemp(prefix="kvproof-live-model-"))
    (folder / "config.json").write_text(json.dumps(model_of(groups)), encoding="utf-8")
    return str(folder)


def draw_weights(model: Any) -> None:
    """Draw weights of usual size: those of `dummy` are so small that attention hardly counts."""
    import torch

    source = torch.Generator(next(model.parameters()).device).manual_seed(0)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.data.normal_(0, weight.shape[1] ** -0.5, generator=source)
        else:
            weight.data.fill_(1)
