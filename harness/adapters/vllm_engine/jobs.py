"""The job by which the suite `engine` reaches vLLM: calls of a history, answers in order.

Imported in the engine's environment only.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from kvproof.harness.adapters.vllm_engine import plugin
from kvproof.harness.adapters.vllm_engine.traits import traits
from kvproof.harness.contract.whole_engine import EngineConfig
from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits
from kvproof.harness.whole_engine.driver import Driver
from kvproof.harness.whole_engine.job import Job
from kvproof.harness.whole_engine.linked.driver import LinkedDriver


def engine(arguments: dict[str, Any]) -> dict[str, Any]:
    """Carry out the calls of `harness.whole_engine.job`."""
    call = job().call
    return {"answers": [call(verb, keywords) for verb, keywords in arguments["calls"]]}


def connect(arguments: dict[str, Any]) -> dict[str, Any]:
    """Let every engine of this process run with a connector class of the user's own.

    `connector`: package.module:Class; `options`: its settings; `path`: folders to import from,
    after all others. Returns the problem and the next step, both empty if there is none.
    """
    sys.path += [each for each in arguments["path"] if each not in sys.path]
    job()
    from kvproof.harness.adapters.vllm_engine.own.chosen import choose

    problem, hint = choose(arguments["connector"], arguments["options"])
    return {"problem": problem, "hint": hint}


@cache
def job() -> Job:
    """Return this process' engines, with vLLM's plugin installed."""
    plugin.install()
    return Job(open_driver, declared)


def declared() -> WholeEngineTraits:
    """Return the traits of the installed release, and of the packages installed with it."""
    from kvproof.harness.adapters.vllm_engine import releases
    from kvproof.harness.adapters.vllm_engine.nixl import connector as nixl
    from kvproof.harness.adapters.vllm_engine.own_traits import traits_with
    from kvproof.harness.adapters.vllm_engine.stores import files, lmcache

    connectors = {
        "nixl": nixl.refused(),
        "example": files.refused(),
        "lmcache": lmcache.refused(),
    }
    more = {name: why for name, why in connectors.items() if why}
    return traits_with(traits({**releases.lacking(), **more}))


def open_driver(config: EngineConfig) -> Driver:
    """Start an engine, with a history of its own."""
    from kvproof.harness.adapters.vllm_engine.engine import start

    return LinkedDriver(start, config) if config.peer else Driver(start, config)
