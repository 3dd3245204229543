# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""Two workers name the same two blocks by unlike keys; the second one's removals are ignored.

Needs ai-dynamo-runtime 1.6.1, without its requirements; runs in a second.
"""

import json

from dynamo._core import RadixTree

TOKENS = [1, 2]
KEYS = {7: [11, 12], 8: [21, 22]}
"""Worker -> its keys of the two blocks."""

tree = RadixTree()


def applied(worker, data):
    """Apply an event; return the error, which Dynamo's indexers log."""
    try:
        tree.apply_event(worker, json.dumps({"event_id": 0, "data": data}).encode())
    except RuntimeError as error:
        return str(error)
    return ""


for worker, keys in KEYS.items():
    blocks = [{"block_hash": k, "tokens_hash": t} for k, t in zip(keys, TOKENS, strict=True)]
    assert not applied(worker, {"stored": {"parent_hash": None, "blocks": blocks}})
error = applied(8, {"removed": {"block_hashes": [22, 21]}})
print("worker 8 removes both blocks:", error)
print("offered:", scores := tree.find_matches(TOKENS).scores)
assert scores[8, 0] == 2, "worker 8 has removed both"
