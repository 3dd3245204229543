"""The arguments that SGLang is started with, from a configuration of a whole engine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from kvproof.harness.adapters.sglang_engine import drafts, host_tier
from kvproof.harness.adapters.sglang_engine.launches import STAND_INS
from kvproof.harness.adapters.sglang_engine.published import PUBLISHER
from kvproof.harness.adapters.sglang_engine.states import MODEL_TYPE
from kvproof.harness.contract.whole_engine import EngineConfig, GroupKind
from kvproof.harness.model.chain import VOCABULARY

_VARIABLE = "SGLANG_"
"""Begins the settings that are variables of the environment: those of the test of retraction."""
_READ_LATE = {
    "SGLANG_OPT_RELEASE_PREFILL_SWA": False,
    "SGLANG_SWA_EVICTION_INTERVAL": 1,
    "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "rust",
}
"""Variables that SGLang reads each time; few requests here are as long as its own interval, 128."""
_SPARE = 6
"""Tokens of the pool that no prompt may fill; with its answer a request also leaves two pages."""
_STATES, _SPARE_STATES = 5, 3
"""Slots of states for each request, as SGLang reckons, and beyond them."""
_HEAD = 16
"""Numbers of a head: 32 bytes, a slot's two words and as many again."""


@cache
def model_folder(groups: tuple[GroupKind, ...]) -> str:
    """Write the configuration of a model that has no weights; return its folder."""
    layers = [each for each in groups for _ in range(each.layers)]
    states = [each for each in layers if each.kind == "state"]
    folder = Path(tempfile.mkdtemp(prefix="kvproof-shadow-model-"))
    config = {
        "architectures": ["ShadowForCausalLM"],
        "model_type": MODEL_TYPE if states else "llama",
        "state_layers": len(states),
        "hidden_size": _HEAD,
        "intermediate_size": _HEAD,
        "num_hidden_layers": len(layers),
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": _HEAD,
        "vocab_size": VOCABULARY + STAND_INS,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        **_windows(layers),
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def _windows(layers: Sequence[GroupKind]) -> dict[str, Any]:
    """Return the fields of a model with windows, by which it opts into pools of two sizes.

    SGLang does not count a token itself in its window.
    """
    sizes = {each.size for each in layers if each.kind == "window"}
    if not sizes:
        return {}
    pattern = [int(each.kind == "window") for each in layers]
    return {
        "is_hybrid_swa": True,
        "hybrid_layer_pattern": pattern,
        "sliding_window": max(sizes) - 1,
    }


def pages(config: EngineConfig) -> int:
    """Return how many pages the pool has, without the one for padding."""
    ahead = 4 * (config.drafts.count + 1) * config.max_requests if config.drafts else 0
    return (
        config.blocks - 1 + max(2, -(-_SPARE // config.block_size)) + -(-ahead // config.block_size)
    )


def server_args(config: EngineConfig) -> Any:
    """Return the engine's arguments. Raises ValueError where it refuses the values."""
    from sglang.srt.server_args import ServerArgs

    page = config.block_size
    more = {name: each for name, each in config.settings.items() if not name.startswith(_VARIABLE)}
    return ServerArgs(
        model_path=model_folder(config.groups),
        load_format="dummy",
        device="cpu",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        disable_custom_all_reduce=True,
        log_level="error",
        mem_fraction_static=0.5,
        random_seed=0,
        page_size=page,
        max_total_tokens=pages(config) * page,
        max_running_requests=config.max_requests,
        chunked_prefill_size=max(page, config.token_budget // page * page),
        disable_radix_cache=not config.caching,
        disable_overlap_schedule=not config.asynchronous,
        enable_streaming_session=config.sessions,
        enable_priority_scheduling=config.policy == "priority",
        schedule_low_priority_values_first=config.policy == "priority",
        kv_events_config=json.dumps({"publisher": PUBLISHER}) if config.events else None,
        **{**_states(config), **more},
        **host_tier.arguments(config),
        **drafts.arguments(config),
    )


def _states(config: EngineConfig) -> Mapping[str, Any]:
    """Return the arguments of a model with states: some more of them than requests can hold."""
    if not any(each.kind == "state" for each in config.groups):
        return {}
    return {
        "max_mamba_cache_size": _STATES * config.max_requests + _SPARE_STATES,
        "mamba_track_interval": 2 * config.block_size,
    }


def set_variables(config: EngineConfig) -> None:
    """Set the variables of the environment, also those that the scheduler's module has read."""
    from sglang.srt.environ import envs
    from sglang.srt.managers import scheduler

    for name in ("TEST_RETRACT", "TEST_RETRACT_INTERVAL", "TEST_RETRACT_NO_PREFILL_BS"):
        variable = f"{_VARIABLE}{name}"
        default = getattr(envs, variable).get()
        setattr(scheduler, name, config.settings.get(variable, default))
    for variable, default in _READ_LATE.items():
        os.environ[variable] = str(config.settings.get(variable, default))
