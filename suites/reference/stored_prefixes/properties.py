"""Properties of a server that keeps chunks of prefixes for engines."""

from __future__ import annotations

from kvproof.harness.oracle.violation import BRUTE_FORCE, SHADOW
from kvproof.suites.framework.property import Property

HIT = "a prefix is found"
MISS = "nothing of a prefix is found"
FORK = "a prefix is found that another sequence has stored"
GAPS = "a prefix is found though a window's early chunks are not there"
TENANT = "another tenant has stored the same tokens"
AGAIN = "a chunk is stored that is there"
EMPTY = "a window has left all of a chunk that is stored"
PARTLY = "a window has left a part of a chunk that is stored"
LATER = "an engine has the first chunks of what was found"
SKIP = "a retrieve skips blocks"
NULLS = "a retrieve has null blocks where a window no longer looks"
OTHER = "an engine asks for what one has stored whose numbers have another type"
HELD = "chunks are dropped or evicted between a look-up and its retrieve"
EVICTED = "objects are evicted to make room"
GIVEN_UP = "a look-up is given up"
SHORT_STORE = "a store has too few blocks"
SHORT_TAKE = "a retrieve has too few blocks"
WRONG_STORE = "a store names a block that does not exist"

PROPERTIES = (
    Property(
        "prefix_hits_are_the_longest",
        ("X2", "G10"),
        "a look-up finds the longest prefix of which every group has what its window needs",
        (HIT, MISS, FORK, GAPS, TENANT, EVICTED),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "prefix_bytes_are_those_computed",
        ("G7", "G5"),
        "a retrieve writes the content of its tokens, into its blocks and nowhere else",
        (HIT, FORK, LATER, SKIP, TENANT),
        oracle=SHADOW,
    ),
    Property(
        "what_a_window_left_is_not_served",
        ("G10",),
        "blocks that were null when a chunk was stored are never served inside a window",
        (EMPTY, PARTLY, HIT),
        oracle=SHADOW,
    ),
    Property(
        "null_blocks_are_not_written",
        ("G10",),
        "a retrieve leaves the null block as it is",
        (NULLS,),
        oracle=SHADOW,
    ),
    Property(
        "dtypes_are_part_of_the_key",
        ("H6",),
        "stored bytes are never read as numbers of another type",
        (OTHER,),
        oracle=SHADOW,
    ),
    Property(
        "a_store_tells_what_it_kept",
        ("G7",),
        "a store names the chunks that it added whole, and no others",
        (AGAIN, EMPTY),
    ),
    Property(
        "what_was_found_can_be_taken",
        ("G8",),
        "chunks found by a look-up stay until they are retrieved or given up",
        (HELD,),
    ),
    Property(
        "locks_end_with_their_request",
        ("G8",),
        "a finished request has no locks and no reservations",
        (HIT, GIVEN_UP),
    ),
    Property(
        "a_refused_call_leaves_nothing",
        ("G7", "G8"),
        "a store or a retrieve that fails leaves no lock, no room taken and no object",
        (SHORT_STORE, SHORT_TAKE, WRONG_STORE),
    ),
)
