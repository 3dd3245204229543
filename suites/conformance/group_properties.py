"""Properties that the level `full` adds to the core: groups, media, states, drafts, experts."""

from __future__ import annotations

from functools import partial

from kvproof.suites.framework.property import Property, table

_full = partial(Property, level="full")

FULL = table(
    vars(),
    """
keys_are_separate | H1 H2 | by shadow memory | needs keys
    equal tokens under another key of the caller never share a block
    why: two callers with different cache keys share entries that they asked to keep apart
    - a cached prompt comes back under another key
embeddings_are_separate | H1 | by shadow memory | needs embeddings
    rows of embeddings share blocks with equal rows alone, never with token ids
    why: a prompt of embeddings is answered from a text prompt with equal placeholder ids
    - a cached prompt comes back with equal embeddings
    - a cached prompt comes back as ids instead of embeddings
    - a cached prompt comes back with other embeddings
groups_never_share_blocks | H7 B1 | needs several_tables
    a block is in the tables of one group only, and read as content of that group
    why: layers of one kind read pages of another kind, and hybrid models produce noise
    - blocks of unequal groups lie in one pool
blocks_keep_their_identity_while_there_is_room | B2 B3 | needs several_groups
    cached blocks lose their identity only where a request needs them, or on request
    intended: PolicyProfile(eviction_order='undeclared')
    why: the cache forgets prompts while memory is free, and follow-up turns start cold
    - cached blocks are evicted to make room
the_oldest_goes_first_in_all_groups | B3 S5 | needs order_in_all_groups
    blocks and checkpoints of all groups are evicted in LRU order, whatever their kind
    intended: PolicyProfile(eviction_order='undeclared')
    why: one kind of layer starves the others of cache, so hybrid models hardly ever hit
    - cached blocks are evicted to make room
hits_end_with_whole_entries | Q1 | by brute force | needs compression
    a hit ends with whole entries of each group that has one entry for several tokens
    why: a compressed layer goes on from half an entry, whose first tokens nobody has any more
    - a hit in a compressed group
    - a hit in blocks of several layers
    - a match ends inside an entry
    - a step ends inside an entry
    - a rejected draft completes an entry
sidecars_stay_with_their_blocks | Q2 B2 | needs sidecars
    a block and that of its sidecar are cached together and evicted together, in every tier
    why: an indexer's keys are gone while the layer's are cached: a hit selects tokens by noise,
    or memory goes to blocks that nobody uses
    - a hit in a group with a sidecar
    - cached blocks are evicted to make room
hits_are_valid_in_every_group | X1 X2 | by brute force | needs windows
    a hit has in every group all blocks that its kind of attention still sees
    why: a hybrid model attends to evicted pages in some layers, and answers drift after a hit
    - a hit is limited by a window
    - a hit is limited by a chunk
    - a window hit with holes
    - a hit in blocks of unequal sizes
draft_groups_cost_one_unit | X3 | by brute force | needs draft_groups
    a group of a draft model has one unit more than is hit
    why: the draft model starts from missing keys after a hit, and its guesses are mostly
    rejected
    - a draft group costs a unit
    - a hit in a model with a full draft group
    - a hit beside unequal windows of drafts
backups_copy_what_is_cached | G10 C8 | by shadow memory | needs host_policies
    blocks copied to the host tier are in the cache when the copy is made, however late
    why: host memory is filled with pages already overwritten, and later hits restore wrong text
    - a block is backed up to the host
    - a request is admitted while a backup is in flight
    - a request ends while a backup is in flight
    - a host block is evicted
    - a state is backed up to the host
loads_read_what_the_host_keeps | C8 G10 | needs host_policies
    loaded blocks were copied to the host tier and have not been evicted there since
    why: a hit from host memory brings back pages of another prompt
    - a block is only on the host
    - a hit goes on in the host tier
    - a hit goes on from a state of the host
partial_blocks_are_copied_before_they_are_written | T6 | by shadow memory | needs partial_blocks
    a request that hits part of a block goes on in a copy of its own
    why: two conversations that share half a block overwrite each other's next words
    - a hit ends inside a block
blocks_behind_a_window_are_returned | X4 | needs returned_windows
    once a step is done, a request holds no unit that later steps do not see
    intended: LayerProfile(behind_windows='freed')
    why: long conversations keep memory that no layer reads, so far fewer requests run at once
    - a window moves on while a later step is in flight
blocks_behind_a_window_outlive_running_steps | X4 B6 | needs windows
    no block is given back that a step in flight or the next one still sees
    why: a long chat reads a page already given to another request, and its text derails
    - a window moves on while a later step is in flight
rejected_drafts_are_never_indexed | X5 | by brute force | needs drafts
    nothing that was computed from a rejected draft is ever hit
    why: words that were never said enter the cache, and the next turn answers to them
    - a rejected draft across a block border
    - unequal counts of drafts are in flight
hits_never_end_inside_a_span | M2 M4 | needs span_clamp
    a hit never ends inside a media span
    intended: SpanProfile(clamp=False)
    why: half an image comes from the cache, and the encoder output no longer fits the rest
    - two spans in a block
    - a span over three and more blocks
    - a span that ends on a block border
    - a match ends inside a span
    - a clamp that needs two rounds
steps_never_split_a_span | M3 | needs span_chunks
    no step ends inside a media span; a step grows to the end of a span only as far as declared
    intended: SpanProfile(clamp=False)
    why: an image is encoded twice or in two halves, and the model misreads it
    - a span over three and more blocks
    - a chunked prefill
encoders_run_once_per_missed_span | M5 | needs encode
    the encoder runs once for each span that is not in the hit, and for no other
    why: images are encoded again on every turn, or never, so answers are slow or blind
    - a span lies inside the hit
    - an encoder runs
a_recurrent_hit_needs_a_checkpoint | S1 | by brute force | needs states
    a recurrent model hits only where a state after exactly so many tokens is stored
    why: a recurrent model resumes from a state of another length and loses part of the prompt
    - a hit is limited by a state
    - a checkpoint is restored
states_are_of_exactly_the_tokens_read | S1 S4 S9 X5 | by shadow memory | needs states
    a step goes on from a state that has read exactly the tokens before it
    why: a recurrent model reads a token twice or skips one, and later answers are subtly wrong
    - a checkpoint is restored
    - a rejected draft leaves states behind
state_copies_are_disjoint | S3 | needs state_copies
    copies of states have different destinations, none of them a source, all in range
    intended: StateProfile(checkpoints='running')
    why: two requests in one step get each other's recurrent state, depending on copy order
    - a checkpoint is restored
    - a checkpoint is saved
state_blocks_have_one_owner | S5 S9 B1 | needs states
    no other request uses the blocks that a step writes a state to
    why: a running request overwrites a saved state, and later hits on it continue foreign text
    - a checkpoint is saved
decode_checkpoints_keep_their_interval | S6 | needs decode_intervals
    while decoding, states are saved at multiples of the interval and nowhere else
    intended: StateProfile(decode_intervals=False)
    why: follow-up turns recompute a whole long answer, or saved states crowd out the cache
    - a checkpoint is saved while decoding
a_mismatch_destroys_no_checkpoint | S7 | needs states
    a checkpoint goes only to make room, or with the blocks that it belongs to
    why: one request with a different ending deletes the saved state that all others share
    - a request meets a checkpoint of other tokens
prompts_leave_a_checkpoint | S6 | needs states
    a step that computes the end of a prompt saves the last state that others can go on from
    why: a repeated prompt on a recurrent model never hits, and its first token stays slow
    - a checkpoint is saved
states_are_saved_where_declared | S6 S8 A2 | needs declared_places
    a step saves states after exactly the declared numbers of tokens, if there is room for them
    intended: StateProfile(prompt_saves='always')
    why: hits fall on other lengths than planned, so capacity and latency estimates do not hold
    - a checkpoint is saved
    - a checkpoint at a junction
junctions_are_checkpointed | S8 | needs junctions
    a state is saved where a prompt leaves one that was seen before
    intended: StateProfile(junctions=False)
    why: many prompts after one system prompt each compute that system prompt again
    - a checkpoint at a junction
expert_rows_are_those_of_a_fresh_run | R2 R1 | by shadow memory | needs experts
    expert rows are those that the same tokens give without any reuse
    why: training replays the wrong experts after a hit, and its gradients are wrong
    - all expert rows come back
missing_expert_rows_are_reported | R2 | needs missing_experts
    a row that was never recorded is reported as missing
    why: a trainer takes absent routing for real routing and trains on invented data
    - an expert row is missing
    - a step completes without expert rows
missing_expert_rows_are_filled | R3 | needs missing_experts
    blocks without rows get them from an equal request that computes them again
    why: once a prompt was cached without routing, its routing stays missing in every later
    rollout
    - missing expert rows were filled
hits_stop_before_missing_experts | R3 | by brute force | needs require_experts
    where rows are required, a hit ends before the first block without them
    why: a request that requires routing gets a fast answer with gaps in its routing
    - a hit is limited by missing expert rows
""",
    level="full",
)
