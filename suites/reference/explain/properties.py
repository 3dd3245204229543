"""Properties of the suite `explain`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

LOST = {
    "alignment": "tokens are lost to alignment",
    "span": "tokens are lost to a span",
    "draft": "tokens are lost to a draft group",
    "eviction": "tokens are lost to eviction",
    "window": "tokens are lost to a window",
    "chunk": "tokens are lost to a chunk",
    "no_checkpoint": "tokens are lost because no state was saved",
    "no_row": "tokens are lost because there was no room for a state",
    "checkpoint_evicted": "tokens are lost because a checkpoint is gone",
    "experts": "tokens are lost to missing expert rows",
    "own_pins": "tokens are lost to the pins of the hit",
    "access": "tokens are lost because the request may not read",
}
"""Limit -> the situation that it shortened a hit."""
SEVERAL = "three limits take tokens from one request"
AFTER_RESET = "a prompt of an earlier epoch is repeated"
UNSTORED = "a prompt that was not stored is repeated"

PROPERTIES = table(
    vars(),
    """
explained_causes_add_up | V3 | LOST SEVERAL AFTER_RESET UNSTORED
    the causes of a short hit add up to the longest prefix ever computed less the hit
    why: the explanation of a short hit leaves tokens unexplained or counts some twice
lifting_a_limit_raises_the_hit | V3 | LOST | by brute force
    each limit lifted on the same content, last first, gives back exactly its share
    why: an operator removes the limit that was blamed, and the hit stays as short as before
""",
)
