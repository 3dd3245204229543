"""Judge the fault that is planted in this process: the property that finds it, and its cost."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from hypothesis import settings

from kvproof.harness.errors import ANSWERS
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.violation import SHADOW
from kvproof.harness.records.events import AnyEvent
from kvproof.harness.records.fault_events import FaultJudged, Kill
from kvproof.suites.conformance.suite import NAME as CACHE
from kvproof.suites.faults.alone import TOLERATED, shadow_alone
from kvproof.suites.faults.catalogue import PlantedFault, in_engine, load, shadowed
from kvproof.suites.faults.reach import CORE, Reach
from kvproof.suites.faults.survived import Cost, Survived
from kvproof.suites.faults.verdict import CRASH, HANG, judged
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.framework.suite import Suite
from kvproof.suites.runner import levels
from kvproof.suites.runner.replay import known_failures
from kvproof.suites.runner.runner import Files, SuiteRun
from kvproof.suites.whole_engine.search import explore as by_seeds
from kvproof.suites.whole_engine.strategies import SUITE as WHOLE_ENGINE

Progress: TypeAlias = Callable[[str, int], None]
"""Receives the name of a suite and the number of its test cases so far."""


class Attempt(NamedTuple):
    """One exploration that is to find the fault."""

    suite: Suite
    tolerate: frozenset[str] = frozenset()
    shrink: bool = True
    """A blind campaign asks only which property fails, not for the shortest history."""


class Judge:
    """The suites, against a faulty target."""

    def __init__(
        self,
        handle: Handle,
        files: Files,
        *,
        folder: str = "",
        budget: settings,
        seed: int | None = None,
        alone: bool = False,
        progress: Progress = lambda *_: None,
        reach: Reach | None = None,
        survived: Survived | None = None,
    ) -> None:
        """Store `files` in `folder`, below the run's directory.

        With `alone`, only the property that the catalogue names may find a fault that has one.
        `reach` leaves out the suites that never execute the changed lines, `survived` those that
        ran in an earlier part of the run.
        """
        self._reach = reach
        self._survived = survived or Survived()
        self._alone = alone
        self._broken: list[tuple[str, Exception]] = []
        """Suites that the fault made fail in a way of their own, with their errors."""
        self._folder = folder
        self._budget = budget
        self._seed = seed
        self._progress = progress
        self._cases = 0
        self._seconds = 0.0
        self._run = SuiteRun(handle, files, write=_ignore, level="full")
        core, *_ = levels.suites(handle, "core")
        known = known_failures(handle)
        self._suites = [suite.knowing(known) for suite in (core, *self._run.suites)]

    def judge(self, fault: PlantedFault) -> FaultJudged:
        """Run suites until one finds the fault, then, if required, until a shadow memory does.

        The suite that the catalogue names comes first.
        """
        begin = time.monotonic()
        kill = next(filter(None, map(self._unless_survived, self._all(fault))), None)
        if not kill and self._broken:
            kill = self._ended(fault)
        shadow = kill if kill and kill.oracle == SHADOW else None
        if kill and shadowed(fault) and not shadow and not self._alone:
            self._cases, self._seconds = 0, 0.0
            with shadow_alone():
                found = map(self._explore, self._shadows(fault))
                shadow = next((each for each in found if each and each.oracle == SHADOW), None)
        ran = ", ".join(dict.fromkeys(each.suite.name for each in self._all(fault)))
        return judged(
            fault,
            kill,
            shadow=shadow if shadowed(fault) else None,
            unshadowed="only its own property may find it" if self._alone else "",
            reason="" if kill else f"ran: {ran or 'no suite executes it'}",
            cases=self._cases,
            seconds=time.monotonic() - begin,
        )

    def _all(self, fault: PlantedFault) -> Iterator[Attempt]:
        suites = self._suites[in_engine(fault) :]  # engines are slow, and the level full has all
        suites = [each for each in suites if each.judged and self._may_find(fault, each)]
        if fault.promise:  # it names no suite: that of its module first, then the cheapest
            own = Counter(each.suite for each in load().values() if each.module == fault.module)
            suites.sort(key=lambda each: (-own[each.name], self._cost(each)))
        else:
            suites.sort(key=lambda each: (each.name != fault.suite, not each.has(fault.property)))
        if self._alone and fault.property:
            return (_only(suite, fault.property) for suite in suites if suite.has(fault.property))
        return (Attempt(suite, shrink=not fault.promise) for suite in suites)

    def _may_find(self, fault: PlantedFault, suite: Suite) -> bool:
        return self._reach is None or self._reach.may_find(fault, self._name(suite))

    def _cost(self, suite: Suite) -> float:
        reach = self._reach.suites.get(self._name(suite)) if self._reach else None
        return reach.seconds if reach else 0.0

    def _name(self, suite: Suite) -> str:
        return CORE if suite is self._suites[0] else suite.name

    def _shadows(self, fault: PlantedFault) -> Iterator[Attempt]:
        for suite in (attempt.suite for attempt in self._all(fault)):
            known = (*suite.properties, *suite.beyond)
            shadow = any(prop.oracle == SHADOW for prop in known)
            if shadow and suite.name in (CACHE, fault.suite):
                yield Attempt(suite, TOLERATED)

    def _ended(self, fault: PlantedFault) -> Kill:
        """Tell of a suite that ends in an error, where it has to find a drawn fault in any way.

        The same histories hold without the fault. One of the catalogue has a property to break.
        """
        suite, error = self._broken[0]
        if not fault.promise:
            raise error
        return Kill(
            suite=suite,
            property=ANSWERS,
            oracle=CRASH,
            sentence=f"the suite ends with {type(error).__name__}: {error}",
            cases=self._cases + 1,
            seconds=round(self._seconds, 3),
            size=0,
        )

    def _unless_survived(self, attempt: Attempt) -> Kill | None:
        name, broken = self._name(attempt.suite), len(self._broken)
        if before := self._survived.cost(name):
            self._cases += before.cases
            self._seconds += before.seconds
            return None
        cases, seconds = self._cases, self._seconds
        kill = self._explore(attempt)
        if kill is None and len(self._broken) == broken:
            self._survived.add(name, Cost(self._cases - cases, self._seconds - seconds))
        return kill

    def _explore(self, attempt: Attempt) -> Kill | None:
        suite, begin = attempt.suite, time.monotonic()
        self._progress(suite.name, 0)
        try:
            seen = search_of(suite)(
                suite, self._budget, seed=self._seed, tolerate=attempt.tolerate,
                shrink=attempt.shrink, progress=partial(self._progress, suite.name),
            )  # fmt: skip
        except Exception as error:  # noqa: BLE001 - of any kind; another suite may have a verdict
            self._broken.append((suite.name, error))
            return None
        if seen.interrupted:
            raise KeyboardInterrupt
        kill = self._kill(suite, seen, seen.first_at - begin)
        self._cases += seen.first_case if kill else seen.test_cases
        self._seconds += time.monotonic() - begin
        return kill

    def _kill(self, suite: Suite, seen: Exploration, first: float) -> Kill | None:
        cases, seconds = self._cases + seen.first_case, round(self._seconds + first, 3)
        if seen.counterexample:
            failure = self._run.failure(suite, seen.counterexample, self._seed)
            return Kill(
                suite=suite.name,
                property=failure.property,
                oracle=failure.oracle,
                sentence=failure.sentence,
                cases=cases,
                seconds=seconds,
                size=sum(not step.implied for step in failure.history),
                fingerprint=failure.fingerprint,
                op_log=self._folder + failure.op_log,
                script_path=self._folder + failure.script_path,
                history=failure.history,
            )
        if seen.died:
            return Kill(
                suite=suite.name,
                property=ANSWERS,
                oracle=HANG if seen.died.kind == "hang" else CRASH,
                sentence=str(seen.died),
                cases=cases,
                seconds=seconds,
                size=0,
            )
        return None


def _only(suite: Suite, name: str) -> Attempt:
    """An exploration in which no other property ends a history for good."""
    others = {prop.name for prop in (*suite.properties, *suite.beyond)} - {name}
    return Attempt(suite, frozenset(others))


_SEARCHES: Mapping[str, Callable[..., Exploration]] = {WHOLE_ENGINE.name: by_seeds}
"""Suite -> the search in place of its own, many times as fast."""


def search_of(suite: Suite) -> Callable[..., Exploration]:
    """Return the search for a planted fault."""
    return _SEARCHES.get(suite.name, Suite.explore)


def _ignore(_: AnyEvent) -> None:
    """Ignore verdicts about the faulty reference: they are not those of the run."""
