"""Properties of the suite `experts`: one row each."""

from __future__ import annotations

from kvproof.harness.oracle.violation import BRUTE_FORCE, SHADOW
from kvproof.suites.framework.property import Property

PROPERTIES = (
    Property(
        "expert_ids_are_small_integers",
        ("R1",),
        "ids take one byte up to 256 experts, else two",
        ("ids of one byte", "ids of two bytes"),
    ),
    Property(
        "expert_rows_move_with_their_blocks",
        ("R1",),
        "rows stay with their units when a node is split, grows or loses its end",
        ("a node with rows is split", "a node with rows grows", "rows are evicted"),
    ),
    Property(
        "unfit_expert_rows_are_refused",
        ("R1", "R2"),
        "rows of a wrong number, shape, range or place are refused and change nothing",
        ("unfit: number", "unfit: shape", "unfit: range", "unfit: place", "unfit: type"),
    ),
    Property(
        "returned_expert_rows_are_right",
        ("R2",),
        "a row that is returned is that of a run without any reuse",
        ("rows are returned over a hit", "rows are returned after an eviction"),
        oracle=SHADOW,
    ),
    Property(
        "expert_rows_cover_all_tokens_but_the_last",
        ("R2",),
        "there is one row for each prompt and generated token but the last",
        ("rows of generated tokens are returned",),
    ),
    Property(
        "unrecorded_expert_rows_are_named",
        ("R2",),
        "the ranges reported as missing are exactly the tokens without recorded rows",
        ("rows are missing in a hit", "rows are missing in a step"),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "gaps_in_expert_rows_are_filled",
        ("R3",),
        "an equal request gives rows to units that have none, and changes no others",
        ("a gap is filled", "a unit with rows is computed again"),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "the_first_missing_expert_row_is_found",
        ("R3",),
        "a request that requires rows hits no unit behind the first without them",
        ("a hit ends before missing rows", "a hit ends inside a node"),
        oracle=BRUTE_FORCE,
    ),
    Property(
        "expert_rows_roll_back_with_drafts",
        ("X5",),
        "rows of rejected drafts are never returned and never kept",
        ("a draft is rejected", "drafts are rejected across a unit border"),
        oracle=SHADOW,
    ),
    Property(
        "no_expert_rows_across_epochs",
        ("H6",),
        "after a reset no rows are left of what was computed before",
        ("a reset of recorded rows",),
    ),
)
