"""Properties of every object store."""

from __future__ import annotations

from kvproof.suites.framework.property import table

READ = "a client reads what another one stored"
AGAIN = "an object is stored again"
EVICTED = "an object is evicted"
HELD = "an object is under two leases"
DROPPED = "an object is dropped under a lease"
GONE = "a dropped object was there"
CLEARED = "a store with objects is cleared"
LEFT_OUT = "an object finds no room"
RESTARTED = "a store with objects is restarted"

PROPERTIES = table(
    vars(),
    """
an_object_is_whole_or_not_there | G7 | READ AGAIN | by shadow memory
    a read returns all bytes that were stored under its key
    why: a connector loads a truncated object, and the end of the prompt is noise
what_is_stored_is_there | G7 | AGAIN
    a store returns requested keys, which a lookup then finds
    why: a store reports success, yet the prefix is never found, and every hit is lost
lookup_and_acquire_agree | G7 | READ
    an object is acquired exactly if a lookup finds it
    why: the scheduler counts on a hit that the load then cannot deliver, and requests stall
a_lease_holds_its_bytes | G8 | HELD DROPPED
    bytes under a lease never change
    why: another store call rewrites an object in the middle of its transfer to the GPU
objects_go_only_for_room | G8 | READ | by shadow memory
    no object is lost without a drop while all of them fit
    why: prefixes disappear from a store that is half empty
what_was_dropped_is_gone | H6 | GONE CLEARED | by shadow memory
    dropped or cleared objects are not found until they are stored again
    why: clearing the store after a weight update leaves old pages that new requests hit
the_status_counts_what_is_there | G8 | READ
    the status counts objects, bytes and leased objects correctly
    why: alerts on a full or leaking store never fire, or fire without a cause
""",
)


def needed(*, bounded: bool, restarts: bool) -> set[str]:
    """Return the situations that an exploration of a store must meet."""
    always = {situation for prop in PROPERTIES for situation in prop.situations}
    return always | ({EVICTED} if bounded else set()) | ({RESTARTED} if restarts else set())
