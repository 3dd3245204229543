"""One wrong answer for each property of groups, media, states, drafts and experts."""

from __future__ import annotations

from dataclasses import replace

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Group,
    Namespace,
    Request,
    Span,
    StateUse,
    TargetConfig,
)
from kvproof.suites.tests.agreement.lies import (
    FORK,
    ONE,
    OTHER,
    TWIN,
    A,
    Lie,
    another,
    hit,
    tables,
    whole,
)

WINDOW = TargetConfig(30, 2, groups=(Group("full", 2), Group("window", 2, size=3)))
DRAFT = TargetConfig(30, 2, groups=(Group("full", 2), Group("full", 2, draft=True)))
STATE = TargetConfig(30, 2, groups=(Group("full", 2), Group("state", 2)))
ROWS = replace(STATE, state_rows=9)
PARTIAL = replace(ONE, partial_blocks=True)
STRICT = replace(ONE, require_experts=True)
ENTRIES = TargetConfig(30, 4, groups=(Group("full", 4, ratio=2),), partial_blocks=True)
SIDECAR = TargetConfig(30, 2, groups=(Group("full", 2), Group("full", 2, beside=0)))
HOST = replace(ONE, host_blocks=4, host_policy="write_through")

MEDIA = replace(A, spans=(Span("image", 0, 4, "h"),))
SHORT = Request("b", (1, 2, 3, 4, 5, 6, 7, 8))
LONGER = Request("b", (1, 2, 3, 4, 9))


def serve(request, *more, routed=True):
    """Compute a request in two steps, of which the first ends on a unit border."""
    rest = (ops.Complete(routed=routed), ops.Extend(request.id), ops.Complete(routed=routed))
    return (ops.Admit(request, compute=4), *rest, *more, ops.Finish(request.id))


def written_to(row):
    def change(answer):
        use = StateUse(1, answer.states[0].read, ((answer.stop, (row,)),))
        return replace(answer, states=(use,))

    return change


def read_from(block):
    return lambda answer: replace(answer, states=(replace(answer.states[0], read=(block,)),))


def dropped(*groups):
    return lambda answer: replace(answer, dropped=groups)


def moved(group, source, destination):
    return lambda answer: replace(answer, moves=((group, source, destination),))


def first_group_alone(answer):
    """Leave out the blocks of the second group."""
    return replace(answer, blocks=(answer.blocks[0], ()))


def without_sidecar(answer):
    """Count the second group's block as cached."""
    usage = replace(answer.usage, free=answer.usage.free - 1, cached=answer.usage.cached + 1)
    return replace(answer, usage=usage, dropped=(answer.dropped[0], ()))


def without_copies(answer):
    return replace(answer, copies=())


def without_checkpoints(answer):
    use = answer.states[0]
    return replace(answer, states=(replace(use, writes=use.writes[-1:]),))


def saved_early(tokens, block):
    def change(answer):
        use = answer.states[0]
        return replace(answer, states=(replace(use, writes=((tokens, (block,)), *use.writes)),))

    return change


def stale_table(answer):
    """Take the blocks of the request as they were, with those of an earlier block kept."""
    return tables((1, 2, max(answer.blocks[0])))(hit(4)(answer))


LIES = {
    "keys_are_separate": Lie(
        ONE,
        (*whole(A), ops.Admit(replace(TWIN, namespace=Namespace(key="x")))),
        "admit",
        1,
        another,
    ),
    "embeddings_are_separate": Lie(
        ONE, (*whole(A), ops.Admit(replace(TWIN, embedded=4))), "admit", 1, another
    ),
    "groups_never_share_blocks": Lie(
        WINDOW, (ops.Admit(A),), "admit", 0, tables(None, (1, 2, 3, 4))
    ),
    "blocks_keep_their_identity_while_there_is_room": Lie(
        WINDOW, (*whole(A), ops.Lookup(TWIN)), "inspect", -1, dropped((2,), ())
    ),
    "hits_end_with_whole_entries": Lie(ENTRIES, (*whole(A), ops.Admit(TWIN)), "admit", 1, hit(5)),
    "sidecars_stay_with_their_blocks": Lie(
        SIDECAR, (*whole(A), ops.Evict(1)), "evict", 0, first_group_alone, without_sidecar
    ),
    "hits_are_valid_in_every_group": Lie(WINDOW, (ops.Admit(A),), "admit", 0, hit(2)),
    "draft_groups_cost_one_unit": Lie(DRAFT, (*whole(A), ops.Admit(TWIN)), "admit", 1, hit(6)),
    "backups_copy_what_is_cached": Lie(
        HOST, (*whole(A), ops.Lookup(TWIN)), "inspect", -1, moved(0, 9, 13)
    ),
    "loads_read_what_the_host_keeps": Lie(
        HOST, (*whole(A), ops.Admit(TWIN)), "admit", 1, moved(0, 13, 9)
    ),
    "partial_blocks_are_copied_before_they_are_written": Lie(
        PARTIAL, (*whole(A), ops.Admit(SHORT)), "admit", 1, without_copies
    ),
    "blocks_behind_a_window_are_returned": Lie(
        WINDOW, (ops.Admit(A), ops.Complete()), "complete", 0, tables(None, (5, 6, 7, 8))
    ),
    "blocks_behind_a_window_outlive_running_steps": Lie(
        WINDOW, (ops.Admit(A), ops.Complete()), "complete", 0, tables(None, (0, 0, 0, 8))
    ),
    "rejected_drafts_are_never_indexed": Lie(
        ONE,
        (
            *(ops.Admit(Request("a", (1, 2, 3))), ops.Extend("a", drafts=(4, 5)), ops.Complete()),
            *(ops.Complete(accepted=0), ops.Finish("a"), ops.Admit(LONGER)),
        ),
        "admit",
        1,
        stale_table,
    ),
    "hits_never_end_inside_a_span": Lie(
        ONE, (*whole(MEDIA), ops.Admit(replace(MEDIA, id="b"))), "admit", 1, hit(2)
    ),
    "steps_never_split_a_span": Lie(
        ONE, (ops.Admit(MEDIA, compute=3),), "admit", 0, lambda answer: replace(answer, stop=3)
    ),
    "encoders_run_once_per_missed_span": Lie(
        ONE, (ops.Admit(MEDIA),), "admit", 0, lambda answer: replace(answer, encode=())
    ),
    "a_recurrent_hit_needs_a_checkpoint": Lie(
        STATE, (*whole(A), ops.Admit(FORK)), "admit", 1, hit(2)
    ),
    "states_are_of_exactly_the_tokens_read": Lie(ROWS, serve(A), "extend", 0, read_from(7)),
    "state_copies_are_disjoint": Lie(
        STATE,
        serve(A),
        "admit",
        0,
        lambda answer: replace(answer, saves=(answer.saves[0][:2] + answer.saves[0][1:2],)),
    ),
    "state_blocks_have_one_owner": Lie(
        ROWS, (ops.Admit(A), ops.Admit(FORK)), "admit", 1, written_to(1)
    ),
    "decode_checkpoints_keep_their_interval": Lie(
        ROWS,
        serve(A, ops.Extend("a", (8,)), ops.Complete()),
        "extend",
        1,
        lambda answer: replace(answer, saves=((1, 1, 8),)),
    ),
    "a_mismatch_destroys_no_checkpoint": Lie(
        ROWS, (*whole(A), ops.Lookup(FORK)), "inspect", -1, dropped((), (1,))
    ),
    "prompts_leave_a_checkpoint": Lie(STATE, (ops.Admit(A),), "admit", 0, without_checkpoints),
    "states_are_saved_where_declared": Lie(STATE, (ops.Admit(A),), "admit", 0, saved_early(2, 20)),
    "the_oldest_goes_first_in_all_groups": Lie(
        WINDOW,
        (*whole(A), *whole(OTHER), ops.Evict(1)),
        "evict",
        0,
        lambda answer: replace(answer, blocks=((9,), ())),
    ),
    "junctions_are_checkpointed": Lie(
        STATE, (*whole(A), ops.Admit(FORK)), "admit", 1, without_checkpoints
    ),
    "expert_rows_are_those_of_a_fresh_run": Lie(
        ONE,
        (ops.Admit(A), ops.Complete(), ops.Experts("a")),
        "experts",
        0,
        lambda rows: (rows[1], *rows[1:]),
    ),
    "missing_expert_rows_are_reported": Lie(
        ONE,
        (ops.Admit(A), ops.Complete(routed=False), ops.Experts("a")),
        "experts",
        0,
        lambda rows: (7, *rows[1:]),
    ),
    "missing_expert_rows_are_filled": Lie(
        ONE,
        (
            *whole(A, routed=False),
            *whole(replace(A, read=False)),
            *(ops.Admit(TWIN), ops.Complete(), ops.Experts("b")),
        ),
        "experts",
        0,
        lambda rows: (None, *rows[1:]),
    ),
    "hits_stop_before_missing_experts": Lie(
        STRICT, (*whole(A, routed=False), ops.Admit(TWIN)), "admit", 1, hit(4)
    ),
}
"""Property of the level `full` -> an answer that only this property has to find."""
