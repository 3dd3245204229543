"""Explore one target with the machine of the suite `cache`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import ClassVar

from hypothesis import settings

from kvproof.harness.contract.operations import Operation, name
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.session import Session
from kvproof.harness.oracle.violation import Violation
from kvproof.harness.reproduce.oplog import play
from kvproof.suites.conformance.machine import CacheMachine
from kvproof.suites.conformance.profiles import Theme, themes
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.explore import (
    Counts,
    Exploration,
    Watch,
    cut_down,
    drive_all,
    without_needless,
)
from kvproof.suites.framework.property import Level


class WatchedMachine(CacheMachine):
    """The machine, reporting to `watch`; subclassed per exploration."""

    watch: ClassVar[Watch]

    def apply(self, operation: Operation) -> None:
        """Run and judge one operation, unless the time is up."""
        with self.watch.operation():
            super().apply(operation)

    def open(self) -> Session:
        """Make a target with the drawn pool."""
        with self.watch.life():
            return super().open()

    def teardown(self) -> None:
        """Count what was done, and give the target back."""
        if hasattr(self, "session"):
            self.watch.ended(_counts(self.session))
        with self.watch.life():
            super().teardown()


def _counts(session: Session) -> Counts:
    return Counts(
        test_cases=1,
        operations=Counter(name(operation) for operation, _ in session.history),
        situations=session.situations.seen,
        checks=session.checks,
        hits=session.situations.hits,
    )


def explore(
    handle: Handle,
    budget: settings,
    *,
    level: Level = "core",
    seed: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
    tolerate: Collection[str] = (),
    deadline: float = math.inf,
    claim: Callable[[str], bool] = lambda _: True,
) -> Exploration:
    """Drive `handle` through random histories until the budget is spent or a property fails.

    The budget is dealt out evenly to the themes of the level. The arguments are those of
    `Watch`. Errors of the harness are raised, Ctrl-C is not: what it cut short may hold a
    violation.
    """
    watch = Watch(_size, tolerate, deadline, progress, claim)
    watch.confined = expected_failures.confined(handle.profile)
    machines = [_machine(handle, theme, watch) for theme in themes(handle.profile, level)]
    seen = drive_all(machines, watch, budget, seed=seed)
    return cut_down(seen, partial(minimise, handle))


def _machine(handle: Handle, theme: Theme, watch: Watch) -> type[WatchedMachine]:
    """Make the machine of a theme; its name keeps the examples of themes apart in a database."""
    name = f"{theme.name.title().replace(' ', '')}CacheMachine"
    return type(name, (WatchedMachine,), {"handle": handle, "theme": theme, "watch": watch})


def minimise(handle: Handle, violation: Violation) -> Violation:
    """Leave out every operation without which the same property still fails."""
    assert violation.session is not None
    config = violation.session.config

    def again(operations: list[Operation]) -> Violation | None:
        try:
            play(Session(handle.create(config), config), operations)
        except Violation as found:
            return found
        except TargetDied:
            return None
        return None

    return without_needless(violation, _operations, again)


def _operations(violation: Violation) -> list[Operation]:
    assert violation.session is not None
    return [operation for operation, _ in violation.session.history]


def _size(violation: Violation) -> tuple[int, int]:
    assert violation.session is not None
    history = violation.session.history
    return len(history), len(repr(history))
