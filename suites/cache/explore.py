"""Run the state machine within a budget and say what it saw."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from hypothesis import reject, settings
from hypothesis import seed as with_seed
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.stateful import run_state_machine_as_test

from kvproof.harness.errors import TargetDied
from kvproof.harness.handles import Handle
from kvproof.harness.operations import Operation, name
from kvproof.harness.oplog import play
from kvproof.harness.session import Session
from kvproof.harness.violation import Violation
from kvproof.suites.cache.machine import CacheMachine

SHRINK_SECONDS = 10
"""Hypothesis has no limit of its own below five minutes; what is left out by then is enough."""


def _size(violation: Violation) -> tuple[int, int]:
    assert violation.session is not None
    history = violation.session.history
    return len(history), len(repr(history))


@dataclass
class Exploration:
    """What the machine did to one target, and the smallest history that broke a property."""

    test_cases: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    situations: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    tolerated: Counter[str] = field(default_factory=Counter)
    """Failures of properties that were not to stop it."""
    violation: Violation | None = None
    died: TargetDied | None = None
    interrupted: bool = False
    """By Ctrl-C; what was seen until then stands."""
    broken: Exception | None = None
    """A fault of the harness, also one that shows only now and then."""
    _first: float = 0.0

    def add(self, session: Session) -> None:
        """Count one test case."""
        self.test_cases += 1
        self.operations.update(name(operation) for operation, _ in session.history)
        self.situations.update(session.situations.seen)
        self.checks.update(session.checks)
        self.hits.update(session.situations.hits)

    def keep(self, violation: Violation) -> None:
        """Keep the smallest violation."""
        self._first = self._first or time.monotonic()
        if self.violation is None or _size(violation) <= _size(self.violation):
            self.violation = violation

    def lose(self, died: TargetDied) -> None:
        """Keep the death of the target; end here if its process is gone."""
        self.died = died
        if died.fatal:
            raise _Stop from died

    def over(self, deadline: float) -> bool:
        """Tell whether there was time enough to explore, or to shrink what was found."""
        limit = self._first + SHRINK_SECONDS if self.violation else deadline
        return time.monotonic() > limit


class _Stop(KeyboardInterrupt):
    """Carried past Hypothesis: the one kind of error whose test case it does not run again."""


def minimise(handle: Handle, violation: Violation) -> Violation:
    """Leave out every operation without which the same property still fails."""
    before = 0
    while before != len(_operations(violation)):  # what was left out may have needed others
        before = len(_operations(violation))
        for index in range(before - 2, -1, -1):
            operations = _operations(violation)
            smaller = _violates(handle, violation, operations[:index] + operations[index + 1 :])
            violation = smaller or violation
    return violation


def _operations(violation: Violation) -> list[Operation]:
    assert violation.session is not None
    return [operation for operation, _ in violation.session.history]


def _violates(
    handle: Handle, violation: Violation, operations: list[Operation]
) -> Violation | None:
    assert violation.session is not None
    config = violation.session.config
    session = Session(handle.create(config), config)
    try:
        play(session, operations)
    except Violation as found:
        return found if found.property == violation.property else None
    except TargetDied:
        return None
    return None


def explore(
    handle: Handle,
    budget: settings,
    *,
    seed: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
    tolerate: Collection[str] = (),
    deadline: float = math.inf,
) -> Exploration:
    """Drive `handle` through random histories until the budget is spent or a property fails.

    `progress` hears the number of test cases. Histories that break a property in `tolerate` end
    quietly there; `deadline` is in seconds of `time.monotonic`. Errors of the harness are raised,
    Ctrl-C is not: what it cut short may hold a violation.
    """
    seen = Exploration()

    class Machine(CacheMachine):
        def apply(self, operation: Operation) -> None:
            if seen.over(deadline):
                raise _Stop
            try:
                super().apply(operation)
            except Violation as violation:
                if violation.property in tolerate:
                    seen.tolerated[violation.property] += 1
                    reject()
                if seen.violation and violation.property != seen.violation.property:
                    reject()  # shrinking must not slip from one bug to another
                seen.keep(violation)
                raise
            except TargetDied as died:
                seen.lose(died)
                raise
            except Exception as error:
                seen.broken = error
                raise

        def open(self) -> Session:
            try:
                return super().open()
            except TargetDied as died:
                seen.lose(died)
                raise

        def teardown(self) -> None:
            if hasattr(self, "session"):
                seen.add(self.session)
                progress(seen.test_cases)
            try:
                super().teardown()
            except TargetDied as died:
                seen.lose(died)
                raise

    Machine.handle = handle
    factory = Machine if seed is None else with_seed(seed)(Machine)
    try:
        run_state_machine_as_test(factory, settings=budget)
    except (Violation, TargetDied, _Stop):
        pass  # `seen` holds the smallest failing history
    except KeyboardInterrupt:
        seen.interrupted = True
    except (Flaky, Unsatisfiable):
        if seen.broken:
            raise seen.broken from None
        # a target that answers equal histories differently, or every history ended quietly
        if seen.violation is None and seen.died is None and not seen.tolerated:
            raise
    if seen.violation and not seen.interrupted:
        seen.violation = minimise(handle, seen.violation)
    return seen
