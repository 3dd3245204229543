# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""A block that leaves before its successor takes that along.

Needs ai-dynamo-runtime 1.6.1, without its requirements; runs in a second.
"""

import json

from dynamo._core import RadixTree

FIRST, SECOND = 11, 12
"""Keys of two blocks."""


def stored(parent, *blocks):
    """Return an event: keys with the hashes of their tokens."""
    found = [{"block_hash": key, "tokens_hash": tokens} for key, tokens in blocks]
    return {"stored": {"parent_hash": parent, "blocks": found}}


def offered(*events):
    """Return for how many of the two blocks worker 7 is offered."""
    tree = RadixTree()
    for number, data in enumerate(events):
        tree.apply_event(7, json.dumps({"event_id": number, "data": data}).encode())
    return tree.find_matches([1, 2]).scores.get((7, 0), 0)


chain = stored(None, (FIRST, 1), (SECOND, 2))
leaves = {"removed": {"block_hashes": [FIRST]}}
returns = stored(None, (FIRST, 1))
print("blocks offered:", before := offered(chain))
print("after the first one left:", offered(chain, leaves))
print("after it returned:", after := offered(chain, leaves, returns))
assert before == 2
assert after == 1, "the second block never left"
