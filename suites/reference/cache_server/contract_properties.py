"""Properties of every object store."""

from __future__ import annotations

from kvproof.harness.oracle.violation import SHADOW
from kvproof.suites.framework.property import Property

READ = "a client reads what another one stored"
AGAIN = "an object is stored that is there"
EVICTED = "an object is evicted"
HELD = "an object is under two leases"
DROPPED = "an object is dropped under a lease"
GONE = "a dropped object was there"
CLEARED = "a store with objects is cleared"
LEFT_OUT = "an object finds no room"
RESTARTED = "a store with objects is restarted"

PROPERTIES = (
    Property(
        "an_object_is_whole_or_not_there",
        ("G7",),
        "a read returns all bytes that were stored under its key",
        (READ, AGAIN),
        oracle=SHADOW,
    ),
    Property(
        "what_is_stored_is_there",
        ("G7",),
        "a store returns requested keys, which a lookup then finds",
        (AGAIN,),
    ),
    Property(
        "a_lookup_tells_the_truth",
        ("G7",),
        "an object is acquired exactly if a lookup says that it is there",
        (READ,),
    ),
    Property(
        "a_lease_holds_its_bytes",
        ("G8",),
        "bytes under a lease never change",
        (HELD, DROPPED),
    ),
    Property(
        "objects_go_only_for_room",
        ("G8",),
        "no object is lost without a drop while all of them fit",
        (READ,),
        oracle=SHADOW,
    ),
    Property(
        "what_was_dropped_is_gone",
        ("H6",),
        "dropped or cleared objects are not found until they are stored again",
        (GONE, CLEARED),
        oracle=SHADOW,
    ),
    Property(
        "the_status_counts_what_is_there",
        ("G8",),
        "the status counts objects, bytes and leased objects correctly",
        (READ,),
    ),
)


def needed(*, bounded: bool, restarts: bool) -> set[str]:
    """Return the situations that an exploration of a store must meet."""
    always = {situation for prop in PROPERTIES for situation in prop.situations}
    return always | ({EVICTED} if bounded else set()) | ({RESTARTED} if restarts else set())
