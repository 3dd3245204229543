"""Properties of a server that keeps chunks of prefixes for engines."""

from __future__ import annotations

from kvproof.suites.framework.property import table

HIT = "a prefix is found"
MISS = "nothing of a prefix is found"
FORK = "a prefix is found that another sequence has stored"
GAPS = "a prefix is found though a window's early chunks are not there"
TENANT = "another tenant has stored the same tokens"
AGAIN = "a chunk is stored again"
EMPTY = "a window has left all of a chunk that is stored"
PARTLY = "a window has left a part of a chunk that is stored"
LATER = "an engine has the first chunks of what was found"
SKIP = "a retrieve skips blocks"
NULLS = "a retrieve has null blocks where a window no longer looks"
OTHER = "an engine looks up chunks of an engine with another data type"
HELD = "chunks are dropped or evicted between a look-up and its retrieve"
EVICTED = "objects are evicted to make room"
GIVEN_UP = "a look-up is given up"
SHORT_STORE = "a store has too few blocks"
SHORT_TAKE = "a retrieve has too few blocks"
WRONG_STORE = "a store names a block that does not exist"

PROPERTIES = table(
    vars(),
    """
prefix_hits_are_the_longest | X2 G10 | HIT MISS FORK GAPS TENANT EVICTED | by brute force
    a look-up finds the longest prefix of which every group has what its window needs
    why: the shared store returns a shorter prefix than it holds, and long prompts start slowly
prefix_bytes_are_those_computed | G7 G5 | HIT FORK LATER SKIP TENANT | by shadow memory
    a retrieve writes the content of its tokens, into its blocks and nowhere else
    why: loading from the shared store damages a request or one of its neighbours
what_a_window_left_is_not_served | G10 | EMPTY PARTLY HIT | by shadow memory
    blocks that were null when a chunk was stored are never served inside a window
    why: a hit restores empty pages inside a window, and the latest context is forgotten
null_blocks_are_not_written | G10 | NULLS | by shadow memory
    a retrieve leaves the null block as it is
    why: every padded request in the engine starts to read leftovers of one load
dtypes_are_part_of_the_key | H6 | OTHER | by shadow memory
    stored bytes are never read as numbers of another type
    why: replicas of different precision share a store and read each other's bytes as numbers
a_store_tells_what_it_kept | G7 | AGAIN EMPTY
    a store names the chunks that it added whole, and no others
    why: the engine reports prefixes to the router that the store never took
what_was_found_can_be_taken | G8 | HELD
    chunks found by a look-up stay until they are retrieved or given up
    why: a found prefix is evicted before its load, and the request fails or hangs
locks_end_with_their_request | G8 | HIT GIVEN_UP
    a finished request has no locks and no reservations
    why: the shared store fills up with locked chunks and then takes nothing new
a_refused_call_leaves_nothing | G7 G8 | SHORT_STORE SHORT_TAKE WRONG_STORE
    a store or a retrieve that fails leaves no lock, no room taken and no object
    why: every failed transfer shrinks the shared store a little more
""",
)
