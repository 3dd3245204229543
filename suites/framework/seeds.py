"""Explore a suite by seeds: the histories of `ComponentSuite.by_seed`, without Hypothesis.

Failures are classified, claimed and counted as in `state_machine.explore`; a failing history is
shrunk by leaving operations out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from hypothesis import settings
from hypothesis.errors import UnsatisfiedAssumption

from kvproof.harness.errors import TargetDied
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.component_suite import BySeed, ComponentSuite, History
from kvproof.suites.framework.explore import Elsewhere, Exploration, Stop, Watch
from kvproof.suites.framework.shrink import cut_down, minimise, size

PARTS = 16
"""Parts of a budget, which processes may share."""
APART = 1_000_003
"""Histories of one seed have seeds of their own; those of the next seed are this far away."""


def seed_of(seed: int, number: int) -> int:
    """Return the seed of one history."""
    return seed * APART + number


def explore_by_seed(
    suite: ComponentSuite,
    budget: settings,
    *,
    seed: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
    shrinking: Callable[[int], None] = lambda _: None,
    deadline: float = math.inf,
    claim: Callable[[str], bool] = lambda _: True,
    elsewhere: Elsewhere = lambda _: None,
) -> Exploration:
    """Run a budget's histories until a property fails.

    The keywords are those of `Watch` and of `explore.drive_all`; a part is every PARTS-th history.
    Raises errors of the harness; Ctrl-C is not raised, since the histories before it may hold a
    violation.
    """
    assert suite.by_seed is not None, "the suite has no histories by seed"
    watch = Watch(size, (), deadline, progress, shrinking, claim)
    try:
        for part in range(PARTS):
            counts = elsewhere(part)
            if counts is not None:
                watch.seen.add(counts)
                continue
            for number in range(part, budget.max_examples, PARTS):
                choices = suite.by_seed.choices(seed_of(seed or 0, number))
                history = History(suite, suite.by_seed.config(choices, number))
                _one(watch, history, suite.by_seed, choices, budget.stateful_step_count)
    except (Violation, TargetDied, Stop):
        pass  # `seen` holds the failing history
    except KeyboardInterrupt:
        watch.seen.interrupted = True
    return cut_down(watch.seen, partial(minimise, suite, tried=watch.still_shrinking))


def _one(watch: Watch, history: History, drawn: BySeed, choices: object, operations: int) -> None:
    """Run one history; a failure that is known, or another worker's to shrink, ends it quietly."""
    try:
        with watch.operation(history):
            history.open()
        for _ in range(operations):
            with watch.operation(history):
                history.apply(*drawn.operation(history.machine, choices))
        for verb, arguments in drawn.end:
            with watch.operation(history):
                history.apply(verb, arguments)
    except UnsatisfiedAssumption:
        pass
    finally:
        watch.ended(history)
