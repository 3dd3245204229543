"""The out-of-tree platform: classes that vLLM imports by its official entry points.

`install` puts a folder with the metadata of two entry points on `sys.path`, as an installed
distribution would: `vllm.platform_plugins` for the platform, `vllm.general_plugins` for the model.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from kvproof.harness.adapters.vllm_engine.nixl import agent

_HERE = "kvproof.harness.adapters.vllm_engine"
_ENTRY_POINTS = f"""\
[vllm.platform_plugins]
kvproof_shadow = {_HERE}.plugin:platform

[vllm.general_plugins]
kvproof_shadow = {_HERE}.plugin:register_models
"""
_METADATA = "Metadata-Version: 2.1\nName: kvproof-shadow-platform\nVersion: 1\n"
_ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "kvproof_shadow",
    "PYTHONHASHSEED": "0",
}
"""One process, no messages, no other plugin, and keys that are equal in every process."""


def install() -> None:
    """Make the entry points visible. To be called before vLLM is imported, once per process."""
    folder = Path(tempfile.mkdtemp(prefix="kvproof-shadow-"))
    metadata = folder / "kvproof_shadow_platform-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(_METADATA, encoding="utf-8")
    (metadata / "entry_points.txt").write_text(_ENTRY_POINTS, encoding="utf-8")
    sys.path.insert(0, str(folder))
    agent.install()
    if importlib.util.find_spec("numba") is None:
        sys.modules["numba"] = _Numba("numba")
    os.environ.update(_ENVIRONMENT)


class _Numba(ModuleType):
    """In place of numba: it compiles vLLM's n-gram proposer, which is not run here."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._decorator

    @staticmethod
    def _decorator(*given: Any, **_: Any) -> Any:
        return given[0] if given and callable(given[0]) else lambda function: function


def platform() -> str:
    """Return the platform class by name, as vLLM asks for it."""
    return f"{_HERE}.platform.ShadowPlatform"


def register_models() -> None:
    """Register the models that the registry inspects; none is ever constructed."""
    from vllm.model_executor.models.registry import ModelRegistry

    from kvproof.harness.adapters.vllm_engine import models

    ModelRegistry.register_model("ShadowForCausalLM", models.ShadowForCausalLM)
    ModelRegistry.register_model("ShadowHybridForCausalLM", models.ShadowHybridForCausalLM)
    ModelRegistry.register_model("ShadowStagedForCausalLM", models.ShadowStagedForCausalLM)
    for draft in ("EagleShadowForCausalLM", "MiMoMTPModel"):
        ModelRegistry.register_model(draft, models.ShadowForCausalLM)
