"""Properties of the suite `hits`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

LIMITS = {
    "aligned": "a hit limited by unequal blocks",
    "span": "a hit limited by a span",
    "full": "a hit limited by full attention",
    "window": "a hit limited by a window",
    "chunk": "a hit limited by a chunk",
    "state": "a hit limited by a state",
    "draft": "a hit limited by a draft group",
}
"""The limit that lowered a length last -> the situation."""

TWO_ROUNDS = "a limit is applied again after another one"
HOLE = "a hit over a hole that is no longer seen"
ODD_CHUNK = "a hit with a chunk that is no whole number of blocks"
TINY_WINDOW = "a hit with a window of one token"
DRAFTS = "a hit with several draft groups"
MIXED = "a hit with blocks of three sizes"

PROPERTIES = table(
    vars(),
    """
the_length_is_valid_in_every_group | X1 X2 | by brute force
    every group has all that computing the position after the hit reads
    why: a hit reads missing pages in some layers, and the answer is fluent but wrong
    - LIMITS HOLE ODD_CHUNK TINY_WINDOW MIXED
the_hit_is_the_longest_valid_length | X2 | by brute force
    the hit is the length that trying every length from the top finds first
    why: hybrid models reuse less than they could, so long prompts start slowly
    - LIMITS TWO_ROUNDS HOLE ODD_CHUNK TINY_WINDOW DRAFTS MIXED
the_length_is_outside_every_span | M2
    a hit never ends strictly inside a media span
    why: reuse stops in the middle of an image, and the model sees it half
    - a hit limited by a span
    - TWO_ROUNDS
several_draft_groups_cost_one_unit | X3 | by metamorphic pair
    one more draft group, of a window of one token, changes no hit
    why: each further draft layer shortens every hit, so speculative decoding makes prompts
    slower
    - a hit limited by a draft group
    - DRAFTS
the_order_of_groups_does_not_matter | X2 | TWO_ROUNDS MIXED | by metamorphic pair
    visiting the groups in the opposite order gives the same hit
    why: hit rates change with the order of layers in a configuration file
lost_tokens_add_up | V3 | LIMITS
    what the single limits took off adds up to the limit less the hit
    why: the report on lost cache tokens blames the wrong limit, and tuning follows it
""",
)
