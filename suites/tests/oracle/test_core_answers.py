"""Wrong answers are verdicts about the target, and failing histories shrink to what they need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import Phase, settings

from kvproof.harness.adapters.reference.target import ReferenceTarget, make_target
from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.target import (
    Batch,
    Namespace,
    Refused,
    Released,
    Request,
    Scheduled,
    Span,
    TargetConfig,
    Usage,
)
from kvproof.harness.isolation.handles import InProcessHandle
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.session import Session
from kvproof.suites.conformance.properties import BY_NAME
from kvproof.suites.conformance.suite import conformance
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import (
    Counterexample,
    History,
    Operation,
    counterexample,
)
from kvproof.suites.framework.shrink import minimise, without_needless
from kvproof.suites.tests.framework import faults
from kvproof.suites.tests.framework.suite_kit import explore_target as explore

CONFIG = TargetConfig(num_blocks=6, block_size=2)


def check(target, *operations, config=CONFIG):
    session = Session(target, config)
    for operation in operations:
        session.apply(operation)


A = Request("a", (1, 2, 3))


def wrong(verb, change):
    """Return a reference that changes the answers of one verb."""
    target = make_target(CONFIG)
    answer = getattr(target, verb)
    setattr(target, verb, lambda *a, **k: change(answer(*a, **k)))
    return target


@pytest.mark.parametrize(
    ("verb", "change", "expected"),
    [
        ("admit", lambda x: replace(x, stop=99), "last_token_is_computed"),
        ("admit", lambda x: replace(x, stop=4), "last_token_is_computed"),
        ("admit", lambda x: replace(x, stop=0), "last_token_is_computed"),
        ("admit", lambda x: replace(x, start=1), "last_token_is_computed"),
        ("admit", lambda x: replace(x, hit=2, start=2), "nothing_is_read_before_it_is_written"),
        ("admit", lambda x: replace(x, hit=-2, start=-2), "last_token_is_computed"),
        ("admit", lambda x: replace(x, blocks=((1,),), tables=((1,),)), "table_covers_its_tokens"),
        ("admit", lambda x: replace(x, blocks=((),), tables=((),)), "table_covers_its_tokens"),
        ("admit", lambda x: replace(x, blocks=(), tables=()), "table_covers_its_tokens"),
        ("admit", lambda x: replace(x, tables=((1, 3),)), "kernel_tables_address_their_blocks"),
        ("admit", lambda x: replace(x, blocks=((0, 1),), tables=((0, 1),)), "null_block_is_never"),
        ("admit", lambda x: replace(x, blocks=((2, 2),), tables=((2, 2),)), "a_hit_block_survives"),
        ("admit", lambda x: replace(x, blocks=((1, 9),), tables=((1, 9),)), "table_covers_its"),
        ("extend", lambda x: replace(x, start=2), "table_never_shifts"),
        ("extend", lambda x: replace(x, stop=99), "table_never_shifts"),
        ("extend", lambda x: replace(x, stop=6), "table_never_shifts"),
        ("extend", lambda x: replace(x, stop=2), "table_never_shifts"),
        ("extend", lambda x: replace(x, blocks=((),), tables=((),)), "table_never_shifts"),
        ("extend", lambda x: replace(x, blocks=(), tables=()), "table_covers_its_tokens"),
        ("complete", lambda x: replace(x, tables=()), "table_covers_its_tokens"),
        ("batch", lambda x: Batch(((),)), "batch_rows_are_the_tables"),
        ("batch", lambda x: Batch(()), "batch_rows_are_the_tables"),
        ("batch", lambda x: Batch((((),),)), "batch_rows_are_the_tables"),
        ("batch", lambda x: Batch((((1, 2), (1, 2)),)), "batch_rows_are_the_tables"),
        ("lookup", lambda x: x + 2, "lookup_finds_the_longest_prefix"),
        ("pin", lambda x: x + 2, "pins_hold_the_cached_prefix"),
        ("inspect", lambda x: replace(x, usage=Usage(5, 5, 0, 1)), "usage_adds_up"),
        ("inspect", lambda x: replace(x, usage=Usage(4, 5, 0, -1)), "usage_adds_up"),
        ("inspect", lambda x: replace(x, holders={1: 2, 2: 1}), "holders_equal_tables_and_pins"),
        ("reset", lambda x: Refused("busy"), "reset_does_what_it_says"),
        ("finish", lambda x: replace(x, blocks=((1,),)), "release_returns_what_was_held"),
        ("evict", lambda x: replace(x, blocks=((3,),)), "eviction_takes_idle_cached_blocks"),
    ],
    ids=[str(index) for index in range(32)],
)
def test_a_wrong_answer_is_a_violation_of_its_property(verb, change, expected):
    history = [
        ops.Admit(A),
        ops.Extend("a", (4, 5)),
        ops.ReadBatch(("a",)),
        ops.Complete(),
        ops.Complete(),
        ops.Lookup(replace(A, id="l")),
        ops.Pin(replace(A, id="p")),
        ops.Unpin("p"),
        ops.Finish("a"),
        ops.Evict(1),
        ops.Reset(),
    ]
    check(make_target(CONFIG), *history)
    with pytest.raises(Violation) as broken:
        check(wrong(verb, change), *history)
    assert broken.value.property.startswith(expected), broken.value
    assert broken.value.property in BY_NAME


def test_a_release_of_nobody_that_gives_something_back_is_a_violation():
    history = (ops.Admit(A), ops.Complete(), ops.Finish("a"), ops.Finish("a"))
    check(make_target(CONFIG), *history)
    target = make_target(CONFIG)
    finish, first = target.finish, iter((True, False))
    target.finish = lambda name: finish(name) if next(first) else Released(((1,),))
    with pytest.raises(Violation) as broken:
        check(target, *history)
    assert broken.value.property == "release_is_idempotent"


def test_a_hit_of_what_was_not_to_be_stored_is_a_violation():
    history = (ops.Admit(replace(A, id="x", store=False)), ops.Complete(), ops.Admit(A))
    check(make_target(CONFIG), *history)
    target = make_target(CONFIG)
    admit = target.admit

    def hitting(request, compute=None):
        answer = admit(request, compute)
        if not request.store:
            return answer
        table = (1, answer.blocks[0][1])
        return replace(answer, hit=2, start=2, blocks=(table,), tables=(table,))

    target.admit = hitting
    with pytest.raises(Violation) as broken:
        check(target, *history)
    assert broken.value.property == "requests_that_may_not_store_leave_nothing"


@pytest.mark.parametrize(
    ("request_", "answer", "expected"),
    [
        (A, Refused("invalid"), "malformed_identity_is_refused"),
        (A, Refused("no_space", 2, 1), "what_fits_is_admitted"),
        (A, Refused("never_fits", 2, 1), "what_can_fit_is_never_refused_for_good"),
        (
            replace(A, tokens=(1,) * 11),
            Refused("never_fits", 5, 5),
            "a_refusal_for_good_shows_the_lack",
        ),
        (replace(A, tokens=(1,) * 10), Refused("no_space", 5, 4), "what_fits_is_admitted"),
        (
            replace(A, spans=(Span("image", 2, 9, "h"),)),
            Scheduled(1, 0, 0, 3, ((1, 2),), ((1, 2),)),
            "malformed_identity_is_refused",
        ),
        (
            replace(A, tokens=(1,) * 11),
            Scheduled(1, 0, 0, 2, ((1,),), ((1,),)),
            "what_can_never_fit_is_refused_at_arrival",
        ),
    ],
)
def test_a_wrong_decision_about_admission_is_a_violation(request_, answer, expected):
    with pytest.raises(Violation) as broken:
        check(wrong("admit", lambda _: answer), ops.Admit(request_))
    assert broken.value.property == expected


@pytest.mark.parametrize("shorter", [0, 1])
def test_rows_of_a_batch_that_are_no_tensor_are_a_violation(shorter):
    """Each row alone is right: its own table, and padding that nothing reads."""
    history = [ops.Admit(A), ops.Admit(Request("b", (7,))), ops.ReadBatch(("a", "b"))]
    padded = [lambda row: row, lambda row: (*row, 0)]
    ragged = wrong(
        "batch",
        lambda x: Batch(
            tuple(
                tuple(padded[index != shorter](row) for index, row in enumerate(rows))
                for rows in x.tables
            )
        ),
    )
    check(make_target(CONFIG), *history)
    with pytest.raises(Violation, match="width") as broken:
        check(ragged, *history)
    assert broken.value.property == "batch_rows_are_the_tables"


def operations_of(found):
    return [operation for operation, _ in found.history.machine.session.history]


def failing(handle, *operations, config=CONFIG):
    """Return how a history breaks a property, as a suite finds it."""
    calls = [(ops.name(each), ops.compact(each)) for each in operations]
    return counterexample(conformance(handle), ops.compact(config), calls)


@pytest.mark.slow(reason="finds planted faults by exploration")
@pytest.mark.parametrize("fault", ["namespace_ignored", "lost_reference", "collision_accepted"])
def test_a_minimised_history_breaks_the_same_property_and_needs_every_operation(fault):
    handle = InProcessHandle(fault, getattr(faults, fault))
    unshrunk = settings(BUDGETS["pr"], phases=[Phase.generate])
    found = explore(handle, unshrunk).counterexample
    smallest = minimise(conformance(handle), found)
    assert smallest.violation.property == found.violation.property
    history, config = operations_of(smallest), smallest.history.machine.session.config
    for index in range(len(history)):
        without = history[:index] + history[index + 1 :]
        again = failing(handle, *without, config=config)
        assert not again or again.violation.property != found.violation.property, index


def test_minimising_leaves_out_what_the_failure_does_not_need():
    handle = InProcessHandle("subject", faults.namespace_ignored)
    salted = Request("salted", (1, 2, 3), Namespace(salt="x"))
    noise = [
        ops.Lookup(Request("l", (1,))),
        ops.Admit(Request("n", (7, 8, 9))),
        ops.Complete(),
        ops.Finish("n"),
        ops.Evict(1),
    ]
    needed = [ops.Admit(A), ops.Complete(), ops.Admit(salted)]
    found = failing(handle, *noise, needed[0], ops.Finish("x"), *needed[1:])
    smallest = minimise(conformance(handle), found)
    assert operations_of(smallest) == needed
    assert smallest.violation.property == found.violation.property


class Moody(ReferenceTarget):
    """Breaks one property if it has seen request `a`, and another if not."""

    def admit(self, request, compute=None):
        self.knows = getattr(self, "knows", False) or request.id == "a"
        return super().admit(request, compute)

    def finish(self, request_id):
        answer = super().finish(request_id)
        return replace(answer, blocks=((1,),)) if self.knows else answer

    def inspect(self):
        seen = super().inspect()
        lies = not getattr(self, "knows", True)
        return replace(seen, usage=replace(seen.usage, held=-1)) if lies else seen


def test_minimising_never_slips_from_one_property_to_another():
    handle = InProcessHandle("moody", Moody)
    b = Request("b", (4, 5, 6))
    history = [ops.Admit(A), ops.Complete(), ops.Admit(b), ops.Complete(), ops.Finish("b")]
    found = failing(handle, *history)
    assert found.violation.property == "release_returns_what_was_held"
    assert failing(handle, *history[2:]).violation.property == "usage_adds_up"
    smallest = minimise(conformance(handle), found)
    assert smallest.violation.property == "release_returns_what_was_held"
    assert ops.Admit(A) in operations_of(smallest)


def test_a_history_is_cut_down_for_no_longer_than_allowed() -> None:
    def broken(operations: Sequence[int]) -> Counterexample | None:
        if not {3, 17, 31} <= {*operations}:
            return None
        history = cast("History", SimpleNamespace(operations=operations))
        violation = Violation("it_breaks", "invariant", "three of them together")
        return Counterexample(violation, history)

    again = cast("Callable[[Sequence[Operation]], Counterexample | None]", broken)
    found = broken(list(range(32)))
    assert found
    assert without_needless(found, again).history.operations == [3, 17, 31]
    assert without_needless(found, again, seconds=-1).history.operations == list(range(32))
