"""Jobs that tests run where an engine lives; imported in its environment."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


def vllm_drift(arguments: dict[str, Any]) -> dict[str, Any]:
    """Differences of the installed vLLM from a table changed by `arguments`."""
    return _drift("kvproof.harness.adapters.vllm.api", arguments, table="SIGNATURES")


def sglang_drift(arguments: dict[str, Any]) -> dict[str, Any]:
    """Differences of the installed SGLang from a table changed by `arguments`."""
    return _drift("kvproof.harness.adapters.sglang.api", arguments)


def lmdeploy_drift(arguments: dict[str, Any]) -> dict[str, Any]:
    """Differences of the installed LMDeploy from a table changed by `arguments`."""
    return _drift("kvproof.harness.adapters.lmdeploy.api", arguments)


def lmcache_drift(arguments: dict[str, Any]) -> dict[str, Any]:
    """Differences of the installed LMCache from a table changed by `arguments`."""
    return _drift("kvproof.harness.adapters.lmcache.api", arguments)


def lmcache_open_files(arguments: dict[str, Any]) -> dict[str, Any]:
    """Open files after as many engines as `engines` says, in turn, have come and gone."""
    made: Any = import_module("kvproof.harness.adapters.lmcache.server")
    server = made.Server(room=1 << 16, eviction="LRU", separate=False)
    table = {"blocks": 8, "block": 4, "row": 8, "window": -1, "type": "bfloat16"}
    counts = []
    for _ in range(arguments["engines"]):
        server.engine(instance=0, tables=[table])
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    server.close()
    return {"counts": counts}


def _drift(module: str, arguments: dict[str, Any], *, table: str = "_SIGNATURES") -> dict[str, Any]:
    """`arguments`: name -> parameters, as in the table of the module."""
    api: Any = import_module(module)
    signatures: dict[str, str] = getattr(api, table)
    kept = dict(signatures)
    signatures.update(arguments)
    try:
        return {"differences": [str(each) for each in api.differences.__wrapped__()]}
    finally:
        signatures.update(kept)
