"""Properties of the suite `plan`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

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
COMPRESSED = "a layer with one entry for several tokens"
UNEQUAL_ENTRIES = "layers with unequal entries in one group"
RANKS = "ranks share the tokens of a request"
SCALES = "a layer whose values have scales"
MORE_RANKS = "tokens go to more ranks"
FEWER_RANKS = "tokens go to fewer ranks"
OTHER_TURNS = "tokens go to ranks with longer or shorter turns"
UNEVEN_RANKS = "a request ends inside a round of turns"

PROPERTIES = table(
    vars(),
    """
the_returned_length_fits_and_one_more_does_not | P2 | by brute force
    the longest length that a plan states fits its empty pool, and one token more does not
    why: the advertised context length runs out of memory, or wastes memory that would hold more
    - BOUNDED ODD_CHUNK NO_BOUND LONG_STATE DRAFT_STATES SEPARATE
requests_hold_the_blocks_planned | P2 X1 X4 | by brute force
    no schedule of steps holds more blocks than planned, and some schedule holds as many
    why: a plan that looked safe ends in preemptions, or memory is reserved and never used
    - BOUNDED ODD_CHUNK LONG_STATE DRAFT_STATES UNEQUAL_BLOCKS
stated_capacity_is_reached | P2 | SPLIT BOUNDED LONG_STATE SEPARATE | by brute force
    as many requests as stated run at once to their full length, and one more does not fit
    why: the stated number of concurrent users is not reached in production
too_little_memory_names_what_fits | P3 | SHORTAGE NOTHING_FITS | by metamorphic pair
    an error names the memory needed, which is enough, and the longest length that fits
    why: start-up fails without saying which context length or memory would have worked
every_layer_is_in_exactly_one_group | P1 P4 | SPLIT MIXED_LAYERS READER
    each layer is in one group of its kind and size, in model order, readers with their owner
    why: a layer has no cache or two, so the model crashes or answers nonsense
no_equal_split_is_better | P4 | SPLIT UNEQUAL_BLOCKS PADDED | by brute force
    splitting all kinds into groups of any one size never fits more requests than the plan,
    less what each further group has to earn
    why: hybrid models run with fewer concurrent requests than the same memory could hold
every_byte_is_accounted_for | P2 P5 | PADDED UNEQUAL_BLOCKS MIXED_LAYERS BOUNDED
    the bytes of a request are the need of its tokens, plus padding, plus rounding
    why: the sums of the start-up report do not match the memory used, and capacity estimates
    miss by gigabytes
block_size_lcm_is_bounded | P5 K6 | UNEQUAL_BLOCKS KERNEL_BLOCKS
    block sizes have a common multiple within the bound, and are whole kernel blocks
    why: hits of a hybrid model become so coarse that shared prefixes are almost never reused
workers_agree | P6 | STAGES ABSENT UNEQUAL_MEMORY FIXED
    all workers have the same groups, and each has room for all blocks
    why: a multi-GPU engine runs out of memory on one worker while the others look fine
live_owners_never_alias | P7 K5 | by brute force
    two tokens, states or layers that live at the same time have no byte in common
    why: two layers overwrite each other's pages, and every answer is corrupted
    - SPLIT KERNEL_BLOCKS UNEQUAL_BLOCKS MIXED_LAYERS STATE_SHARED_ROW
an_entry_has_one_place | Q1 | COMPRESSED UNEQUAL_ENTRIES RANKS | by brute force
    all tokens of an entry have its place, and a block has a place for each entry of a rank
    why: a compressed layer takes the memory of a full one, or its entries overwrite each other
each_token_lies_on_one_rank | Q4 | RANKS UNEVEN_RANKS | by brute force
    token t lies on rank (t div turn) mod ranks, behind the earlier ones there
    why: a rank attends to a part of the context twice, and to another part never
a_change_of_ranks_moves_each_token_once | Q4 | by brute force
    when the number or the turns of ranks change, each token goes to its new place, once
    why: after an engine was resized, answers about long contexts are wrong in places
    - MORE_RANKS FEWER_RANKS OTHER_TURNS
readers_own_nothing | Q3 P1 | READER | by metamorphic pair
    a layer that reads another's pages adds no bytes and nothing to move, and sees its owner's
    why: shared layers take memory all the same, or are moved twice and overwrite each other
scales_lie_with_their_values | Q8 G2 | SCALES | by brute force
    scales lie in the blocks of their values, and are stored and moved with them
    why: an FP8 page comes back with the scales of another page, and its answers are noise
full_attention_fallback_reports_its_cost | P8 | PROMOTED | by metamorphic pair
    the fallback has no windows, and states how many requests fewer run at once; one that does not
    fit states whether windows would
    why: the slow fallback takes effect silently, and the loss of capacity stays a mystery
a_plan_survives_json | P9 | SPLIT
    a plan read back from its JSON is the same plan
    why: a saved plan starts another engine than the one that was measured
states_fill_their_blocks | S9 | LONG_STATE STATE_SHARED_ROW | by brute force
    a state has a place for every byte, in as few blocks as hold it
    why: a recurrent state is cut off at a block's end, or memory is lost in every request
""",
)
