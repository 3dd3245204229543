"""Properties of the suite `settings`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

DIVIDES = "a kernel block size that divides the block size"
ODD = "a kernel block size that does not divide the block size"
LARGER = "a kernel block size larger than the block size"
NONE = "a kernel block size below one"
OF_A_GROUP = "a group with a kernel block size of its own"

REWRITES = "a model whose tokens change after they were written"
INSIDE = "such a model inside a multimodal one"
WRITES_ONCE = "a model that writes each token once"
UNKNOWN = "an unknown model"

TAKEN = "a value at the border of an option's range"
REFUSED = "a value just outside of an option's range"
TYPE = "a value of another type"

FIELD = "a count in a config.json that makes a model"
WRONG_FIELD = "a count below one, or of another type"

PROPERTIES = table(
    vars(),
    """
kernel_block_sizes_divide_the_block_size | K1 | DIVIDES ODD LARGER NONE OF_A_GROUP | by brute force
    a kernel block size is taken if it divides the block size; else both are named, and every
    size that would be taken
    why: an unfit block size starts without an error and the kernel reads misaligned pages
models_that_rewrite_tokens_are_refused | A3 | REWRITES INSIDE WRITES_ONCE UNKNOWN | by brute force
    a model whose tokens change after they were written is refused for that reason, and no
    other model is
    why: a model that edits its past is cached all the same, and hits give outdated answers
options_are_taken_within_their_range | O1 | TAKEN REFUSED TYPE | by brute force
    an option of cache, engine, server and remote store has the value that was given if its range
    has it; else the refusal names option and value
    why: a mistyped limit is taken, and the server ends later with an error about something else
counts_of_a_model_are_whole_and_positive | O1 | FIELD WRONG_FIELD | by brute force
    a count in a config.json is a whole number of at least 1; another value is refused with the
    field and the value
    why: a damaged file is planned all the same, for a model without heads or layers
""",
)
