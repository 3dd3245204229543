"""Properties of an engine's scheduler, manager, worker and events: the suite `engine`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

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
HANDED = "a request goes on at the other engine"
COPIED = "blocks go from one engine to the other"
BROKEN = "a copy between engines fails in part"
UNEQUAL = "blocks go to an engine with another number of workers"
TWICE = "the end of a copy is reported twice"
SPACES = "equal beginnings in two namespaces"
PICTURES = "equal placeholders with unlike media"
SLEPT = "the engine sleeps"
WAITED = "requests wait while the engine sleeps"
REMOVED = "blocks are removed in the index"
STORED_KEYS = "blocks are stored in the index"
POSSIBLE = "a hit is possible"
UNREAD = "a request that may not read the cache is admitted"
MEDIA_READ = "a launch computes positions of media"
LEAVES = "a block leaves the index"
TURNED = "a turn goes on from what its session holds"
AFTER_ABORT = "a turn follows an aborted one"
CLOSED = "a session that holds blocks is closed"
ENTRIES = "entries of several tokens are read"
STATED = "a hit goes on from a state"
MOVED = "an accepted path of drafts is moved"

SITUATION_NEEDS = {
    CHUNKS: "chunks",
    PREEMPTED: "preemption",
    LATE: "ahead",
    ACCEPTED: "drafts",
    REJECTED: "drafts",
    QUEUED: "queue",
    RESET: "reset",
    AFTER_RESET: "reset",
    STORED: "another tier",
    LOADED: "another tier",
    HANDED: "two engines",
    COPIED: "two engines",
    BROKEN: "two engines",
    UNEQUAL: "unequal workers",
    TWICE: "ends that are reported twice",
    SPACES: "namespaces",
    PICTURES: "media",
    SLEPT: "sleep",
    WAITED: "sleep",
    REMOVED: "events",
    STORED_KEYS: "events",
    UNREAD: "unread",
    MEDIA_READ: "encoder",
    TURNED: "sessions",
    AFTER_ABORT: "sessions",
    CLOSED: "sessions",
    ENTRIES: "entries",
    STATED: "states",
    MOVED: "trees of drafts",
}
"""Situation -> the traits that it needs of an engine (`whole_engine_traits.NEEDS`), if any."""

PROPERTIES = table(
    vars(),
    """
reads_return_own_content | W1 Q1 | HITS CHUNKS PREEMPTED LATE ENTRIES | by shadow memory
    what a launch reads, when the device executes it, is what that request would have computed
    at that position, in every group and layer
    why: answers contain foreign or stale text as soon as requests share the cache under load
states_are_of_exactly_the_tokens_read | W1 W5 | HITS STATED | by shadow memory | needs states
    a recurrent state that a launch goes on from is the one after the tokens before it
    why: a recurrent model skips or repeats tokens after a hit, and its memory of the prompt
    blurs
a_running_step_keeps_its_blocks | W3 | LATE ABORTED | by shadow memory | needs ahead
    no launch writes a block that an earlier one, still in flight, has yet to read
    why: aborting a request corrupts another one, only at high load with asynchronous scheduling
blocks_in_flight_are_not_reused | W3 D3 | STORED LOADED | by shadow memory
    no launch writes a block while a copy that was submitted before it still reads or writes
    it
    why: offloading to host memory saves pages already overwritten, and later hits are wrong
received_blocks_hold_the_requests_own_content | D1 D2 D3 | HANDED UNEQUAL BROKEN | by shadow memory
    what a launch reads in a block that came from another engine is what that request would have
    computed there, in every layer and head of every worker
    why: with separate prefill and decode engines an answer ignores or garbles its prompt
blocks_are_held_until_they_are_read | D3 | HANDED COPIED
    while another engine may read a request's blocks, until it has or their lease has ended, the
    engine that computed them holds them
    why: the decoding engine fetches pages that the prefill engine has given away
a_copy_that_ends_twice_changes_nothing | D3 | TWICE
    the engine's handling of ended copies does not raise where an end is reported a second time
    why: a repeated network notice stops the engine, and all its requests die
namespaces_are_separate | W1 | SPACES | by shadow memory
    no request reads tokens computed under another salt, adapter or adapter version
    why: a tenant's salted prompt is served to others, or answers use another adapter's keys
spans_are_separate | W1 | PICTURES | by shadow memory
    equal placeholders of different media are different content
    why: a user asks about one picture and gets the description of another user's picture
no_hit_across_epochs | W1 D6 H6 | RESET AFTER_RESET | by shadow memory
    after a reset that was reported as done, nothing from before it is read, from any tier
    why: after a weight update in training rollouts still use keys of the old policy
only_accepted_drafts_stay | W5 | ACCEPTED REJECTED MOVED | by shadow memory
    no request reads tokens computed for a rejected draft, or after one
    why: with speculative decoding a rejected guess stays in the context and bends the answer
kernel_tables_address_their_blocks | W2 | PREEMPTED
    the kernel's table of a row is the manager's blocks of that request, expanded, as far as
    the row reads and writes
    why: the worker and the scheduler disagree on pages, and an answer turns wrong after a
    preemption
slot_mappings_follow_the_tables | W2 | CHUNKS
    the slot of each token is the one that the kernel's table gives for its position
    why: keys of a long prompt land in the wrong slots, and the middle of it is forgotten
the_null_block_is_never_written | W2 | CHUNKS
    no launch writes into the null block
    why: layers with windows read rubbish where they should see nothing
new_blocks_are_zeroed | W2 | HITS | needs zeroing
    where the engine has new blocks filled with zeros, a block that a request begins holds
    nothing else
    why: leftovers of earlier requests, even NaN, leak into new ones on some kernels
nothing_runs_on_memory_that_is_away | W3 Q6 | SLEPT WAITED
    while the engine sleeps or is paused no launch computes
    why: a request during sleep mode crashes the GPU process or computes on freed memory
a_launch_writes_no_slot_twice_with_unlike_content | W2 | HITS
    two rows of a launch never write unlike content to one slot
    why: the answer of a batch depends on which thread happens to write last
a_launch_computes_the_requests_own_tokens | W4 W5 | PREEMPTED REJECTED | by greedy chain
    the tokens of a row are those of the request's greedy chain, followed by drafts
    why: after a preemption a request is fed wrong tokens and continues another sentence
a_row_has_its_requests_adapter_and_media | W4 | SPACES PICTURES
    the worker runs a request with its own adapter and media
    why: in mixed batches a request runs with a neighbour's adapter or picture
answers_equal_the_greedy_chain | W4 | HITS PREEMPTED ACCEPTED | by greedy chain
    an answer is the chain computed without an engine, whatever was batched,
    chunked, hit, preempted or drafted
    why: at temperature zero the answer changes with load, chunking or cache hits
device_and_scheduler_agree_on_computed_tokens | W6 W5 | ACCEPTED REJECTED PREEMPTED
    a row begins where the device has computed to, less only drafts that are not reported yet
    why: with asynchronous drafts a token is skipped or computed twice, and positions shift
every_request_ends | W7 | REST PREEMPTED
    without new arrivals every request ends with the requested number of tokens
    why: some requests hang without a word until the client gives up
an_idle_engine_holds_nothing | W7 | REST ABORTED QUEUED
    with no request left every block can be handed out, no reference and no transfer is left
    why: memory leaks with aborted requests until the engine admits no more
a_hit_that_is_possible_is_given | T1 | POSSIBLE | by shadow memory
    a request whose blocks can be found before and after the step that admits it begins behind
    the longest prefix that all groups hold, less the block that a draft model computes again
    why: prompts are computed again although they are cached, and latency rises unseen
a_session_goes_on_from_what_it_holds | Q7 | TURNED AFTER_ABORT CLOSED | needs sessions
    a later turn begins behind all that its session holds and no more than can be found, computes
    complete turns and its own text, and nothing more is held after an abort or a close
    why: each turn of a conversation is computed again, or builds on an answer that was cancelled
a_request_that_may_not_read_computes_all | A2 | UNREAD | needs unread
    the first row of a request that may not read the cache begins at its first token
    why: log-probabilities of a prompt, or a fresh answer after a fault, come from old pages
published_hits_are_those_of_the_history | V1 | REST POSSIBLE
    what an answer and the engine's counters publish as asked for and as hit, in the pool and in
    another tier, is what the first rows of all requests show
    why: dashboards show a hit rate that the engine does not have, and capacity is planned by it
encoder_outputs_are_there_when_they_are_read | W2 | MEDIA_READ | needs encoder
    a launch that computes positions of an image finds the output of the encoder for it
    why: requests with images end the engine, or see another picture, when many are in flight
a_block_leaves_the_index_for_another_one | B3 | LEAVES
    a cached block that a step makes unfindable has been given to a request in that step
    why: the engine evicts more than it needs, and the hit rate drops under load
events_lead_back_to_a_requests_tokens | W8 V4 | STORED_KEYS | by replayed events
    parents and tokens of a stored block lead back to the first token of a request, with its
    adapter
    why: a router that keeps prefixes by tokens files blocks under prompts that no request had
events_replay_to_the_index | W8 V4 | REMOVED | by replayed events
    the events, counted per key and group, give what a new request can find, after each step
    why: a router that follows the events sends requests to workers without their prefix
the_engine_keeps_running | W9 | PREEMPTED ABORTED
    no request makes the engine raise, assert or hang
    why: one unlucky request kills the engine process and every stream on it
""",
)
