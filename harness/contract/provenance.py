"""Each verb, decision and observation of a target is the engine's own or the adapter's.

It runs inside the engine's environment: standard library of Python 3.10.
"""

from __future__ import annotations

from collections.abc import Mapping

ACTIONS = {
    "match": "the hit of an admission",
    "allocate": "the blocks of a step",
    "refusal": "a call that does not fit now is refused",
    "arrival": "a request that can never fit is refused",
    "publish": "what a step computed becomes reusable",
    "release": "the blocks of a request go back",
    "unknown ids": "the release of an unknown request",
    "evict": "eviction on request",
    "reset": "everything cached is forgotten",
    "busy": "a reset is refused while requests run",
    "lookup": "a look-up without admission",
    "batch": "the padded tables of a batch",
    "kernel tables": "the pages that the worker reads",
    "media hashes": "the content hash of an image",
    "states": "where states are copied and saved",
    "experts": "expert rows of a request",
    "free count": "the count of free blocks",
    "held count": "the count of held blocks, and their holders",
    "cached count": "the count of cached blocks",
    "statistics": "hits and queries",
}
"""Verb, decision or observation -> its description."""


def declared(own: str, **adapter: str) -> dict[str, str]:
    """Return action -> empty for the engine's own, else the adapter's way of doing it.

    `own` names actions, with commas between them; keywords have `_` for a space. Raises ValueError
    for an action that does not exist or has two sides.
    """
    found = dict.fromkeys((name.strip() for name in own.split(",")), "")
    theirs = {name.replace("_", " "): how for name, how in adapter.items()}
    wrong = sorted((found.keys() & theirs) | ({*found, *theirs} - ACTIONS.keys()))
    if wrong:
        raise ValueError(f"actions {wrong} do not exist, or are on both sides")
    return {**found, **theirs}


def by_adapter(provenance: Mapping[str, str]) -> dict[str, str]:
    """Return the actions that the adapter does, with how."""
    return {name: how for name, how in provenance.items() if how}
