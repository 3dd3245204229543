"""Run the state machine within a budget and say what it saw."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import seed as with_seed
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from kvproof.harness.errors import TargetDied
from kvproof.harness.handles import Handle
from kvproof.harness.operations import name
from kvproof.harness.session import Session
from kvproof.harness.violation import Violation
from kvproof.suites.cache.machine import CacheMachine


@dataclass
class Exploration:
    """What one run of the machine did to one target."""

    test_cases: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    situations: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    violation: Violation | None = None
    """Of the smallest failing history."""
    died: TargetDied | None = None

    def add(self, session: Session) -> None:
        """Count one test case."""
        self.test_cases += 1
        self.operations.update(name(operation) for operation, _ in session.history)
        self.situations.update(session.situations.seen)
        self.checks.update(session.checks)
        self.hits.update(session.situations.hits)


def explore(
    handle: Handle,
    budget: settings,
    *,
    seed: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
    expected: frozenset[str] = frozenset(),
) -> Exploration:
    """Drive `handle` through random histories until the budget is spent or a property fails.

    `progress` hears the number of test cases; histories that break an `expected` property end
    quietly there. Errors of the harness itself are raised.
    """
    seen, start = Exploration(), time.monotonic()

    class Machine(CacheMachine):
        def teardown(self) -> None:
            if hasattr(self, "session"):
                seen.add(self.session)
                progress(seen.test_cases)
            super().teardown()

    Machine.handle, Machine.expected = handle, expected
    factory = Machine if seed is None else with_seed(seed)(Machine)
    try:
        run_state_machine_as_test(factory, settings=budget)
    except Violation as violation:
        seen.violation = violation
    except TargetDied as died:
        seen.died = died
    seen.seconds = time.monotonic() - start
    return seen
