"""Drive a state machine within a budget: the exploration of every suite."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product

from hypothesis import seed as with_seed
from hypothesis import settings
from hypothesis.configuration import set_hypothesis_home_dir
from hypothesis.errors import Flaky, Unsatisfiable, UnsatisfiedAssumption
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.environments import home
from kvproof.harness.oracle.violation import Violation
from kvproof.suites.framework.component_suite import (
    ComponentSuite,
    Counterexample,
    History,
    unanswered,
)
from kvproof.suites.framework.known import Known
from kvproof.suites.framework.pairs import reached
from kvproof.suites.framework.same_draws import same_draws

SHRINK_SECONDS = 10
"""Hypothesis has no limit of its own below five minutes; this is enough to shrink."""

TURN = 200
"""Test cases after which all machines have had a turn."""

YOUNG = 20_000
"""New objects after which the garbage collector runs: histories make many, few in circles."""

NEXT_TURN = 1 << 40
"""Step from a turn's seed to the next: units of a campaign have seeds one apart."""

REDRAWN = 1 << 80
"""Added to the seed for new draws after Hypothesis gave up."""


@dataclass
class Counts:
    """Counts of one or more explorations."""

    test_cases: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    situations: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    pairs: Counter[str] = field(default_factory=Counter)
    """Histories by pair (`pairs.reached`)."""
    tolerated: Counter[str] = field(default_factory=Counter)
    """Histories with a known failure, by mechanism, or by tolerated property."""
    ended: Counter[str] = field(default_factory=Counter)
    """Tolerated histories that the failure ended."""
    unshrunk: Counter[str] = field(default_factory=Counter)
    """Failures that were not shrunk here."""
    seconds: float = 0.0
    engine_seconds: float = 0.0
    """Seconds until the target's answers; 0: the suite does not ask the target."""

    def add(self, other: Counts) -> None:
        """Add the counts of `other`."""
        self.test_cases += other.test_cases
        self.operations.update(other.operations)
        self.situations.update(other.situations)
        self.checks.update(other.checks)
        self.hits.update(other.hits)
        self.pairs.update(other.pairs)
        self.tolerated.update(other.tolerated)
        self.ended.update(other.ended)
        self.unshrunk.update(other.unshrunk)
        self.seconds += other.seconds
        self.engine_seconds += other.engine_seconds


@dataclass
class Exploration(Counts):
    """Counts of an exploration, and the smallest history that broke a property."""

    counterexample: Counterexample | None = None
    died: TargetDied | None = None
    death: Counterexample | None = None
    """The smallest history that killed the target."""
    others: dict[str, Counterexample] = field(default_factory=dict)
    """The smallest history of each failure that was not shrunk here."""
    interrupted: bool = False
    """Whether Ctrl-C ended it; the results until then stand."""
    broken: Exception | None = None
    """A fault of the harness, also an occasional one."""
    first_case: int = 0
    """The first test case that failed, counted from one; 0: none did."""
    first_at: float = 0.0
    """Time of that failure, by the monotonic clock; shrinking comes later."""

    @property
    def violation(self) -> Violation | None:
        """The property that failed, with the smallest known history."""
        return self.counterexample.violation if self.counterexample else None


Elsewhere = Callable[[int], Counts | None]
"""Returns the counts of another process in a part of a budget; None: it is explored here."""


class Stop(KeyboardInterrupt):
    """Passes through Hypothesis: the one kind of error whose test case it does not repeat."""


@dataclass
class Watch:
    """Stands between Hypothesis and a machine: classifies each outcome and ends the exploration."""

    size: Callable[[Counterexample], tuple[int, int]]
    """Length of a history; ties go to the second number."""
    tolerate: Collection[str] = ()
    deadline: float = math.inf
    progress: Callable[[int], None] = lambda _: None
    """Receives the number of histories so far, until one fails."""
    shrinking: Callable[[int], None] = lambda _: None
    """Receives it afterwards."""
    claim: Callable[[str], bool] = lambda _: True
    """Called before a property is shrunk; after False its violation only ends a history."""
    seen: Exploration = field(default_factory=Exploration)

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
                found = unanswered(died, history)
                self._pass_over(found, known=history.recognise(found.violation))
            self.lose(died, history)
            raise
        except Exception as error:
            self.seen.broken = error
            raise

    @contextmanager
    def life(self, history: History) -> Iterator[None]:
        """Close the machine of a history inside."""
        try:
            yield
        except TargetDied as died:
            self.lose(died, history)
            raise

    def ended(self, history: History) -> None:
        """Count a history and close its machine, if it has one."""
        if history.machine is None:
            self.seen.tolerated.update(history.known)
            return
        seen = history.coverage
        self._count(
            Counts(
                test_cases=1,
                operations=seen.operations,
                situations=seen.situations,
                checks=seen.checks,
                hits=seen.hits,
                pairs=Counter(reached(seen.row, seen.situations)),
                tolerated=Counter(history.known),
            )
        )
        with self.life(history):
            history.close()

    def _count(self, case: Counts) -> None:
        self.seen.add(case)
        if self.seen.violation or self.seen.death:
            self.shrinking(self.seen.test_cases)
        else:
            self.progress(self.seen.test_cases)

    def still_shrinking(self) -> None:
        """Show that the machine is tried again outside of Hypothesis."""
        self.shrinking(self.seen.test_cases)

    def _broke(self, violation: Violation, history: History) -> None:
        best, found = self.seen.counterexample, Counterexample(violation, history)
        self._pass_over(found, known=history.recognise(violation))
        self.seen.first_at = self.seen.first_at or time.monotonic()
        self.seen.first_case = self.seen.first_case or self.seen.test_cases + 1
        if best is None or self.size(found) <= self.size(best):
            self.seen.counterexample = found

    def _pass_over(self, found: Counterexample, *, known: Known | None) -> None:
        """End a history quietly if the failure is known, or is not to be shrunk now."""
        best, name = self.seen.violation, found.violation.property
        if known is not None:  # the history itself counts it as tolerated
            counts, name = self.seen.ended, known.name
        elif name in self.tolerate:
            counts = self.seen.tolerated
        # shrinking must not slip from one bug to another
        elif (best and name != best.property) or not self.claim(name):
            counts = self.seen.unshrunk
            other = self.seen.others.setdefault(name, found)
            if self.size(found) < self.size(other):
                self.seen.others[name] = found
        else:
            return
        counts[name] += 1
        raise UnsatisfiedAssumption("passed over")  # as by `reject`, also without Hypothesis

    def lose(self, died: TargetDied, history: History) -> None:
        """Keep the death of the target; end here if its process is gone."""
        self.seen.died = died
        self.seen.first_at = self.seen.first_at or time.monotonic()
        found = unanswered(died, history)
        if self.seen.death is None or self.size(found) <= self.size(self.seen.death):
            self.seen.death = found
        self.seen.first_case = self.seen.first_case or self.seen.test_cases + 1
        if died.fatal:
            raise Stop from died

    @property
    def over(self) -> bool:
        """Whether the time to explore, or to shrink, is over."""
        limit = self.seen.first_at + SHRINK_SECONDS if self.seen.first_at else self.deadline
        return time.monotonic() > limit


def drive(
    machine: type[RuleBasedStateMachine], watch: Watch, budget: settings, *, seed: int | None
) -> Exploration:
    """Run `machine`, which reports to `watch`, until the budget is spent or a property fails.

    Hypothesis gives up on a subject that answers equal histories differently, for example by the
    clock: the rest of the budget is then drawn anew. Raises errors of the harness; Ctrl-C is not
    raised, since the histories before it may hold a violation.
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
    """Run Hypothesis once; returns whether it gave up because the subject is not deterministic."""
    seen = watch.seen
    set_hypothesis_home_dir(home() / "hypothesis")  # its cache; by default in the working directory
    factory = machine if seed is None else with_seed(seed)(machine)
    try:
        with same_draws():
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
    elsewhere: Elsewhere = lambda _: None,
) -> Exploration:
    """Deal a budget out evenly to machines that share `watch`; see `drive`.

    They take turns, so that a large budget reaches the last machine early. `elsewhere` is asked
    for the counts of a part (a machine's turn) before it is driven here.
    """
    turns = turns_of(budget, seed=seed)
    share = settings(budget, max_examples=math.ceil(budget.max_examples / turns / len(machines)))
    with _few_collections():
        for part, (turn, machine) in enumerate(product(range(turns), machines)):
            try:
                counts = elsewhere(part)
            except KeyboardInterrupt:
                watch.seen.interrupted = True
                break
            if counts is not None:
                watch.seen.add(counts)
                continue
            own = None if seed is None else seed + turn * NEXT_TURN
            seen = drive(machine, watch, share, seed=own)
            if seen.violation or seen.died or seen.interrupted or watch.over:
                break
    return watch.seen


@contextmanager
def _few_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def planned(suite: ComponentSuite, budget: settings, seed: int | None) -> int:
    """Return the histories that a budget asks for, dealt out to a suite's profiles."""
    parts = turns_of(budget, seed=seed) * max(1, len(suite.profiles))
    return math.ceil(budget.max_examples / parts) * parts


def turns_of(budget: settings, *, seed: int | None) -> int:
    """Return how often each machine has a turn.

    Derandomized and without a seed, each turn would draw the same.
    """
    return 1 if budget.derandomize and seed is None else max(1, budget.max_examples // TURN)
