"""What the level `full` demands beside the core: groups, media, states, drafts, experts."""

from __future__ import annotations

from functools import partial

from kvproof.harness.oracle.violation import BRUTE_FORCE, SHADOW
from kvproof.suites.framework.property import Property

_full = partial(Property, level="full")

FULL = (
    _full(
        "groups_never_share_blocks",
        ("H7", "B1"),
        "a block is in the tables of one group only, and read as what that group put there",
        ("blocks of unequal groups lie in one pool",),
        needs="several_tables",
    ),
    _full(
        "blocks_keep_their_identity_while_there_is_room",
        ("B2", "B3"),
        "cached blocks lose their identity only where a request needs them, or on request",
        ("cached blocks are evicted to make room",),
        needs="several_groups",
    ),
    _full(
        "hits_are_valid_in_every_group",
        ("X1", "X2"),
        "a hit has in every group all that its kind of attention still sees there",
        (
            "a hit is limited by a window",
            "a hit is limited by a chunk",
            "a window hit with holes",
        ),
        needs="windows",
        oracle=BRUTE_FORCE,
    ),
    _full(
        "draft_groups_cost_one_unit",
        ("X3",),
        "a group of a draft model has one unit more than is hit",
        ("a draft group costs a unit", "a hit in a model with a full draft group"),
        needs="draft_groups",
        oracle=BRUTE_FORCE,
    ),
    _full(
        "backups_copy_what_is_cached",
        ("G10", "C8"),
        "what is copied to the host tier is in the cache when the copy is made, however late",
        (
            "a block is backed up to the host",
            "a request is admitted while a backup is in flight",
            "a request ends while a backup is in flight",
            "a host block is evicted",
            "a state is backed up to the host",
        ),
        needs="host_policies",
        oracle=SHADOW,
    ),
    _full(
        "loads_read_what_the_host_keeps",
        ("C8", "G10"),
        "what is loaded back was copied to the host tier, and not given back there since",
        (
            "a block is only on the host",
            "a hit goes on in the host tier",
            "a hit goes on from a state of the host",
        ),
        needs="host_policies",
    ),
    _full(
        "partial_blocks_are_copied_before_they_are_written",
        ("T6",),
        "a request that hits part of a block goes on in a copy of its own",
        ("a hit ends inside a block",),
        needs="partial_blocks",
        oracle=SHADOW,
    ),
    _full(
        "blocks_behind_a_window_are_returned",
        ("X4",),
        "once a step is done, a request holds no unit that later steps do not see",
        ("a window moves on while a later step is in flight",),
        needs="returned_windows",
    ),
    _full(
        "blocks_behind_a_window_outlive_running_steps",
        ("X4", "B6"),
        "no block is given back that a step in flight or the next one still sees",
        ("a window moves on while a later step is in flight",),
        needs="windows",
    ),
    _full(
        "rejected_drafts_are_never_indexed",
        ("X5",),
        "nothing that was computed from a rejected draft is ever hit",
        ("a rejected draft across a block border",),
        needs="drafts",
        oracle=BRUTE_FORCE,
    ),
    _full(
        "hits_never_end_inside_a_span",
        ("M2", "M4"),
        "a hit never ends inside a media span",
        (
            "two spans in a block",
            "a span over three and more blocks",
            "a span that ends on a block border",
            "a match ends inside a span",
            "a clamp that needs two rounds",
        ),
        needs="span_clamp",
    ),
    _full(
        "steps_never_split_a_span",
        ("M3",),
        "no step ends inside a media span; for one it grows only as far as declared",
        ("a span over three and more blocks", "a chunked prefill"),
        needs="span_chunks",
    ),
    _full(
        "encoders_run_once_per_missed_span",
        ("M5",),
        "the encoder runs once for each span that is not in the hit, and for no other",
        ("a span lies inside the hit", "an encoder runs"),
        needs="encode",
    ),
    _full(
        "a_recurrent_hit_needs_a_checkpoint",
        ("S1",),
        "a recurrent model hits only where a state after exactly so many tokens is stored",
        ("a hit is limited by a state", "a checkpoint is restored"),
        needs="states",
        oracle=BRUTE_FORCE,
    ),
    _full(
        "states_are_of_exactly_the_tokens_read",
        ("S1", "S4", "S9", "X5"),
        "a step goes on from a state that has read exactly the tokens before it",
        ("a checkpoint is restored", "a rejected draft leaves states behind"),
        needs="states",
        oracle=SHADOW,
    ),
    _full(
        "state_copies_are_disjoint",
        ("S3",),
        "copies of states have different destinations, none of them a source, all in range",
        ("a checkpoint is restored", "a checkpoint is saved"),
        needs="state_copies",
    ),
    _full(
        "state_blocks_have_one_owner",
        ("S5", "S9", "B1"),
        "what a step writes a state to is used by nobody else",
        ("a checkpoint is saved",),
        needs="states",
    ),
    _full(
        "decode_checkpoints_keep_their_interval",
        ("S6",),
        "while decoding, states are saved at multiples of the interval and nowhere else",
        ("a checkpoint is saved while decoding",),
        needs="decode_intervals",
    ),
    _full(
        "a_mismatch_destroys_no_checkpoint",
        ("S7",),
        "a checkpoint goes only to make room, or with the blocks that it belongs to",
        ("a request meets a checkpoint of other tokens",),
        needs="states",
    ),
    _full(
        "prompts_leave_a_checkpoint",
        ("S6",),
        "a step that computes the end of a prompt saves a state that others can go on from",
        ("a checkpoint is saved",),
        needs="states",
    ),
    _full(
        "junctions_are_checkpointed",
        ("S8",),
        "a state is saved where a prompt leaves one that was seen before",
        ("a checkpoint at a junction",),
        needs="junctions",
    ),
    _full(
        "expert_rows_are_those_of_a_fresh_run",
        ("R2", "R1"),
        "expert rows are those that the same tokens give without any reuse",
        ("all expert rows come back",),
        needs="experts",
        oracle=SHADOW,
    ),
    _full(
        "missing_expert_rows_are_reported",
        ("R2",),
        "a row that nobody recorded is reported as missing",
        ("an expert row is missing", "a step completes without expert rows"),
        needs="missing_experts",
    ),
    _full(
        "missing_expert_rows_are_filled",
        ("R3",),
        "blocks without rows get them from an equal request that computes them again",
        ("missing expert rows were filled",),
        needs="missing_experts",
    ),
    _full(
        "hits_stop_before_missing_experts",
        ("R3",),
        "where rows are required, a hit ends before the first block without them",
        ("a hit is limited by missing expert rows",),
        needs="require_experts",
        oracle=BRUTE_FORCE,
    ),
)
"""In the order of the rules."""
