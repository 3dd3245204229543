"""Jobs that tests run where an engine lives; imported in its environment."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any


def drift(arguments: dict[str, Any]) -> dict[str, Any]:
    """Differences of an installed `engine` from its table, with some callables `changed`."""
    api: Any = import_module(f"kvproof.harness.adapters.{arguments['engine']}.api")
    signatures: dict[str, str] = getattr(api, "SIGNATURES", None) or api._SIGNATURES
    kept = dict(signatures)
    signatures.update(arguments.get("changed", {}))
    try:
        return {"differences": [str(each) for each in api.differences.__wrapped__()]}
    finally:
        signatures.update(kept)


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
