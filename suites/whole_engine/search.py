"""Search by seeds for a planted bug: until the first failure that is not known, and no further.

`kvproof fuzz --draw seeds` searches an engine as it is. A failure is shrunk by leaving operations
out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings

from kvproof.harness.errors import TargetDied
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.component_suite import (
    BySeed,
    ComponentSuite,
    Config,
    Counterexample,
    DealtConfig,
    History,
)
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.framework.seeds import seed_of
from kvproof.suites.framework.shrink import minimise
from kvproof.suites.framework.suite import Suite

CUT_S = 3.0
"""Seconds of leaving operations out of the failing history of an exploration."""


@dataclass
class Search:
    """Result of a search."""

    histories: int = 0
    operations: int = 0
    seconds: float = 0.0
    checks: Counter[str] = field(default_factory=Counter)
    situations: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    """Histories with a known failure, by mechanism."""
    failure: Counterexample | None = None
    died: TargetDied | None = None


def search(
    suite: ComponentSuite,
    *,
    seed: int,
    histories: int,
    operations: int,
    config: Callable[[Any, int], Config | DealtConfig] | None = None,
    seconds: float = float("inf"),
    tolerate: Collection[str] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> Search:
    """Run histories until one fails in a way that is not known.

    `config`: chooses configurations in place of the suite's own. Failures of properties in
    `tolerate` are passed over; `progress` receives the number of histories.
    """
    found, start = Search(), time.monotonic()
    assert suite.by_seed is not None, "the suite has no histories by seed"
    choose = config or suite.by_seed.config
    for number in range(histories):
        if time.monotonic() - start > seconds:
            break
        choices = suite.by_seed.choices(seed_of(seed, number))
        history = History(suite, choose(choices, number))
        _one(history, found, suite.by_seed, choices, operations, tolerate)
        found.seconds = time.monotonic() - start
        progress(found.histories)
        if found.failure or found.died:
            break
    return found


def _one(
    history: History,
    found: Search,
    drawn: BySeed,
    choices: object,
    operations: int,
    tolerate: Collection[str],
) -> None:
    try:
        history.open()
        for _ in range(operations):
            history.apply(*drawn.operation(history.machine, choices))
        for verb, arguments in drawn.end:
            history.apply(verb, arguments)
    except Violation as violation:
        if history.recognise(violation) is None and violation.property not in tolerate:
            found.failure = Counterexample(violation, history)
    except TargetDied as died:
        found.died = died
    found.known.update(history.known)
    found.histories += 1
    found.operations += len(history.operations)
    found.checks.update(history.coverage.checks)
    found.situations.update(history.coverage.situations)


def explore(
    suite: Suite,
    budget: settings,
    *,
    seed: int | None = None,
    tolerate: Collection[str] = (),
    shrink: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> Exploration:
    """Search with the histories of a budget. Raises TargetDied, but for a hang.

    An engine's exceptions are failures: any other death is a fault of the harness.
    """
    found = search(
        suite.component,
        seed=1 if seed is None else seed,
        histories=budget.max_examples,
        operations=budget.stateful_step_count,
        tolerate=tolerate,
        progress=progress,
    )
    if found.died and found.died.kind != "hang":
        raise found.died
    seen = Exploration(test_cases=found.histories, died=found.died)
    if found.failure or found.died:
        seen.first_case, seen.first_at = found.histories, time.monotonic()
    if found.failure:
        seen.counterexample = cut_down(
            suite.component, found.failure, seconds=CUT_S if shrink else 0
        )
    return seen


def cut_down(
    suite: ComponentSuite, found: Counterexample, *, seconds: float = 20.0
) -> Counterexample:
    """Leave out operations that the failure does not need."""
    return minimise(suite, found, seconds=seconds)
