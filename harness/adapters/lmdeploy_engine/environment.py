"""The process that LMDeploy finds when it starts on a CPU without weights. Engine environment only.

No file of LMDeploy is changed. Empty modules stand in for packages that its light environment
lacks, and packages of it are entered without their `__init__`, which would import a server.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from kvproof.harness.adapters.empty_modules import fill_in
from kvproof.harness.adapters.lmdeploy_engine import cuda

_MISSING = (
    *("PIL", "mmengine", "mpmath", "packaging", "pybase64", "requests", "safetensors"),
    *("shortuuid", "sympy", "tqdm", "transformers", "triton", "urllib3", "xgrammar", "zmq"),
)
_ENTERED = ("lmdeploy", "lmdeploy.vl", "lmdeploy.serve", "lmdeploy.serve.openai")
_ENVIRONMENT = {
    "LMDEPLOY_ENABLE_CHECK_ENV": "0",
    "LMDEPLOY_SKIP_WARMUP": "1",
    "TORCHDYNAMO_DISABLE": "1",
}
"""LMDeploy's own variables: no check for a card, and no forward before the first request."""
_MODEL = "kvproof.harness.adapters.lmdeploy_engine.model.ShadowForCausalLM"


@cache
def install() -> None:
    """Prepare the process. To be called before LMDeploy is imported."""
    os.environ.update(_ENVIRONMENT)
    logging.disable(logging.CRITICAL)
    importlib.import_module("torch.utils.flop_counter")  # it keeps the Triton that it finds
    fill_in([name for name in _MISSING if importlib.util.find_spec(name) is None])
    cuda.install()
    _enter()
    _without_weights(importlib.import_module("lmdeploy.pytorch.engine.model_agent.agent"))
    _on_common_operators(importlib.import_module("lmdeploy.pytorch.backends.selector"))
    module_map = importlib.import_module("lmdeploy.pytorch.models.module_map")
    module_map.CUSTOM_MODULE_MAP["ShadowForCausalLM"] = _MODEL
    for name in ("transformers", "engine.config_builder"):
        module = importlib.import_module(f"lmdeploy.pytorch.{name}")
        vars(module)["config_from_pretrained"] = _config
    _evict_by_block()


def _enter() -> None:
    spec = importlib.util.find_spec("lmdeploy")
    assert spec is not None, "LMDeploy is installed"
    folder = Path(next(iter(spec.submodule_search_locations or ())))
    for name in _ENTERED:
        module = ModuleType(name)
        module.__path__ = [str(folder.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = module


class _Tokenizer:
    """Requests come as tokens."""

    def __init__(self, *_: object, **__: object) -> None:
        self.model = self


class _NoGrammar:
    def __init__(self, *_: object, **__: object) -> None:
        raise ValueError("there is no tokenizer")


def _without_weights(agent: Any) -> None:
    agent.load_model_weights = lambda *_, **__: None
    agent.Tokenizer = _Tokenizer
    agent.GuidedDecodingManager = _NoGrammar
    agent.get_gpu_memory = lambda *_: (1 << 30, 1 << 30)


def _on_common_operators(selector: Any) -> None:
    """Let LMDeploy's default backend, which it has for every device, serve as CUDA's."""
    backends = importlib.import_module("lmdeploy.pytorch.backends.default")
    default: Any = backends.DefaultOpsBackend
    attention = importlib.import_module("lmdeploy.pytorch.backends.attention")
    runner = importlib.import_module("lmdeploy.pytorch.backends.graph_runner").GraphRunner

    class Backend(default):  # type: ignore[misc] # LMDeploy is untyped
        get_attention_metadata_cls = staticmethod(lambda: attention.AttentionMetadata)
        build_graph_runner = staticmethod(runner)
        device_count = staticmethod(lambda: 1)

    selector._get_backend = lambda: Backend


class _Config:
    """The configuration of a model, as transformers reads it."""

    def __init__(self, values: dict[str, Any]) -> None:
        vars(self).update(values)


def _config(folder: str, **_: object) -> _Config:
    return _Config(json.loads(Path(folder, "config.json").read_text(encoding="utf-8")))


def _evict_by_block() -> None:
    """Order nodes of equal age by their block, not by their address: runs are equal then."""
    for name in ("kv_lifecycle", "checkpoint_lifecycle"):
        module = importlib.import_module(f"lmdeploy.pytorch.paging.block_trie.{name}")
        vars(module)["id"] = lambda node: node.block_id
