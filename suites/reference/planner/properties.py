"""Properties of the suite `plan`."""

from __future__ import annotations

from kvproof.harness.oracle.violation import BRUTE_FORCE, INVARIANT, METAMORPHIC
from kvproof.suites.framework.property import Property

SPLIT = "layers of one kind in several groups"
UNEQUAL_BLOCKS = "groups with unequal block sizes"
PADDED = "a row that some group does not fill"
MIXED_LAYERS = "layers of unequal geometry in one group"
BOUNDED = "a window that a request outgrows"
ODD_CHUNK = "a chunk that is no whole number of units"
NO_BOUND = "no length is too long"
LONG_STATE = "a state over several blocks"
STATE_SHARED_ROW = "a part of a state over a border of blocks"
SEPARATE = "states in a pool of their own"
DRAFT_STATES = "states for draft tokens"
STAGES = "several workers"
ABSENT = "a worker without some group"
UNEQUAL_MEMORY = "workers with unequal memory"
KERNEL_BLOCKS = "kernel blocks smaller than blocks"
READER = "a layer that reads the pages of another"
FIXED = "a number of blocks that the user fixes"
SHORTAGE = "too little memory"
NOTHING_FITS = "too little memory for any length"
PROMOTED = "windows kept whole on request"

PROPERTIES = (
    Property(
        "the_returned_length_fits_and_one_more_does_not",
        ("P2",),
        "the longest length that a plan states fits its empty pool, and one token more does not",
        (BOUNDED, ODD_CHUNK, NO_BOUND, LONG_STATE, DRAFT_STATES, SEPARATE),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "requests_hold_the_blocks_planned",
        ("P2", "X1", "X4"),
        "no schedule of steps holds more blocks than planned, and some schedule holds as many",
        (BOUNDED, ODD_CHUNK, LONG_STATE, DRAFT_STATES, UNEQUAL_BLOCKS),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "stated_capacity_is_reached",
        ("P2",),
        "as many requests as stated run at once to their full length, and one more does not fit",
        (SPLIT, BOUNDED, LONG_STATE, SEPARATE),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "too_little_memory_says_what_fits",
        ("P3",),
        "an error names the memory needed, which is enough, and the longest length that fits",
        (SHORTAGE, NOTHING_FITS),
        oracle=METAMORPHIC,
    ),
    Property(
        "every_layer_is_in_exactly_one_group",
        ("P1", "P4"),
        "each layer is in one group of its kind and size, in model order, readers with their owner",
        (SPLIT, MIXED_LAYERS, READER),
        oracle=INVARIANT,
    ),
    Property(
        "no_equal_split_is_better",
        ("P4",),
        "splitting all kinds into groups of any one size never fits more requests than the plan, "
        "less what each further group has to earn",
        (SPLIT, UNEQUAL_BLOCKS, PADDED),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "every_byte_is_accounted_for",
        ("P2", "P5"),
        "the bytes of a request are the need of its tokens, plus padding, plus rounding",
        (PADDED, UNEQUAL_BLOCKS, MIXED_LAYERS, BOUNDED),
        oracle=INVARIANT,
    ),
    Property(
        "block_size_lcm_is_bounded",
        ("P5", "K6"),
        "block sizes have a common multiple within the bound, and are whole kernel blocks",
        (UNEQUAL_BLOCKS, KERNEL_BLOCKS),
        oracle=INVARIANT,
    ),
    Property(
        "workers_agree",
        ("P6",),
        "all workers have the same groups, and each has room for all blocks",
        (STAGES, ABSENT, UNEQUAL_MEMORY, FIXED),
        oracle=INVARIANT,
    ),
    Property(
        "live_owners_never_alias",
        ("P7", "K5"),
        "two tokens, states or layers that live at the same time have no byte in common",
        (SPLIT, KERNEL_BLOCKS, UNEQUAL_BLOCKS, MIXED_LAYERS, STATE_SHARED_ROW),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "full_attention_fallback_reports_its_cost",
        ("P8",),
        "the fallback has no windows, and says how many requests fewer run at once",
        (PROMOTED,),
        oracle=METAMORPHIC,
    ),
    Property(
        "a_plan_survives_json",
        ("P9",),
        "a plan read back from its JSON is the same plan",
        (SPLIT,),
        oracle=INVARIANT,
    ),
    Property(
        "states_fill_their_blocks",
        ("S9",),
        "a state has a place for every byte, in as few blocks as hold it",
        (LONG_STATE, STATE_SHARED_ROW),
        oracle=BRUTE_FORCE,
    ),
)
