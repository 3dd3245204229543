"""Properties of the suite `experts`: one row each."""

from __future__ import annotations

from kvproof.suites.framework.property import table

PROPERTIES = table(
    vars(),
    """
expert_ids_are_small_integers | R1
    ids take one byte up to 256 experts, else two
    why: recorded routing takes a multiple of its memory, or large ids wrap to other experts
    - ids of one byte
    - ids of two bytes
expert_rows_move_with_their_blocks | R1
    rows stay with their units when a node is split, grows or loses its end
    why: after prefixes branch, recorded routing belongs to other tokens than it claims
    - a node with rows is split
    - a node with rows grows
    - rows are evicted
unfit_expert_rows_are_refused | R1 R2
    rows of a wrong number, shape, range or place are refused and change nothing
    why: a trainer's malformed routing is stored and fails far later, in another request
    - unfit: number
    - unfit: shape
    - unfit: range
    - unfit: place
    - unfit: type
returned_expert_rows_are_right | R2 | by shadow memory
    a row that is returned is that of the request that computed it, its own or of its hit
    why: replayed training uses other experts than the rollout did, and diverges
    - rows are returned over a hit
    - rows are returned after an eviction
expert_rows_cover_all_tokens_but_the_last | R2
    there is one row for each prompt and generated token but the last
    why: routing and tokens are off by one, and training aligns each token with its neighbour
    - rows of generated tokens are returned
unrecorded_expert_rows_are_named | R2 | by brute force
    the ranges reported as missing are exactly the tokens without recorded rows
    why: gaps in the routing are misplaced, so a trainer drops good tokens and keeps bad ones
    - rows are missing in a hit
    - rows are missing in a step
gaps_in_expert_rows_are_filled | R3 | by brute force
    an equal request gives rows to units that have none, and changes no others
    why: rollouts of one prompt keep their gaps although an equal request has computed the
    routing
    - a gap is filled
    - a unit with rows is computed again
the_first_missing_expert_row_is_found | R3 | by brute force
    a request that requires rows hits no unit after the first without them
    why: a rollout that demands complete routing is returned incomplete
    - a hit ends before missing rows
    - a hit ends inside a node
expert_rows_roll_back_with_drafts | X5 | by shadow memory
    rows of rejected drafts are never returned and never kept
    why: routing of discarded guesses is returned, and rows outnumber tokens
    - a draft is rejected
    - drafts are rejected across a unit border
no_expert_rows_across_epochs | H6
    after a reset no rows are left of what was computed before
    why: after a weight update training replays the routing of the old weights
    - a reset of recorded rows
""",
)
