"""Properties of the suite `states`: one row each."""

from __future__ import annotations

from kvproof.suites.framework.property import table

PROPERTIES = table(
    vars(),
    """
reservations_end_with_their_request | S2
    releasing a request gives up its reservations, and its decode checkpoint becomes ordinary
    - a release ends a reservation
restores_end_with_their_request | S2
    releasing a request drops the pin of its restore, and no other pin
    - a release unpins a restore
    - one checkpoint has several pins
forbidden_moves_raise | S2
    a move that a checkpoint's state does not allow raises and changes nothing
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
    - a checkpoint is published after its copy
pinned_checkpoints_stay | S2 S5
    a pinned checkpoint keeps its row, however scarce rows are
    - a request waits: only pinned checkpoints are left
    - a detached checkpoint goes
evictions_are_reported_once | S2
    each checkpoint that is evicted or replaced is reported once, with its place
    - a checkpoint is evicted
    - a decode checkpoint is replaced
copies_are_sorted_disjoint_runs | S3 | by brute force
    merged runs copy exactly the pairs given; unfit lists of pairs are refused
    - copies merge into a run
    - a destination is written twice
    - a row is both read and written
    - a row is out of range
restores_come_before_saves | S4
    a step's copies are its restores and its saves, each on its own side of the forward
    - a step restores and saves
rows_have_one_owner | S5 S9
    a row belongs to one running request or one checkpoint, and to none when free
    - states are rows of a separate pool
    - states are blocks of the shared pool
    - one state has blocks that are no neighbours
a_running_request_gets_its_row_back | S5
    a request that may run gets a row if one is free or some checkpoint has no pin
    - a running request begins again
    - a running request evicts a checkpoint
requests_wait_only_for_pinned_checkpoints | S5
    a request waits if the limit is reached or only pinned checkpoints are left
    - a request waits: only pinned checkpoints are left
    - a request waits: no more may run
checkpoints_borrow_idle_rows | S5
    a checkpoint finds room as long as a row is free or another checkpoint may go
    - a checkpoint without budget borrows a row
the_least_recent_checkpoint_goes | S5 S9
    checkpoints leave in the order in which they were last used
    - the first to be saved is not the first to go
one_replaceable_checkpoint_per_request | S6
    a request has at most one published decode checkpoint that its next one replaces
    - a decode checkpoint is replaced
    - a pinned decode checkpoint is not replaced
decode_checkpoints_go_when_their_successor_is_certain | S6
    making room for the next decode checkpoint spares the last one
    - only its own decode checkpoint could go
checkpoints_hold_exactly_their_tokens | S1 S4 | by shadow memory
    a restored state is that of exactly the tokens that the checkpoint names
    - a restore lands
    - a copy lands after its producer is gone
junctions_are_saved | S8 | by brute force
    a prompt saves where it leaves the cache, at the last border of each step, and at its end
    - a prompt leaves the cache inside
decode_states_keep_their_interval | S6 S8 | by brute force
    after the prompt a step saves exactly the last multiple of the interval that it passes
    - a step of several tokens passes a multiple
saves_are_bounded | S8 | by brute force
    a prompt saves at most two states more than it has chunks
    - a prompt has many chunks
no_state_is_saved_inside_a_span | S8 M2 | by brute force
    a state inside a span, which no request can hit, is not saved
    - a last border inside a span
rows_follow_their_requests | S10
    lines of a batch keep their rows when it is re-ordered, shrunk or merged
    - a batch is re-ordered
    - a batch is shrunk
    - batches are merged
rejected_drafts_leave_no_rows | X5
    after a verification the accepted state runs, and the rows of the others are free
    - a draft is rejected
    - all drafts are accepted
    - draft rows are refused
""",
)
