"""Properties of an engine's scheduler, manager, worker and events: the suite `engine`."""

from __future__ import annotations

from kvproof.suites.framework.property import Property

SHADOW = "shadow memory"
CHAIN = "greedy chain"
INVARIANT = "invariant"
REPLAY = "replayed events"

HITS = "a request hits"
CHUNKS = "a prompt is computed in chunks"
PREEMPTED = "a request goes on after a preemption"
LATE = "a launch waits while the host goes on"
ACCEPTED = "drafts are accepted"
REJECTED = "drafts are rejected"
REST = "the engine comes to rest"
ABORTED = "a request is aborted while running"
QUEUED = "a request is aborted while waiting"
RESET = "a reset is done"
AFTER_RESET = "a request comes after a change of weights"
STORED = "blocks are stored in another tier"
LOADED = "blocks are loaded from another tier"
SPACES = "equal beginnings in two namespaces"
PICTURES = "equal placeholders with unlike media"
REMOVED = "blocks are removed in the index"
STATES = "states"
"""Capability: configurations with recurrent states."""

PROPERTIES = (
    Property(
        "every_slot_read_holds_the_requests_own_content",
        ("W1",),
        "what a launch reads, when the device executes it, is what that request would have "
        "computed at that position, in every group and layer",
        (HITS, CHUNKS, PREEMPTED, LATE),
        oracle=SHADOW,
    ),
    Property(
        "a_state_has_seen_exactly_the_tokens_before",
        ("W1", "W5"),
        "a recurrent state that a launch goes on from is the one after the tokens before it",
        (HITS,),
        oracle=SHADOW,
    ),
    Property(
        "freed_blocks_wait_for_launches_in_flight",
        ("W3",),
        "no launch writes a block that an earlier one, still in flight, has yet to read",
        (LATE, ABORTED),
        oracle=SHADOW,
    ),
    Property(
        "blocks_in_flight_are_not_reused",
        ("W3", "D3"),
        "no launch writes a block while a copy that was submitted before it still reads or writes "
        "it",
        (STORED, LOADED),
        oracle=SHADOW,
    ),
    Property(
        "namespaces_share_no_slot",
        ("W1",),
        "no request reads tokens computed under another salt, adapter or adapter version",
        (SPACES,),
        oracle=SHADOW,
    ),
    Property(
        "unlike_media_share_no_slot",
        ("W1",),
        "equal placeholders of different media are different content",
        (PICTURES,),
        oracle=SHADOW,
    ),
    Property(
        "nothing_is_read_across_a_change_of_weights",
        ("W1", "D6"),
        "after a reset that was reported as done, nothing from before it is read, from any tier",
        (RESET, AFTER_RESET),
        oracle=SHADOW,
    ),
    Property(
        "only_accepted_drafts_stay",
        ("W5",),
        "no request reads tokens computed for a rejected draft, or after one",
        (ACCEPTED, REJECTED),
        oracle=SHADOW,
    ),
    Property(
        "tables_name_the_blocks_that_the_manager_holds",
        ("W2",),
        "the kernel's table of a row is the manager's blocks of that request, expanded, as far as "
        "the row reads and writes",
        (PREEMPTED,),
        oracle=INVARIANT,
    ),
    Property(
        "slot_mappings_follow_the_tables",
        ("W2",),
        "the slot of each token is the one that the kernel's table gives for its position",
        (CHUNKS,),
        oracle=INVARIANT,
    ),
    Property(
        "the_null_block_is_never_written",
        ("W2",),
        "no launch writes into the null block",
        (CHUNKS,),
        oracle=INVARIANT,
    ),
    Property(
        "a_launch_writes_no_slot_twice_with_unlike_content",
        ("W2",),
        "two rows of a launch never write unlike content to one slot",
        (HITS,),
        oracle=INVARIANT,
    ),
    Property(
        "a_launch_computes_the_requests_own_tokens",
        ("W4", "W5"),
        "the tokens of a row are those of the request's greedy chain, with drafts behind them",
        (PREEMPTED, REJECTED),
        oracle=CHAIN,
    ),
    Property(
        "a_row_has_its_requests_adapter_and_media",
        ("W4",),
        "the worker runs a request with its own adapter and media",
        (SPACES, PICTURES),
        oracle=INVARIANT,
    ),
    Property(
        "answers_equal_the_greedy_chain",
        ("W4",),
        "what a request answers is what the chain without an engine says, whatever was batched, "
        "chunked, hit, preempted or drafted",
        (HITS, PREEMPTED, ACCEPTED),
        oracle=CHAIN,
    ),
    Property(
        "device_and_scheduler_agree_on_computed_tokens",
        ("W6", "W5"),
        "a row begins where the device has computed to, less only drafts that are not reported yet",
        (ACCEPTED, REJECTED, PREEMPTED),
        oracle=INVARIANT,
    ),
    Property(
        "every_request_ends",
        ("W7",),
        "without new arrivals every request ends with the requested number of tokens",
        (REST, PREEMPTED),
        oracle=INVARIANT,
    ),
    Property(
        "an_idle_engine_holds_nothing",
        ("W7",),
        "with no request left every block can be handed out, no reference and no transfer is left",
        (REST, ABORTED, QUEUED),
        oracle=INVARIANT,
    ),
    Property(
        "published_events_give_the_index",
        ("W8", "V4"),
        "the events, counted per key and group, give what a new request can find, after each step",
        (REMOVED,),
        oracle=REPLAY,
    ),
    Property(
        "the_engine_keeps_running",
        ("W9",),
        "no request makes the engine raise, assert or hang",
        (PREEMPTED, ABORTED),
        oracle=INVARIANT,
    ),
)
