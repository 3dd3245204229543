"""Search by seeds for a planted bug: until the first failure that is not known, and no further.

`kvproof fuzz --draw seeds` searches an engine as it is. A failure is shrunk by leaving operations
out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvproof.harness.errors import TargetDied
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.component_suite import BySeed, ComponentSuite, Counterexample, History
from kvproof.suites.framework.seeds import seed_of
from kvproof.suites.framework.shrink import minimise
from kvproof.suites.whole_engine.histories import Choose


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
    profiles: Sequence[Choose] = (),
    seconds: float = float("inf"),
) -> Search:
    """Run histories, dealt out to the profiles, until one fails in a way that is not known.

    `profiles`: all of the target's, if empty.
    """
    found, start = Search(), time.monotonic()
    assert suite.by_seed is not None, "the suite has no histories by seed"
    every = profiles or tuple(suite.by_seed.profiles.values())
    for number in range(histories):
        if time.monotonic() - start > seconds:
            break
        choices = suite.by_seed.choices(seed_of(seed, number))
        history = History(suite, every[number % len(every)](choices))
        _one(history, found, suite.by_seed, choices, operations)
        found.seconds = time.monotonic() - start
        if found.failure or found.died:
            break
    return found


def _one(history: History, found: Search, drawn: BySeed, choices: object, operations: int) -> None:
    try:
        history.open()
        for _ in range(operations):
            history.apply(*drawn.operation(history.machine, choices))
        for verb, arguments in drawn.end:
            history.apply(verb, arguments)
    except Violation as violation:
        if history.recognise(violation) is None:
            found.failure = Counterexample(violation, history)
    except TargetDied as died:
        found.died = died
    found.known.update(history.known)
    found.histories += 1
    found.operations += len(history.operations)
    found.checks.update(history.coverage.checks)
    found.situations.update(history.coverage.situations)


def cut_down(
    suite: ComponentSuite, found: Counterexample, *, seconds: float = 20.0
) -> Counterexample:
    """Leave out operations that the failure does not need."""
    return minimise(suite, found, seconds=seconds)
