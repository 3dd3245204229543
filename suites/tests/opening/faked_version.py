"""Adapters whose engine says that it is another release: `faked_version:vllm` is that of vLLM."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

VERSION = "77.7.7"


def __getattr__(engine: str) -> Any:
    """Return the factory of an engine's adapter, after its metadata was changed."""
    if engine.startswith("__"):
        raise AttributeError(engine)
    asked, package = importlib.metadata.version, engine.replace("_engine", "")
    importlib.metadata.version = lambda name: VERSION if name == package else asked(name)
    return importlib.import_module(f"kvproof.harness.adapters.{engine}.target").make_target
