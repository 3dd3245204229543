"""Dynamo's interface to the adapter, and its drift. Engine environment only."""

from __future__ import annotations

import importlib.metadata
import os
from functools import cache
from types import SimpleNamespace
from typing import Any

from kvproof.harness.adapters.drift import drift_of_calls, found_drift, refuse
from kvproof.harness.contract.differences import Difference

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


def check_drift() -> None:
    """Raise RuntimeError with the differences if the engine has drifted."""
    refuse("Dynamo", differences())
