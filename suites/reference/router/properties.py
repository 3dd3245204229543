"""Properties of the suite `router`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

SHARED = "two workers hold one prefix"
FORK = "a prompt of which a part is held"
CHURN = "an evicted block is stored again"
LOWER = "a run goes on in a lower tier"
CLEARED = "a cache with blocks is cleared"
ONE_TIER = "one of several tiers is cleared"
REPEATED = "a message is repeated"
LOST = "a message is lost"
OVERTAKEN = "a message overtakes another one"
REPLAYED = "missing messages are sent again"
WHOLE = "a whole cache is sent in place of missing messages"
RESTARTED = "a worker with blocks starts anew"
LATE = "a message arrives after its worker's end"
LEFT = "a worker with blocks ends"
TWICE = "a block that is cached twice leaves once"
GAP = "a block leaves before one that follows it"
CLOSED = "a block returns before one that followed it"
COPIED = "a router is copied"
RANKS = "one of two ranks changes"

ALONE = "events_change_their_own_worker_alone"
ASKED = "what_is_missing_is_asked_for"
BEYOND = "no_worker_is_offered_for_what_it_lacks"
CLEAR = "a_cleared_cache_is_not_offered"
COPY = "a_copied_router_offers_the_same"
HELD = "what_a_worker_holds_is_offered"
OUTLIVED = "nothing_outlives_its_start"
REPEAT = "repeated_messages_change_nothing"

PROPERTIES = table(
    vars(),
    """
no_worker_is_offered_for_what_it_lacks | D5 | FORK CHURN LOST OVERTAKEN | by brute force
    a worker is offered for blocks that it held after its newest message that has arrived
    why: prompts are sent to a worker that has evicted their prefix, and compute it all again
what_a_worker_holds_is_offered | D5 | SHARED CHURN LOWER REPLAYED WHOLE | by brute force
    a worker whose messages have all arrived is offered for all that it holds, tier by tier
    why: a prefix is computed on a second worker although the first one holds it
    - TWICE GAP CLOSED
events_change_their_own_worker_alone | D5 | SHARED RANKS | by brute force
    a message of one worker, or of one of its ranks, changes no other one's offers
    why: an eviction on one worker hides the same prefix on all others
what_is_missing_is_asked_for | W8 | LOST OVERTAKEN | by brute force
    a router that gets a message early names exactly the messages that are missing before it
    why: one lost datagram leaves the router wrong about a worker until that is restarted
repeated_messages_change_nothing | W8 | REPEATED | by brute force
    a message that arrives again changes no offer
    why: a replay counts blocks twice, and the router believes in them after their eviction
nothing_outlives_its_start | D5 W8 | RESTARTED LEFT LATE | by brute force
    a worker that ended or started anew is offered for nothing of its earlier start
    why: after a crash all prompts go to the worker that has lost its cache
a_cleared_cache_is_not_offered | D5 | CLEARED ONE_TIER | by brute force
    a worker is not offered for blocks of a tier that it cleared
    why: after new weights the router prefers the worker whose cache was emptied for them
a_copied_router_offers_the_same | D5 | COPIED | by metamorphic pair
    a router that is made from a dump of another one offers the same, now and after more messages
    why: each replica of the router sends one prompt to another worker
""",
)
