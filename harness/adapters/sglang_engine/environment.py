"""What SGLang needs of its process to start on a CPU without weights. Engine environment only.

No file of SGLang is changed. Empty modules stand in for packages that its light environment lacks.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
from functools import cache
from typing import Any

from kvproof.harness.adapters.sglang import stubs

_MODELS = "kvproof.harness.adapters.sglang_engine.models"
_MORE = ("einops", "fastapi", "setproctitle", "uvicorn")
"""Packages that the Scheduler's modules import, beside those of the cache manager."""
_TRITON = "3.5.0"
"""A version that modules of kernels compare when they are imported; no kernel runs."""
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "SGLANG_ENABLE_WAR_BARRIER": "1",
    "SGLANG_EXTERNAL_MODEL_PACKAGE": _MODELS,
    "SGLANG_USE_CPU_ENGINE": "1",
}
"""The official hook for a model of one's own, and the barrier that CUDA has and a CPU has not."""


@cache
def install() -> None:
    """Prepare the process. To be called before SGLang is imported."""
    os.environ.update(_ENVIRONMENT)
    logging.disable(logging.WARNING)
    missing = stubs.install(more=_MORE)
    if "triton" in missing:
        importlib.import_module("triton").__version__ = _TRITON
    hub: Any = importlib.import_module("huggingface_hub")
    hub.HfFileSystem = object  # it is loaded late and needs fsspec; no file is fetched
    importlib.import_module("sglang.srt.managers.scheduler")
    gc.collect()
    gc.freeze()  # each start of an engine collects garbage: not in these modules


def forget_groups() -> None:
    """End the process groups of the last engine, as SGLang does when an engine shuts down."""
    from sglang.srt.distributed import parallel_state

    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()
