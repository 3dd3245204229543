"""Properties of the suite `pool`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

GROWN = "a pool grows while requests hold blocks"
SHRUNK = "a pool shrinks while requests hold blocks"
STOPPED = "a pool shrinks down to a block that is held"
EVICTED = "cached blocks are evicted to shrink a pool"
KEPT = "cached blocks outlive a shrink"
HIT = "a hit after the pool has changed"
IN_FLIGHT = "a pool shrinks while a step is in flight"
TOO_LONG = "a request is refused for good by the size of now"
FITS_NOW = "a request fits that the first size refused for good"

SHRINKS = "a_pool_shrinks_down_to_what_is_held"
ADDS_UP = "the_ids_of_a_pool_are_those_of_its_size"
HELD = "what_is_held_survives_a_change_of_size"
MUST = "a_shrink_evicts_no_more_than_it_must"
CONTENT = "hits_after_a_change_of_size_are_of_equal_prompts"
FITS = "a_request_fits_by_the_size_of_now"

PROPERTIES = table(
    vars(),
    """
a_pool_shrinks_down_to_what_is_held | Q6 | GROWN SHRUNK STOPPED EVICTED | by brute force
    a pool has the size that was asked for, or ends with the largest block that is held
    why: memory that an operator takes back stays taken, or a running request loses its blocks
the_ids_of_a_pool_are_those_of_its_size | Q6 B7 | GROWN SHRUNK IN_FLIGHT
    free, held and cached blocks add up to the size of now, and every id is below it
    why: a block beyond the memory that is left is handed out, and the device faults
what_is_held_survives_a_change_of_size | Q6 B2 | GROWN SHRUNK
    the tables of requests are the same before and after
    why: a running answer goes on from blocks that are given away
a_shrink_evicts_no_more_than_it_must | Q6 B3 | EVICTED KEPT STOPPED
    a shrink stops to evict as soon as no block above the new size is cached
    why: taking back a little memory empties the whole cache, and every prompt is computed again
hits_after_a_change_of_size_are_of_equal_prompts | Q6 T1 | HIT | by shadow memory
    a hit after a change of size has the blocks that its tokens were written to
    why: after a pool was resized, prompts are answered from blocks of other prompts
a_request_fits_by_the_size_of_now | Q6 B8 | TOO_LONG FITS_NOW | by brute force
    a request is refused for good if, and only if, it is longer than the pool of now
    why: a long prompt waits for ever in a pool that has shrunk, or is refused by one that has grown
""",
)
