"""The job by which the suite `engine` reaches vLLM on a card. Imported in its environment only."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from kvproof.harness.adapters.vllm_live.traits import declared
from kvproof.harness.contract.whole_engine import EngineConfig
from kvproof.harness.whole_engine.driver import Driver
from kvproof.harness.whole_engine.job import Job

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_PLUGINS": "",
    "VLLM_KV_CACHE_LAYOUT": "HND",
    "HF_HUB_OFFLINE": "1",
    "PYTHONHASHSEED": "0",
}
"""One process, no plugin, no download, keys that are equal in every process, and the layout that
tiers ask for."""


def engine(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out the calls of `harness.whole_engine.job`."""
    call = job().call
    return {"answers": [call(verb, keywords) for verb, keywords in arguments["calls"]]}


def plant(arguments: dict[str, Any]) -> dict[str, Any]:
    """Plant a fault of `faults` in the launches of the engines from now on; "" plants none."""
    job()
    from kvproof.harness.adapters.vllm_live import faults

    faults.CHOSEN = arguments["fault"]
    return {}


def oracles(_: dict[str, Any]) -> dict[str, Any]:
    """Return the results of each oracle for the last history, as JSON."""
    from kvproof.harness.adapters.vllm_live.engine import LAST

    return dict(LAST[-1].verdicts()) if LAST else {}


@cache
def job() -> Job:
    """Return this process' engines."""
    os.environ.update(ENVIRONMENT)
    return Job(open_driver, declared)


def open_driver(config: EngineConfig) -> Driver:
    """Start an engine, with a history of its own; its worker may be there already."""
    from kvproof.harness.adapters.vllm_live.engine import standing, start

    standing(config)  # by the real clock
    return Driver(start, config)
