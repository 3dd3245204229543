"""Properties of the cache server and its client: the suite `store`."""

from __future__ import annotations

from kvproof.harness.oracle.violation import BRUTE_FORCE, SHADOW
from kvproof.suites.framework.property import Property

LATE = "an object is read after others wrote for a while"
UNWRITTEN = "an object is left out of a commit"
LOOKED = "an object that is being written is looked up"
HELD = "an object is dropped under a lease"
FILLED = "there is no free extent for an object"
DIED = "a client dies with leases or reservations"
HALF = "a client dies in the middle of a copy"
SILENT = "what a silent client was writing is stored by another"
WROTE_LATE = "a silent client goes on writing"
EVICTED = "objects are evicted"
SEVERAL = "one of several idle objects is evicted"
FULL = "there is no room, though something is idle"
WITHDRAWN = "an object is dropped while it is written"
OTHER = "a namespace is cleared beside another one"
PINNED = "objects are pinned by two names"
NOISE = "a malformed message comes"
LOST = "the answer to a reservation is lost"
RESTARTED = "the server is lost with leases and reservations"
LEFT = "a client leaves what it pinned"
FLIPPED = "an object whose bytes changed is read"

PROPERTIES = (
    Property(
        "readers_see_what_was_written",
        ("G7", "G8"),
        "every byte that is read was written before, by the client that stored the object",
        (LATE, UNWRITTEN),
        oracle=SHADOW,
    ),
    Property(
        "nothing_is_found_before_its_commit",
        ("G7",),
        "no client finds an object before its commit",
        (LOOKED,),
    ),
    Property(
        "leased_bytes_do_not_change",
        ("G7", "G8"),
        "bytes under a lease, and bytes that a client has reserved, change by that client alone",
        (HELD, WROTE_LATE),
        oracle=SHADOW,
    ),
    Property(
        "every_byte_has_one_owner",
        ("G8",),
        "objects of any state overlap nowhere",
        (EVICTED, SILENT),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "dead_clients_hold_nothing",
        ("G7", "G8"),
        "a client that is gone for certain holds no leases and no reservations",
        (DIED, HALF),
    ),
    Property(
        "silent_writers_lose_keys_but_keep_memory",
        ("G8",),
        "others may store the objects of a silent writer, and its late commit publishes nothing",
        (SILENT,),
    ),
    Property(
        "eviction_is_lru_and_on_demand",
        ("G8",),
        "only idle objects are evicted, in the order of their last use, and only for another one",
        (SEVERAL,),
    ),
    Property(
        "full_means_no_evictable_bytes",
        ("G8", "B4"),
        "an object is refused if it would not fit without all idle ones, and then evicts nothing",
        (FULL, FILLED),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "what_was_dropped_stays_gone",
        ("H6",),
        "dropped and cleared objects are gone, those being written too, other namespaces' are not",
        (WITHDRAWN, OTHER),
    ),
    Property(
        "the_report_adds_up",
        ("G8",),
        "objects and bytes of every state are counted correctly",
        (PINNED, HELD, SILENT),
    ),
    Property(
        "malformed_messages_change_nothing",
        ("G8",),
        "every message is answered; a malformed one is refused and changes nothing",
        (NOISE,),
    ),
    Property(
        "a_call_happens_once",
        ("G8",),
        "a call whose answer was lost is repeated and not carried out twice",
        (LOST,),
    ),
    Property(
        "leases_do_not_survive_a_server_restart",
        ("G8",),
        "leases and reservations of a lost server are gone and block nothing",
        (RESTARTED,),
    ),
    Property(
        "pins_outlive_their_client",
        ("G8",),
        "pinned objects are not evicted, within the share of pins, until their name gives them up",
        (LEFT, PINNED),
    ),
    Property(
        "changed_bytes_are_not_read",
        ("G7",),
        "a client that verifies gets only objects with the bytes of their commit",
        (FLIPPED,),
        oracle=SHADOW,
    ),
)
