"""Properties of the suite `states`: one row each."""

from __future__ import annotations

from kvproof.suites.framework.property import table

PROPERTIES = table(
    vars(),
    """
reservations_end_with_their_request | S2
    releasing a request gives up its reservations, and its decode checkpoint becomes ordinary
    why: cancelled requests leave state slots reserved, and soon nothing is cached any more
    - a release ends a reservation
restores_end_with_their_request | S2
    releasing a request drops the pin of its restore, and no other pin
    why: a cancelled request keeps its saved state pinned, and that memory is lost for good
    - a release unpins a restore
    - one checkpoint has several pins
forbidden_moves_raise | S2
    a move that a checkpoint's state does not allow raises and changes nothing
    why: a programming error frees a state in use, and corruption shows far away from its cause
    - forbidden: publish
    - forbidden: discard
    - forbidden: drop
    - forbidden: detach
    - forbidden: pin
    - forbidden: unpin
    - forbidden: saved
    - forbidden: reserve
allowed_moves_are_made | S2
    a move that a checkpoint's state allows leads to the next state of the life cycle
    why: saved states get stuck halfway, and neither hits nor eviction ever reach them
    - a checkpoint is published after its copy
pinned_checkpoints_stay | S2 S5
    a pinned checkpoint keeps its row, however scarce rows are
    why: a state is evicted while it is being restored, and the request continues from garbage
    - a request waits: only pinned checkpoints are left
    - a detached checkpoint goes
evictions_are_reported_once | S2
    each checkpoint that is evicted or replaced is reported once, with its place
    why: the index keeps pointing at evicted states, and later hits restore foreign ones
    - a checkpoint is evicted
    - a decode checkpoint is replaced
copies_are_sorted_disjoint_runs | S3 | by brute force
    merged runs copy exactly the pairs given; unfit lists of pairs are refused
    why: merging copies for speed moves wrong rows, and states of two requests are mixed
    - copies merge into a run
    - a destination is written twice
    - a row is both read and written
    - a row is out of range
restores_come_before_saves | S4
    a step's copies are its restores and its saves, each on its own side of the forward
    why: a step saves a state before it is restored, and the cache fills with wrong states
    - a step restores and saves
rows_have_one_owner | S5 S9
    a row belongs to one running request or one checkpoint, and to none when free
    why: a running request and a saved state share memory, and one silently overwrites the other
    - states are rows of a separate pool
    - states are blocks of the shared pool
    - one state has blocks that are no neighbours
a_running_request_gets_its_row_back | S5
    a request that may run gets a row if one is free or some checkpoint has no pin
    why: requests of a recurrent model wait although old saved states could make room
    - a running request begins again
    - a running request evicts a checkpoint
requests_wait_only_for_pinned_checkpoints | S5
    a request waits if the limit is reached or only pinned checkpoints are left
    why: a recurrent model serves fewer users than it has slots, without any message
    - a request waits: only pinned checkpoints are left
    - a request waits: no more may run
checkpoints_borrow_idle_rows | S5
    a checkpoint finds room as long as a row is free or another checkpoint may go
    why: memory of an idle recurrent engine goes unused, and chats start cold
    - a checkpoint without budget borrows a row
the_least_recent_checkpoint_goes | S5 S9
    checkpoints leave in the order in which they were last used
    why: the state of the busiest system prompt is evicted first, and its hits vanish
    - the first to be saved is not the first to go
one_replaceable_checkpoint_per_request | S6
    a request has at most one published decode checkpoint that its next one replaces
    why: one long answer fills the cache with its own old states and evicts all others
    - a decode checkpoint is replaced
    - a pinned decode checkpoint is not replaced
decode_checkpoints_go_when_their_successor_is_certain | S6
    making room for the next decode checkpoint spares the last one
    why: a failed save leaves a long answer with no saved state, and the next turn starts cold
    - only its own decode checkpoint could go
checkpoints_hold_exactly_their_tokens | S1 S4 | by shadow memory
    a restored state is that of exactly the tokens that the checkpoint names
    why: a hit restores a state that has read a word too many, and answers shift subtly
    - a restore lands
    - a copy lands after its producer is gone
junctions_are_saved | S8 | by brute force
    a prompt saves where it leaves the cache, at the last border of each step, and at its end
    why: agents with one common prompt never share it on a recurrent model
    - a prompt leaves the cache inside
decode_states_keep_their_interval | S6 S8 | by brute force
    after the prompt a step saves exactly the last multiple of the interval that it passes
    why: the next chat turn hits a shorter prefix than the settings promise
    - a step of several tokens passes a multiple
saves_are_bounded | S8 | by brute force
    a prompt saves at most two states more than it has chunks
    why: a single long prompt spends the time of its steps on saving states
    - a prompt has many chunks
no_state_is_saved_inside_a_span | S8 M2 | by brute force
    a state inside a span, which no request can hit, is not saved
    why: state memory is spent on positions inside images that no request can reuse
    - a last border inside a span
rows_follow_their_requests | S10
    lines of a batch keep their rows when it is re-ordered, shrunk or merged
    why: when one request of a batch ends, its neighbours continue with swapped states
    - a batch is re-ordered
    - a batch is shrunk
    - batches are merged
rejected_drafts_leave_no_rows | X5
    after a verification the accepted state runs, and the rows of the others are free
    why: speculative decoding leaks state rows until no request can start
    - a draft is rejected
    - all drafts are accepted
    - draft rows are refused
""",
)
