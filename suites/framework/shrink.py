"""Shrink a failing history: leave out operations without which it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from kvproof.harness.errors import ANSWERS
from kvproof.suites.framework.component_suite import (
    ComponentSuite,
    Counterexample,
    Operation,
    counterexample,
)
from kvproof.suites.framework.explore import Exploration

MINIMISE_SECONDS = 60
"""Limit for shrinking a failing history; a unit that takes much longer counts as hanging."""


def size(found: Counterexample) -> tuple[int, int]:
    """Return the number of operations of a counterexample; ties go to the second number."""
    operations = found.history.operations
    return len(operations), sum(len(each.text) for each in operations)


def cut_down(seen: Exploration, smaller: Callable[[Counterexample], Counterexample]) -> Exploration:
    """Replace a counterexample by a smaller one; Ctrl-C meanwhile leaves it as it is."""
    if seen.counterexample and not seen.interrupted:
        try:
            seen.counterexample = smaller(seen.counterexample)
        except KeyboardInterrupt:
            seen.interrupted = True
    return seen


def minimise(
    suite: ComponentSuite,
    found: Counterexample,
    *,
    seconds: float = MINIMISE_SECONDS,
    most: int | None = None,
    tried: Callable[[], None] = lambda: None,
) -> Counterexample:
    """Leave out every operation without which the same property still fails.

    A new failure stays one: a shorter history of a known failure is another one. Runs at most
    `most` histories, and calls `tried` before each.
    """
    config, known = found.history.config, found.history.recognise(found.violation)

    def again(kept: Sequence[Operation]) -> Counterexample | None:
        tried()
        other = counterexample(suite, config, [(each.verb, each.arguments) for each in kept])
        same = other and other.history.recognise(other.violation) is known
        return other if same else None

    return without_needless(found, again, seconds=seconds, most=most)


def shortest_death(
    suite: ComponentSuite,
    found: Counterexample,
    hurry: AbstractContextManager[None],
    *,
    tried: Callable[[], None],
) -> Counterexample:
    """Leave out every operation without which the target still dies.

    `hurry` makes it give up on a target that hangs earlier than usual: the shortest history is run
    once more with the usual limits, and counts only if the target still dies. So the whole takes at
    most MINIMISE_SECONDS, one more history, and twice the limit of an operation.
    """
    with hurry:
        shorter = minimise(suite, found, tried=tried)
    if shorter is found:
        return found
    calls = [(each.verb, each.arguments) for each in shorter.history.operations]
    again = counterexample(suite, found.history.config, calls)
    return again if again and _is_same(again, found) else found


def _is_same(other: Counterexample, found: Counterexample) -> bool:
    """Whether the same property fails; a target may die of one bug in one verb, and of another."""
    name = found.violation.property
    if name == ANSWERS and _last(other) != _last(found):
        return False
    return other.violation.property == name


def _last(found: Counterexample) -> str:
    operations = found.history.operations
    return operations[-1].verb if operations else ""


def without_needless(
    found: Counterexample,
    again: Callable[[Sequence[Operation]], Counterexample | None],
    *,
    seconds: float = MINIMISE_SECONDS,
    most: int | None = None,
) -> Counterexample:
    """Leave out operations without which `again` still breaks the same property.

    Many at once first, in the end one by one; operations not tried within `seconds`, or by the
    first `most` attempts, stay.
    """
    deadline, attempts = time.monotonic() + seconds, 0
    count = max(1, len(found.history.operations) // 2)
    while count:
        before = len(found.history.operations)
        for stop in range(before - 1, 0, -count):
            if time.monotonic() > deadline or attempts == most:
                return found
            attempts += 1
            now = found.history.operations
            other = again(now[: max(0, stop - count)] + now[stop:])
            if other and _is_same(other, found):
                found = other
        if len(found.history.operations) == before:  # else again: dependents are gone
            count //= 2
    return found
