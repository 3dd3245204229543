"""The job by which the suite `engine` reaches LMDeploy: calls of a history, answers in order.

Imported in the engine's environment only.
"""

from __future__ import annotations

import atexit
from functools import cache
from typing import Any

from kvproof.harness.adapters.lmdeploy_engine import environment
from kvproof.harness.adapters.lmdeploy_engine.traits import traits
from kvproof.harness.contract.whole_engine import EngineConfig
from kvproof.harness.whole_engine.driver import Driver
from kvproof.harness.whole_engine.job import Job


def engine(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out the calls of `harness.whole_engine.job`."""
    call = job().call
    return {"answers": [call(verb, keywords) for verb, keywords in arguments["calls"]]}


@cache
def job() -> Job:
    """Return this process' engines."""
    environment.install()
    found = Job(open_driver, traits)
    atexit.register(found.close)  # tasks of an open loop outlive asyncio otherwise
    return found


def open_driver(config: EngineConfig) -> Driver:
    """Start an engine, with a history of its own."""
    from kvproof.harness.adapters.lmdeploy_engine.engine import start

    return Driver(start, config)
