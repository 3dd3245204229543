"""Properties of the suite `cost`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

FORMS = ("bytes", "bytearray", "array", "list", "tuple", "numpy")
"""Forms of token buffers."""

IN_FORM = {form: f"tokens come as {form}" for form in FORMS}
HIT = "a prompt hits several blocks"
FORKED = "a prompt leaves another one"
PINNED = "a prompt is pinned"
EVICTED = "several blocks are evicted"
LONG = "prompts of one, two and four times the length"

PROPERTIES = table(
    vars(),
    """
the_index_keeps_no_buffer_alive | T4 | IN_FORM HIT FORKED PINNED
    after a request no reference to its token buffer is left
    why: every prompt ever served stays in host memory, and the server dies after days
cost_does_not_grow_with_the_cache | T5 | HIT FORKED | by metamorphic pair
    serving and looking up cost the same however much else is cached
    why: a large cache makes each request slower to schedule than no cache at all
eviction_does_not_grow_with_the_cache | T5 B3 | EVICTED | by metamorphic pair
    evicting a block costs the same however much else is cached
    why: once the cache is full, every step stalls in a search for blocks to evict
cost_is_linear_in_the_request | T5 | LONG | by metamorphic pair
    each further block of a prompt takes no more steps than the one before
    why: a very long prompt blocks the scheduler for seconds, and all other streams freeze
""",
)
