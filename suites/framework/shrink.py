"""Shrink a failing history: leave out operations without which it still fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kvproof.harness.errors import TargetDied
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
    suite: ComponentSuite, found: Counterexample, *, seconds: float = MINIMISE_SECONDS
) -> Counterexample:
    """Leave out every operation without which the same property still fails."""
    config = found.history.config

    def again(kept: Sequence[Operation]) -> Counterexample | None:
        try:
            return counterexample(suite, config, [(each.verb, each.arguments) for each in kept])
        except TargetDied:
            return None

    return without_needless(found, again, seconds=seconds)


def without_needless(
    found: Counterexample,
    again: Callable[[Sequence[Operation]], Counterexample | None],
    *,
    seconds: float = MINIMISE_SECONDS,
) -> Counterexample:
    """Leave out operations without which `again` still breaks the same property.

    Many at once first, in the end one by one; operations not tried within `seconds` stay.
    """
    deadline = time.monotonic() + seconds
    count = max(1, len(found.history.operations) // 2)
    while count:
        before = len(found.history.operations)
        for stop in range(before - 1, 0, -count):
            if time.monotonic() > deadline:
                return found
            now = found.history.operations
            other = again(now[: max(0, stop - count)] + now[stop:])
            if other and other.violation.property == found.violation.property:
                found = other
        if len(found.history.operations) == before:  # else again: dependents are gone
            count //= 2
    return found
