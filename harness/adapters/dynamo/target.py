"""Dynamo 1.6.1: `RadixTree`, the index by which its router knows the caches of workers.

A router manages no engine blocks, so the block manager's verbs are off: the suite `router` tests
it.

Engine environment only; the engine is imported when a target is made.
"""

from __future__ import annotations

import importlib.metadata
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import drift_of_calls, found_drift, refuse
from kvproof.harness.adapters.refusals import WithoutBlocks
from kvproof.harness.contract.differences import Difference
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Target, TargetConfig

__all__ = ["differences", "make_target"]

VERSIONS = ("1.6.1",)
"""The releases that this adapter was written for."""

_SIGNATURES = {
    "RadixTree.find_matches": "self sequence early_exit",
    "RadixTree.apply_event": "self worker_id kv_cache_event_bytes",
    "RadixTree.remove_worker": "self worker_id",
    "RadixTree.dump_tree_as_events": "self",
}
"""Callable -> its expected parameters."""


@cache
def engine() -> Any:
    """Everything used of Dynamo. Its log would have a line for each event that it skips."""
    os.environ.setdefault("DYN_LOG", "off")
    from dynamo._core import RadixTree

    return SimpleNamespace(RadixTree=RadixTree)


def version() -> str:
    """The release that is installed."""
    return importlib.metadata.version("ai-dynamo-runtime").partition("+")[0]


@cache
def differences() -> tuple[Difference, ...]:
    """Differences between the installed Dynamo and the expected interface."""
    return found_drift(version(), VERSIONS, engine, _compared)


def _compared(found: Any) -> tuple[Difference, ...]:
    known = version() in VERSIONS
    return drift_of_calls(found, known=known, signatures=_SIGNATURES, accepted={})


@cache
def profile() -> Profile:
    """Profile of the installed release."""
    return Profile(
        engine="dynamo",
        version=version(),
        block_sizes=(16,),
        blocks=False,
        component_suites={"router": "kvproof.harness.adapters.dynamo.router:router"},
        unsupported={"blocks": "a router knows of blocks, it hands none out"},
    )


def make_target(config: TargetConfig) -> Target:
    """Target of the installed Dynamo, for any pool. Raises RuntimeError for another release."""
    del config
    refuse("Dynamo", differences())
    return WithoutBlocks(profile())
