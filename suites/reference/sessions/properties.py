"""Properties of the suite `sessions`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

PRESSED = "blocks are evicted while an idle session holds some"
TURNED = "a second turn goes on from the first one"
CACHED = "a session that holds nothing has a history"
SHARED = "two sessions hold one block"
ABORTED = "a turn is aborted after it has computed"
LATE = "a session expires"
IN_TIME = "a session is about to expire, or runs a turn for longer"
CLOSED = "a session that holds blocks is closed"
GAVE = "an idle session gives its blocks up for a request"
SPARED = "a session that was idle for less time keeps its blocks"
IN_VAIN = "a request is refused although idle sessions hold blocks"
FORKED = "a session with a history is forked"
OUTLIVED = "a fork goes on after its parent has closed"
RESET = "a session outlives a reset"

KEEPS = "an_open_session_keeps_its_blocks"
COUNTS = "blocks_of_sessions_count_as_held"
ABORTS = "an_aborted_turn_changes_nothing_of_its_session"
ENDS = "a_session_ends_when_it_closes_or_expires"
ROOM = "idle_sessions_keep_no_request_out"
FORKS = "a_fork_has_the_turns_of_its_parent"

PROPERTIES = table(
    vars(),
    """
an_open_session_keeps_its_blocks | Q7 B2 | PRESSED TURNED RESET | by shadow memory
    whole blocks of the history stay in an open session, in its blocks, and its next turn hits them
    why: a long conversation is computed again at each turn, or goes on from blocks of another one
blocks_of_sessions_count_as_held | Q7 B7 | CACHED SHARED | by brute force
    held blocks are those of requests and of sessions that hold theirs, each once, and no others
    why: a pool that looks free has no room, or one that looks full refuses what would fit
an_aborted_turn_changes_nothing_of_its_session | Q7 | ABORTED
    after an abort the session has the history and the blocks of before its turn
    why: a cancelled answer stays in the conversation, and the next turn builds on it
a_session_ends_when_it_closes_or_expires | Q7 | LATE IN_TIME CLOSED
    a session ends once it was idle for as long as it said, no sooner and not in a turn
    why: sessions of clients that went away keep memory for ever, or a slow reader loses his
idle_sessions_keep_no_request_out | Q7 B8 | GAVE SPARED IN_VAIN | by brute force
    a request that fits without idle sessions is admitted; as few as it needs give up their blocks
    why: forgotten conversations wedge the pool, or one large request ends all conversations
a_fork_has_the_turns_of_its_parent | Q7 | FORKED OUTLIVED
    a fork begins with the complete turns of its parent, and holds its blocks on its own
    why: branches of a conversation share changes, or lose their blocks with the first one closed
""",
)
