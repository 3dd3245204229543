"""One wrong answer for each property of one group of full attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Batch,
    HitStatistics,
    Namespace,
    Refused,
    Request,
    Retained,
    Scheduled,
    Span,
    TargetConfig,
    Usage,
)
from kvproof.suites.tests.agreement.lies import (
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

SMALL = TargetConfig(num_blocks=3, block_size=2)
LARGE = Request("b", tuple(range(20, 38)))
TWICE = (*whole(A), ops.Admit(TWIN))
BATCH = (ops.Admit(A), ops.Admit(Request("b", (9,))), ops.ReadBatch(("a", "b")))


def once(change: Callable[[Any], object], verb: str, *history: ops.Operation) -> Lie:
    """A lie in the first call of a verb."""
    return Lie(ONE, history, verb, 0, change)


def at_end(change: Callable[[Any], object], *history: ops.Operation) -> Lie:
    """A lie in the inspection after the last operation."""
    return Lie(ONE, history, "inspect", len(history), change)


def second(change: Callable[[Any], object], *history: ops.Operation) -> Lie:
    """A lie in the second admission."""
    return Lie(ONE, history, "admit", 1, change)


def answers(**fields: Any) -> Callable[[Any], object]:
    """Change these fields of an answer."""
    return lambda answer: replace(answer, **fields)


def refuses(reason: str, needed: int, available: int) -> Callable[[Any], object]:
    """Refuse in place of the answer."""
    return lambda _: Refused(reason, needed, available)


def scheduled(stop: int, blocks: tuple[int, ...]) -> Callable[[Any], object]:
    """Admit in place of a refusal."""
    return lambda _: Scheduled(1, 0, 0, stop, (blocks,), (blocks,))


def raises(_: Any) -> object:
    """Fail in place of the answer."""
    raise KeyError("block 7")


def padded(batch: Batch) -> Batch:
    """Pad the second row with a page of a block in use."""
    long, short = batch.tables[0]
    return Batch(((long, (*short[:1], *(2 for _ in short[1:]))),))


LIES = {
    "every_verb_answers": once(raises, "finish", *whole(A)),
    "null_block_is_never_used": once(tables((0, 1, 2, 3)), "admit", ops.Admit(A)),
    "written_blocks_have_one_owner": second(tables((1, 2, 3, 4)), ops.Admit(A), ops.Admit(OTHER)),
    "holders_equal_tables_and_pins": at_end(
        answers(holders={1: 2, 2: 1, 3: 1, 4: 1}), ops.Admit(A)
    ),
    "release_returns_what_was_held": once(answers(blocks=((1,),)), "finish", *whole(A)),
    "release_is_idempotent": once(answers(blocks=((1,),)), "finish", ops.Finish("x")),
    "pins_hold_the_cached_prefix": once(lambda held: held + 2, "pin", *whole(A), ops.Pin(TWIN)),
    "scratch_goes_before_cached": second(tables((3, 8, 9, 10)), *whole(A), ops.Admit(OTHER)),
    "least_recent_goes_first": once(
        answers(blocks=((6,),)), "evict", *whole(A), *whole(OTHER), ops.Evict(1)
    ),
    "eviction_takes_idle_cached_blocks": once(
        answers(blocks=((9,),)), "evict", *whole(A), ops.Evict(1)
    ),
    "refusal_changes_nothing": at_end(
        answers(state="another"), ops.Admit(Request("a", tuple(range(30))))
    ),
    "a_hit_block_survives_its_own_admission": second(tables((1, 2, 3, 1)), *TWICE),
    "a_running_step_keeps_its_blocks": second(
        tables((1, 2, 3, 4)), ops.Admit(A), ops.Cancel("a"), ops.Admit(OTHER)
    ),
    "usage_adds_up": at_end(answers(usage=Usage(11, 8, 4, 0)), ops.Admit(A)),
    "held_blocks_are_those_in_tables": at_end(answers(usage=Usage(11, 8, 3, 0)), ops.Admit(A)),
    "cached_blocks_are_those_stored": at_end(answers(usage=Usage(11, 9, 0, 2)), *whole(A)),
    "what_fits_is_admitted": once(refuses("no_space", 1, 0), "admit", ops.Admit(A)),
    "what_can_never_fit_is_refused_at_arrival": Lie(
        SMALL, (ops.Admit(A),), "admit", 0, scheduled(3, (1, 2))
    ),
    "what_can_fit_is_never_refused_for_good": once(
        refuses("never_fits", 12, 11), "admit", ops.Admit(A)
    ),
    "a_refusal_for_good_shows_the_lack": Lie(
        SMALL, (ops.Admit(A),), "admit", 0, refuses("never_fits", 2, 2)
    ),
    "kernel_tables_address_their_blocks": once(
        answers(tables=((1, 2, 3, 5),)), "admit", ops.Admit(A)
    ),
    "batch_rows_are_the_tables": once(lambda _: Batch(((),)), "batch", *BATCH),
    "padding_is_the_null_block": once(padded, "batch", *BATCH),
    "reads_return_own_content": second(another, *whole(A), ops.Admit(OTHER)),
    "namespaces_are_separate": second(
        another, *whole(A), ops.Admit(replace(TWIN, namespace=Namespace(salt="x")))
    ),
    "spans_are_separate": second(
        another, *whole(replace(A, spans=(Span("image", 0, 4, "h"),))), ops.Admit(TWIN)
    ),
    "no_hit_across_epochs": second(another, *whole(A), ops.Reset(), ops.Admit(TWIN)),
    "reset_does_what_it_says": once(refuses("busy", 0, 0), "reset", ops.Admit(A), ops.Reset()),
    "malformed_identity_is_refused": once(
        scheduled(1, (1,)),
        "admit",
        ops.Admit(Request("a", (1,), spans=(Span("image", 0, 9, "h"),))),
    ),
    "requests_that_may_not_read_hit_nothing": second(
        another, *whole(A), ops.Admit(replace(TWIN, read=False))
    ),
    "requests_that_may_not_store_leave_nothing": second(
        another, *whole(replace(A, store=False)), ops.Admit(TWIN)
    ),
    "last_token_is_computed": once(answers(stop=99), "admit", ops.Admit(A)),
    "hits_are_maximal": second(lambda each: tables((7, 8, 9, 10))(hit(0)(each)), *TWICE),
    "hits_come_from_the_cache": second(another, ops.Admit(A), ops.Admit(TWIN)),
    "lookup_changes_nothing": at_end(answers(state="another"), *whole(A), ops.Lookup(TWIN)),
    "lookup_finds_the_longest_prefix": once(
        lambda found: found + 2, "lookup", *whole(A), ops.Lookup(TWIN)
    ),
    "equal_blocks_are_shared": Lie(
        ONE,
        (ops.Admit(A), ops.Admit(TWIN), ops.Complete(), ops.Complete()),
        "complete",
        1,
        tables((5, 6, 7, 8)),
        answers(usage=Usage(11, 3, 8, 0), holders=dict.fromkeys(range(1, 9), 1)),
    ),
    "nothing_is_read_before_it_is_written": once(hit(2), "admit", ops.Admit(A)),
    "no_block_outlives_its_parent": Lie(
        ONE,
        (*whole(A), ops.Admit(LARGE)),
        "admit",
        1,
        tables((4, 5, 6, 7, 8, 9, 10, 11, 1)),
        lambda found: replace(
            found, dropped=((),), holders={**dict.fromkeys(range(4, 12), 1), 1: 1}
        ),
        order="undeclared",
    ),
    "table_covers_its_tokens": once(tables((1,)), "admit", ops.Admit(A)),
    "a_step_computes_what_was_asked_for": once(
        answers(stop=4), "admit", ops.Admit(A, compute=3), ops.Complete()
    ),
    "table_never_shifts": once(
        answers(start=2), "extend", ops.Admit(A), ops.Complete(), ops.Extend("a", (4, 5))
    ),
    "hits_are_counted_once": at_end(answers(statistics=HitStatistics(9, 0)), *whole(A)),
    "only_what_is_cached_is_kept": at_end(answers(retained=Retained(99, 0)), *whole(A)),
    "events_replay_to_the_index": at_end(answers(events=()), ops.Admit(A), ops.Complete()),
}
"""Property of the level `core` -> an answer that only this property has to find."""
