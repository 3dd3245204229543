"""Properties of the cache server and its client: the suite `store`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

LATE = "an object is read after others wrote for a while"
UNWRITTEN = "an object is left out of a commit"
LOOKED = "an object that is being written is looked up"
HELD = "an object is dropped under a lease"
FILLED = "there is no free extent for an object"
DIED = "a client dies with leases or reservations"
HALF = "a client dies in the middle of a copy"
SILENT = "another client stores an object of a silent writer"
WROTE_LATE = "a silent client goes on writing"
EVICTED = "objects are evicted"
SEVERAL = "one of several idle objects is evicted"
FULL = "there is no room, though objects are idle"
WITHDRAWN = "an object is dropped while it is written"
OTHER = "one of two namespaces is cleared"
PINNED = "objects are pinned by two names"
TWICE = "a lease or a reservation is given back twice"
NOISE = "a malformed message comes"
LOST = "the answer to a reservation is lost"
RESTARTED = "the server is lost with leases and reservations"
LEFT = "a client leaves, and its pins stay"
FLIPPED = "an object whose bytes changed is read"

PROPERTIES = table(
    vars(),
    """
readers_see_what_was_written | G7 G8 | LATE UNWRITTEN | by shadow memory
    every byte that is read was written before, by the client that stored the object
    why: two engines on one cache server read a mixture of two prefixes
nothing_is_found_before_its_commit | G7 | LOOKED
    no client finds an object before its commit
    why: a second engine loads a prefix that is half written and answers nonsense
leased_bytes_do_not_change | G7 G8 | HELD WROTE_LATE | by shadow memory
    bytes under a lease, and bytes that a client has reserved, change by that client alone
    why: a prefix changes while a client copies it, and that client's answer is corrupted
every_byte_has_one_owner | G8 | EVICTED SILENT | by brute force
    objects of any state overlap nowhere
    why: two stored prefixes overwrite each other, and both are later served
dead_clients_hold_nothing | G7 G8 | DIED HALF
    a client that is gone for certain holds no leases and no reservations
    why: each crashed engine leaves shared memory locked until the server is restarted
silent_writers_lose_keys_but_keep_memory | G8 | SILENT
    others may store the objects of a silent writer, and its late commit publishes nothing
    why: one hung engine keeps a popular prefix out of the store for all others
eviction_is_lru_and_on_demand | G8 | SEVERAL
    only idle objects are evicted, in the order of their last use, and only for another one
    why: the shared store drops prefixes without need, and the whole fleet recomputes them
full_means_no_evictable_bytes | G8 B4 | FULL FILLED | by brute force
    an object is refused if it would not fit without all idle ones, and then evicts nothing
    why: stores fail although idle objects could go, or a refused store empties the cache
what_was_dropped_stays_gone | H6 | WITHDRAWN OTHER
    dropped and cleared objects are gone, those being written too, other namespaces' are not
    why: a deleted prefix reappears when a slow writer finishes, in spite of the deletion
the_report_adds_up | G8 | PINNED HELD SILENT
    objects and bytes of every state are counted correctly
    why: the server reports free space that it does not have, and operators size it wrongly
malformed_messages_change_nothing | G8 | NOISE
    every message is answered; a malformed one is refused, counted once, and changes nothing
    why: one client of another version crashes the shared server for the whole fleet
a_call_happens_once | G8 | LOST TWICE
    a call is sent before its answer is awaited; none that is repeated is done twice, nor a release
    why: a network hiccup counts a release twice and frees memory still in use
leases_do_not_survive_a_server_restart | G8 | RESTARTED
    leases and reservations of a lost server are gone and block nothing
    why: after a server restart part of its memory is never usable again
pins_outlive_their_client | G8 | LEFT PINNED
    pinned objects are not evicted, within the share of pins, until their name gives them up
    why: a pinned system prompt vanishes as soon as its engine restarts
changed_bytes_are_not_read | G7 | FLIPPED | by shadow memory
    a client that verifies gets only objects with the bytes of their commit
    why: a flipped bit in shared memory turns into a wrong answer without any error
""",
)
