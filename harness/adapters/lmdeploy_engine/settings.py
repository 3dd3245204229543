"""The configuration that LMDeploy is started with, from a configuration of a whole engine."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kvproof.harness.contract.whole_engine import EngineConfig, GroupKind
from kvproof.harness.model.chain import VOCABULARY

_HEAD = 16
"""Numbers of a head: 32 bytes, a slot's two words and as many again."""
_SPARE = 2
"""Blocks more: LMDeploy takes no pool below 16, and keeps one block free of each session."""
VARIABLES: Mapping[str, tuple[str, Any]] = {
    "LMDEPLOY_PT_TTFT_POLICY": ("opt_ttft_policy", "size"),
    "LMDEPLOY_PT_TTFT_SHORT_TURNS": ("opt_ttft_short_turns", 3),
    "LMDEPLOY_PT_TTFT_AGING_SEC": ("opt_ttft_aging_sec", 2.0),
}
"""Variable of the environment -> its name in LMDeploy's module, which has read it, and default."""


@cache
def model_folder(groups: tuple[GroupKind, ...]) -> str:
    """Write the configuration of a model that has no weights; return its folder."""
    folder = Path(tempfile.mkdtemp(prefix="kvproof-shadow-model-"))
    config = {
        "architectures": ["ShadowForCausalLM"],
        "model_type": "llama",
        "hidden_size": _HEAD,
        "intermediate_size": _HEAD,
        "num_hidden_layers": sum(each.layers for each in groups),
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": _HEAD,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def engine_config(config: EngineConfig) -> Any:
    """Return LMDeploy's configuration. Raises AssertionError where it refuses the values."""
    from lmdeploy.messages import PytorchEngineConfig

    more = {name: each for name, each in config.settings.items() if name not in VARIABLES}
    return PytorchEngineConfig(
        block_size=config.block_size,
        kernel_block_size=config.kernel_block_size or -1,
        num_gpu_blocks=config.blocks + _SPARE,
        max_batch_size=config.max_requests,
        max_prefill_token_num=config.token_budget,
        enable_prefix_caching=config.caching,
        session_len=config.max_length,
        dtype="bfloat16",
        eager_mode=True,
        distributed_executor_backend="uni",
        **more,
    )


def set_variables(config: EngineConfig) -> None:
    """Set the variables of the environment where LMDeploy's module has read them."""
    from lmdeploy.pytorch import envs

    for variable, (name, default) in VARIABLES.items():
        setattr(envs, name, config.settings.get(variable, default))
