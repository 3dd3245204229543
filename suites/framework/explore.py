"""Drive a state machine within a budget: what the exploration of every suite shares."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product

from hypothesis import reject, settings
from hypothesis import seed as with_seed
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from kvproof.harness.errors import ANSWERS, TargetDied
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.component_suite import Counterexample, History

SHRINK_SECONDS = 10
"""Hypothesis has no limit of its own below five minutes; what is left out by then is enough."""

TURN = 200
"""Test cases after which all machines of a subject have had a turn."""

NEXT_TURN = 1 << 40
"""From the seed of a turn to that of the next: units of a campaign have seeds one apart."""

REDRAWN = 1 << 80
"""To the seed of what is drawn anew where Hypothesis gave up."""


@dataclass
class Counts:
    """What one or more explorations did."""

    test_cases: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    situations: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    tolerated: Counter[str] = field(default_factory=Counter)
    """Failures that are known: of tolerated properties, and where a confined one is excused."""
    unshrunk: Counter[str] = field(default_factory=Counter)
    """Failures whose smallest history was not looked for here."""

    def add(self, other: Counts) -> None:
        """Add the counts of `other`."""
        self.test_cases += other.test_cases
        self.operations.update(other.operations)
        self.situations.update(other.situations)
        self.checks.update(other.checks)
        self.hits.update(other.hits)
        self.tolerated.update(other.tolerated)
        self.unshrunk.update(other.unshrunk)


@dataclass
class Exploration(Counts):
    """Counts of an exploration, and the smallest history that broke a property."""

    counterexample: Counterexample | None = None
    died: TargetDied | None = None
    interrupted: bool = False
    """By Ctrl-C; what was seen until then stands."""
    broken: Exception | None = None
    """A fault of the harness, also one that shows only now and then."""
    first_case: int = 0
    """The first test case that failed, counted from one; 0: none did."""

    @property
    def violation(self) -> Violation | None:
        """The property that failed, with the smallest history known."""
        return self.counterexample.violation if self.counterexample else None


class Stop(KeyboardInterrupt):
    """Carried past Hypothesis: the one kind of error whose test case it does not run again."""


@dataclass
class Watch:
    """Stands between Hypothesis and a machine: decides what an outcome means, and when to end."""

    size: Callable[[Counterexample], tuple[int, int]]
    """Length of a history; ties go to the second number."""
    tolerate: Collection[str] = ()
    """Properties whose violation ends a history quietly."""
    deadline: float = math.inf
    """In seconds of `time.monotonic`."""
    progress: Callable[[int], None] = lambda _: None
    """Hears the number of test cases."""
    claim: Callable[[str], bool] = lambda _: True
    """Asked before a property is shrunk: False, and its violation only ends a history."""
    seen: Exploration = field(default_factory=Exploration)
    confined: Mapping[str, str] = field(default_factory=dict)
    """Property -> situation after which its violation, too, ends a history quietly."""
    _first: float = 0.0

    @contextmanager
    def operation(self, history: History) -> Iterator[None]:
        """Run one operation of `history` inside, or make its machine."""
        if self.over:
            raise Stop
        try:
            yield
        except Violation as violation:
            self._broke(violation, history)
            raise
        except TargetDied as died:
            if not died.fatal:
                self._pass_over(ANSWERS)
            self.lose(died)
            raise
        except Exception as error:
            self.seen.broken = error
            raise

    @contextmanager
    def life(self) -> Iterator[None]:
        """Make or close a subject inside."""
        try:
            yield
        except TargetDied as died:
            self.lose(died)
            raise

    def ended(self, case: Counts) -> None:
        """Count one test case."""
        self.seen.add(case)
        self.progress(self.seen.test_cases)

    def _broke(self, violation: Violation, history: History) -> None:
        best, found = self.seen.counterexample, Counterexample(violation, history)
        self._pass_over(violation.property, known=self._is_excused(found))
        self._first = self._first or time.monotonic()
        self.seen.first_case = self.seen.first_case or self.seen.test_cases + 1
        if best is None or self.size(found) <= self.size(best):
            self.seen.counterexample = found

    def _pass_over(self, name: str, *, known: bool = False) -> None:
        """End a history quietly if what failed is known, or is not to be shrunk now."""
        best = self.seen.violation
        if known or name in self.tolerate:
            counts = self.seen.tolerated
        # shrinking must not slip from one bug to another
        elif (best and name != best.property) or not self.claim(name):
            counts = self.seen.unshrunk
        else:
            return
        counts[name] += 1
        reject()

    def _is_excused(self, found: Counterexample) -> bool:
        where = self.confined.get(found.violation.property)
        return bool(where and found.history.coverage.situations[where])

    def lose(self, died: TargetDied) -> None:
        """Keep the death of the target; end here if its process is gone."""
        self.seen.died = died
        self.seen.first_case = self.seen.first_case or self.seen.test_cases + 1
        if died.fatal:
            raise Stop from died

    @property
    def over(self) -> bool:
        """Tell whether there was time enough to explore, or to shrink what was found."""
        limit = self._first + SHRINK_SECONDS if self.seen.violation else self.deadline
        return time.monotonic() > limit


def drive(
    machine: type[RuleBasedStateMachine], watch: Watch, budget: settings, *, seed: int | None
) -> Exploration:
    """Run `machine`, which reports to `watch`, until the budget is spent or a property fails.

    Hypothesis gives up where a subject answers equal histories differently, as one does that goes
    by the clock: what is left of the budget is then drawn anew. Errors of the harness are raised,
    Ctrl-C is not: what it cut short may hold a violation.
    """
    seen = watch.seen
    end, left = seen.test_cases + budget.max_examples, budget.max_examples
    while left > 0 and _run(machine, watch, settings(budget, max_examples=left), seed=seed):
        budget = settings(budget, derandomize=False)
        seed, left = (seed or 0) + REDRAWN, min(left - 1, end - seen.test_cases)
    return seen


def _run(
    machine: type[RuleBasedStateMachine], watch: Watch, budget: settings, *, seed: int | None
) -> bool:
    """Let Hypothesis run once; tell whether it gave up because of what the subject answers."""
    seen = watch.seen
    factory = machine if seed is None else with_seed(seed)(machine)
    try:
        run_state_machine_as_test(factory, settings=budget)
    except (Violation, TargetDied, Stop):
        pass  # `seen` holds the smallest failing history
    except KeyboardInterrupt:
        seen.interrupted = True
    except AssertionError as error:
        # Hypothesis asserts in place of a Ctrl-C that comes before its engine runs
        if not isinstance(error.__context__, KeyboardInterrupt):
            raise
        seen.interrupted = True
    except (Flaky, Unsatisfiable) as error:
        if seen.broken:
            raise seen.broken from None
        quiet = seen.tolerated or seen.unshrunk
        # a subject that answers equal histories differently, or every history ended quietly
        if seen.violation is None and seen.died is None and not quiet:
            raise
        return isinstance(error, Flaky) and seen.violation is None and seen.died is None
    return False


def drive_all(
    machines: Sequence[type[RuleBasedStateMachine]],
    watch: Watch,
    budget: settings,
    *,
    seed: int | None,
) -> Exploration:
    """Deal a budget out evenly to machines that share `watch`; see `drive`.

    They take turns, so that a large budget, too, soon shows what only the last of them draws.
    """
    # derandomized and without a seed, each turn would draw the same
    turns = 1 if budget.derandomize and seed is None else max(1, budget.max_examples // TURN)
    share = settings(budget, max_examples=math.ceil(budget.max_examples / turns / len(machines)))
    for turn, machine in product(range(turns), machines):
        seen = drive(machine, watch, share, seed=None if seed is None else seed + turn * NEXT_TURN)
        if seen.violation or seen.died or seen.interrupted or watch.over:
            break
    return watch.seen
