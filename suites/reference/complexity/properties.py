"""Properties of the suite `cost`."""

from __future__ import annotations

from kvproof.harness.oracle.violation import METAMORPHIC
from kvproof.suites.framework.property import Property

FORMS = ("bytes", "bytearray", "array", "list", "tuple", "numpy")
"""Forms of token buffers."""

IN_FORM = {form: f"tokens come as {form}" for form in FORMS}
HIT = "a prompt hits several blocks"
FORKED = "a prompt leaves another one"
PINNED = "a prompt is pinned"
EVICTED = "several blocks are evicted"
LONG = "prompts of one, two and four times the length"

PROPERTIES = (
    Property(
        "the_index_keeps_no_buffer_alive",
        ("T4",),
        "after a request no reference to its token buffer is left",
        (*IN_FORM.values(), HIT, FORKED, PINNED),
    ),
    Property(
        "cost_does_not_grow_with_the_cache",
        ("T5",),
        "serving and looking up cost the same however much else is cached",
        (HIT, FORKED),
        oracle=METAMORPHIC,
    ),
    Property(
        "eviction_does_not_grow_with_the_cache",
        ("T5", "B3"),
        "evicting a block costs the same however much else is cached",
        (EVICTED,),
        oracle=METAMORPHIC,
    ),
    Property(
        "cost_is_linear_in_the_request",
        ("T5",),
        "each further block of a prompt takes no more steps than the one before",
        (LONG,),
        oracle=METAMORPHIC,
    ),
)
