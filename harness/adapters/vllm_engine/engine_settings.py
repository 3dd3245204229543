"""The arguments that vLLM's engine is started with, from a configuration of a whole engine."""

from __future__ import annotations

import json
import tempfile
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from kvproof.harness.adapters.vllm_engine import releases
from kvproof.harness.adapters.vllm_engine.exclusions import DRAFT_SETTINGS
from kvproof.harness.adapters.vllm_engine.nixl.connector import settings as nixl_settings
from kvproof.harness.adapters.vllm_engine.own.chosen import is_hybrid, is_own
from kvproof.harness.adapters.vllm_engine.own.store import OwnConnector
from kvproof.harness.adapters.vllm_engine.running import RUNNING
from kvproof.harness.adapters.vllm_engine.stores.files import FileStore
from kvproof.harness.adapters.vllm_engine.stores.lmcache import LMCacheStore
from kvproof.harness.contract.whole_engine import EngineConfig
from kvproof.harness.model.chain import VOCABULARY

_MODEL = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_DRAFT_MODELS = {"eagle": "ShadowForCausalLM", "mtp": "MiMoForCausalLM"}
"""Method -> architecture in the draft's configuration; vLLM makes EagleShadowForCausalLM of the
first, and of the second MiMoMTPModel, a family whose layers predict one token more each."""


@cache
def model_folder(architecture: str, layers: int, longest: int = 4096, **more: int) -> str:
    """Write the configuration of a model that is never loaded; return its folder."""
    folder = Path(tempfile.mkdtemp(prefix="kvproof-shadow-model-"))
    config = {
        **_MODEL,
        "architectures": [architecture],
        "num_hidden_layers": layers,
        "max_position_embeddings": longest,
        **({"num_nextn_predict_layers": layers} if architecture == _DRAFT_MODELS["mtp"] else {}),
        **more,
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def engine_settings(config: EngineConfig, **other: Any) -> Any:
    """Return the engine's configuration. Raises ValueError where it refuses the values.

    `other`: arguments of the engine in place of those of the shadow model.
    """
    from vllm.config import KVEventsConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.usage.usage_lib import UsageContext

    states = not all(group.visibility.by_position for group in config.groups)
    known = {each.name for each in fields(EngineArgs)}
    more: dict[str, Any] = {name: each for name, each in config.settings.items() if name in known}
    if states:
        more |= {"mamba_cache_mode": "align", "mamba_block_size": config.block_size}
    if config.embeds:
        more["enable_prompt_embeds"] = True
    if config.drafts:
        more["speculative_config"] = _drafts(config)
    if config.connector:
        more["kv_transfer_config"] = _connector(config.connector)
        if not is_own(config.connector):
            more["kv_transfer_config"].kv_connector_extra_config |= config.tier
    architecture = "ShadowHybridForCausalLM" if states else "ShadowForCausalLM"
    shadow: dict[str, Any] = {
        "model": model_folder(architecture, 2, **_heads(config)),
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "load_format": "dummy",
        "distributed_executor_backend": "uni",
        "tensor_parallel_size": config.tensor_parallel,
        "max_model_len": config.max_length,
        "block_size": config.block_size,
        "num_gpu_blocks_override": config.blocks,
        "max_num_seqs": config.max_requests,
        "max_num_batched_tokens": config.token_budget,
        "enable_prefix_caching": config.caching,
        "async_scheduling": config.asynchronous,
        "scheduling_policy": config.policy,
        "kv_events_config": KVEventsConfig(enable_kv_cache_events=True, publisher="null")
        if config.events
        else None,
        "disable_hybrid_kv_cache_manager": _takes_one_group(config)
        or releases.without_hybrid(config),
    }
    arguments = EngineArgs(**{**shadow, **more, **other})
    return arguments.create_engine_config(UsageContext.ENGINE_CONTEXT)


def _heads(config: EngineConfig) -> dict[str, int]:
    """Return the model's sizes where a connector takes them from there, not from the caches."""
    if not (config.connector.startswith(("lmcache", "nixl_")) or is_own(config.connector)):
        return {}
    from kvproof.harness.adapters.vllm_engine.specs import HEAD

    return {"num_key_value_heads": config.heads, "head_dim": HEAD}


STORES = {"example": FileStore, "lmcache": LMCacheStore}
"""Connectors that copy by themselves; they refuse to run with several groups."""


def copies_by_itself(connector: str) -> bool:
    """Tell whether `Running.tier` prepares the connector, which copies by itself."""
    return is_own(connector) or connector in STORES


def _takes_one_group(config: EngineConfig) -> bool:
    if is_own(config.connector):
        return not is_hybrid(config.connector, config.tier)
    return config.connector in STORES


_TIER = "kvproof.harness.adapters.vllm_engine.offload"
_CONNECTORS: dict[str, dict[str, Any]] = {
    "offload": {
        "kv_connector": "OffloadingConnector",
        "kv_connector_extra_config": {
            "cpu_bytes_to_use": 1 << 15,
            "spec_name": "ShadowOffloadingSpec",
            "spec_module_path": _TIER,
        },
    },
    "simple": {
        "kv_connector": "SimpleCPUOffloadConnector",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 14},
    },
    "simple_lazy": {
        "kv_connector": "SimpleCPUOffloadConnector",
        "kv_connector_extra_config": {"cpu_bytes_to_use": 1 << 14, "lazy_offload": True},
    },
    **{
        f"failing_{mode}_{policy}": {
            "kv_connector": "FailingConnector",
            "kv_connector_module_path": "kvproof.harness.adapters.vllm_engine.failing",
            "kv_load_failure_policy": policy,
            "kv_connector_extra_config": {"asynchronous": mode == "async"},
        }
        for mode in ("sync", "async")
        for policy in ("recompute", "fail")
    },
}
"""Name in a configuration -> the engine's settings; sizes are so small that tiers evict."""


def _connector(name: str) -> Any:
    from vllm.config import KVTransferConfig

    if is_own(name):
        RUNNING.tier = OwnConnector(RUNNING)
        return RUNNING.tier.config()
    if name in STORES:
        RUNNING.tier = STORES[name](RUNNING)
        return KVTransferConfig(kv_role="kv_both", **RUNNING.tier.settings())
    if name.startswith("nixl_"):
        return KVTransferConfig(**nixl_settings(*name.split("_")[1:], layout=RUNNING.config.layout))
    if not name.startswith("failing_"):
        from kvproof.harness.adapters.vllm_engine.offload import stand_in_for_simple_offload

        stand_in_for_simple_offload()
    if name == "multi":
        parts = [{**_CONNECTORS[each], "kv_role": "kv_both"} for each in ("offload", "simple")]
        extra = {"connectors": parts}
        return KVTransferConfig(
            kv_connector="MultiConnector", kv_role="kv_both", kv_connector_extra_config=extra
        )
    return KVTransferConfig(kv_role="kv_both", **_CONNECTORS[name])


def _drafts(config: EngineConfig) -> dict[str, Any]:
    assert config.drafts is not None
    own = {name: config.settings[name] for name in DRAFT_SETTINGS if name in config.settings}
    if config.drafts.method == "ngram":
        lookup = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
        method = "ngram_gpu" if config.runner == "v2" and config.asynchronous else "ngram"
        return {"method": method, "num_speculative_tokens": config.drafts.count, **lookup}
    return {
        "method": config.drafts.method,
        "model": model_folder(_DRAFT_MODELS[config.drafts.method], 1),
        "num_speculative_tokens": config.drafts.count,
        **own,
    }
