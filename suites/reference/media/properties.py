"""Properties of the suite `media`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

OTHER_LAYOUT = "an equal value in another layout"
ONE_CHANGE = "two values that differ in one place"
SHAPE = "equal bytes in another shape"
CUT = "equal bytes cut into other parts"
GRID = "equal bytes on another grid"
DTYPE = "equal numbers of another type"
GIVEN = "a hash given by the caller"
UNUSED = "media of a request that may not use the cache"
USED_TWICE = "media whose hash is requested twice"
OUT_OF_ORDER = "spans given out of order"
TWO_IN_A_BLOCK = "two spans in a block"
LONG = "a span over three and more blocks"
ON_A_BORDER = "a span that ends on a block border"
VIDEO = "a video of several frames"
MASKED = "embeddings that a mask leaves out"
SAME = "equal media in two requests"
OTHER = "other media on equal tokens"
TWO_ROUNDS = "a clamp that needs two rounds"
REJECTED = "a match that is clamped to nothing"
MOVED_BACK = "a step that ends early, before a span"
GROWN = "a step that begins at a span longer than its budget"
OLD_TURN = "a long span of an earlier turn"
COVERED = "a span inside the hit"
MISSED = "a span after the hit"
MALFORMED = "spans that overlap, leave the prompt or have no hash"

PROPERTIES = table(
    vars(),
    """
hashes_are_by_value | H4 | OTHER_LAYOUT | by metamorphic pair
    equal values have one content hash, however they lie in memory
    why: the same image sent as another array layout misses the cache and is encoded again
hashes_are_injective | H4 H2 | ONE_CHANGE
    values that differ in data, type, shape or nesting have different content hashes
    why: two different images count as the same one, and the answer describes the wrong one
content_is_hashed_once_and_only_if_used | H4 | GIVEN UNUSED USED_TWICE
    data are read once, and not at all with a hash from the caller or without the cache
    why: large videos are hashed repeatedly, and first tokens wait for the processor
span_order_does_not_matter | M4 | OUT_OF_ORDER | by metamorphic pair
    a request has the same spans in whatever order its items are given
    why: the same images listed in another order miss the cache or swap places
blocks_are_equal_iff_their_content_is | M1 H1 M4 | by brute force
    two requests have equal keys for just the blocks up to which every position is equal
    why: a text before a changed image is lost from the cache, or text after it is wrongly kept
    - TWO_IN_A_BLOCK LONG ON_A_BORDER VIDEO MASKED SAME OTHER
spans_are_refused_iff_malformed | H8 | MALFORMED
    spans that overlap, leave the prompt or have no hash are refused, and no others
    why: valid image prompts get an error, or broken ones run with misplaced images
clamps_reach_a_fixpoint | M2 | TWO_ROUNDS REJECTED TWO_IN_A_BLOCK LONG ON_A_BORDER | by brute force
    a match is cut to the longest whole number of blocks that ends in no span
    why: with several adjacent images a hit still ends inside one, and that image is misread
chunks_never_split_a_span | M3 | MOVED_BACK GROWN TWO_IN_A_BLOCK LONG
    a step never ends inside a span
    why: a long prompt cuts an image in two, and the engine crashes or ignores half of it
chunks_are_as_long_as_they_may_be | M3 | MOVED_BACK GROWN | by brute force
    a step ends as near to its limit as spans allow, and never without progress
    why: prompts with images take far more steps than needed, or never move on
the_chunk_limit_grows_for_this_turn_only | M3 | GROWN OLD_TURN | by brute force
    a step may take the longest span of the current turn; earlier turns do not count
    why: one huge image early in a chat inflates all later steps and stalls other streams
each_missed_span_is_encoded_once | M5 | COVERED MISSED TWO_IN_A_BLOCK LONG
    the encoder runs once for each span that the hit does not cover, in its first step
    why: the encoder is the bottleneck because it repeats images that are already in place
""",
)
