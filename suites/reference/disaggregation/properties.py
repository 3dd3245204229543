"""Properties of the suite `disaggregation`."""

from __future__ import annotations

from kvproof.suites.framework.property import table

SPLIT = "a worker's heads go to several workers"
MERGED = "a worker's heads come from several workers"
COPIES_SENT = "several workers could send the same heads"
COPIES_TAKEN = "several workers take the same heads"
UNEQUAL = "blocks of unlike sizes"
TAIL = "a prompt that ends inside a block"
CACHED = "the decoding side holds the first blocks"
CACHED_TAIL = "the decoding side holds the first blocks of a prompt that ends inside a block"
ALL_CACHED = "the decoding side holds all blocks of a prompt"
LATENT = "a latent head is sent"
GATHERED = "the blocks of a prompt come from several ranks"
SCATTERED = "the blocks of a prompt go to several ranks"
LAYOUTS = "unlike layouts"
KERNEL = "kernel blocks are smaller than blocks"
REUSED = "blocks are used for a second prompt"
STAGES = "pipeline stages on both sides"
UNLIKE_STAGES = "unlike numbers of pipeline stages"
WINDOW = "layers with a window"
LEFT = "a prompt is longer than the window"
SPLIT_WINDOW = "layers with a window, and unlike numbers of ranks"
STAGED_WINDOW = "layers with a window, and unlike numbers of stages"
STATE = "layers with states"
SPLIT_STATE = "a worker's state goes to several workers"
MERGED_STATE = "a worker's state comes from several workers"
REFUSED = "a pair is refused"
ALIKE = "two sides of equal sizes are connected"

CONTENT = "each_slot_gets_its_own_content"
OTHERS = "a_move_leaves_other_slots_alone"
WHOLE = "a_connected_pair_moves_every_prompt"
REASON = "a_refused_pair_is_told_why"
EQUAL = "equal_sides_are_connected"
HELD = "a_sender_waits_for_its_last_reader"
FREED = "a_sender_lets_go_after_its_last_reader"
ARRIVED = "a_receiver_waits_for_its_last_part"

PROPERTIES = table(
    vars(),
    """
each_slot_gets_its_own_content | D1 Q4 | SPLIT MERGED TAIL CACHED CACHED_TAIL | by brute force
    after a move each slot of a prompt holds the content of its layer, head and token on every
    decoding worker
    why: a prompt is answered from the keys and values of another token or head, and nothing fails
    - UNEQUAL LATENT GATHERED SCATTERED LAYOUTS KERNEL REUSED COPIES_SENT COPIES_TAKEN STAGES
    - UNLIKE_STAGES WINDOW LEFT SPLIT_WINDOW STAGED_WINDOW STATE SPLIT_STATE MERGED_STATE
a_move_leaves_other_slots_alone | D1 | REUSED CACHED ALL_CACHED | by brute force
    a move changes no slot of a cached block, and none of another prompt
    why: one request's transfer damages another request that is running
a_connected_pair_moves_every_prompt | D1 | TAIL CACHED ALL_CACHED | by the contract
    a pair that was connected moves every prompt, and none ends in an error
    why: the error comes inside of a step, and ends the engine with all its requests
a_refused_pair_is_told_why | O1 | REFUSED | by the contract
    a pair that is not served is refused when it is connected, in a sentence
    why: whoever deploys it sees an AssertionError without a word
equal_sides_are_connected | D1 | ALIKE | by the contract
    two sides of equal sizes, blocks and layouts are never refused
    why: a deployment that needs no conversion at all does not start
a_sender_waits_for_its_last_reader | D3 | SPLIT COPIES_TAKEN | by brute force
    a prefilling worker keeps a prompt's blocks until the last decoding worker has read from it
    why: blocks are given to another prompt while a slower worker still reads them
    - SCATTERED
a_sender_lets_go_after_its_last_reader | D3 | SPLIT MERGED COPIES_SENT | by brute force
    each prefilling worker lets go of a prompt once, when all decoding workers have their part
    why: blocks that nobody will read stay in use until a lease ends
    - GATHERED ALL_CACHED
a_receiver_waits_for_its_last_part | D2 | SPLIT MERGED CACHED | by brute force
    a decoding worker says once that a prompt has come, and not before its last bytes
    why: a request computes from slots that are still empty, or waits for ever
    - GATHERED SCATTERED STAGES UNLIKE_STAGES
""",
)
