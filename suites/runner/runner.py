"""Run the suites of a level against one target and write verdicts to a run record."""

from __future__ import annotations

import dataclasses
import math
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

from hypothesis import settings
from msgspec.structs import replace

from kvproof.harness.errors import ANSWERS, TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.machine_limits import limit_of_the_machine
from kvproof.harness.records.events import (
    AnyEvent,
    Failure,
    HarnessFault,
    Skipped,
    TargetConcluded,
    TargetStarted,
)
from kvproof.harness.reproduce.oplog import CACHE
from kvproof.harness.settings import Drawing
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.component_suite import Counterexample
from kvproof.suites.framework.expected_failures import Expected
from kvproof.suites.framework.explore import Counts, Elsewhere, Exploration, planned
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.shrink import MINIMISE_SECONDS, minimise, shortest_death
from kvproof.suites.framework.suite import Suite
from kvproof.suites.framework.verdicts import Tally, exercised, verdicts
from kvproof.suites.runner import levels
from kvproof.suites.runner.corpus import Corpus
from kvproof.suites.runner.replay import expected_of, shows, target_failed
from kvproof.suites.runner.shares import (
    Budget,
    Order,
    Sharing,
    apart,
    others,
    shared_out,
    suites_shared_out,
    whole,
)

Doing = Literal["histories", "shrinking", "replaying"]
Progress = Callable[[str, Doing, int, int], None]
"""Suite, the work under way, how much of it is done, and its total; 0: unknown."""

MOST_FAILURES = 3
"""Most failing properties that one suite shrinks. After each the rest is explored anew, and after
the last once more, with those tolerated."""

REST_TRIES = 40
"""Histories that are run to cut each further failure down: a number, not a time, for a known
failure is recognised by its history, on a busy machine too."""

_WORST_FIRST = ("fail", "inconclusive", "expected_failure", "pass", "unsupported")


class Files(Protocol):
    """Storage of the op logs and scripts of failures."""

    def write_file(self, name: str, data: bytes) -> Path:
        """Store a file below the run's directory; returns its path."""


class SuiteRun:
    """The suites of a level on one target: corpus, exploration, verdicts."""

    def __init__(
        self,
        handle: Handle,
        files: Files,
        *,
        write: Callable[[AnyEvent], None],
        level: Level = "core",
        sharing: Sharing | None = None,
    ) -> None:
        """`sharing`: other processes may explore some of a suite's profiles."""
        self._handle, self._level, self._sharing = handle, level, sharing
        self._files = files
        self._write = write
        self.suites = levels.suites(handle, level)
        self._expected: list[Expected] = []
        self._only = ""
        """The one suite that runs; empty: all of them."""
        self._progress: Progress = lambda *_: None

    def run(
        self,
        budget: settings,
        *,
        seed: int | None = None,
        progress: Progress = lambda *_: None,
        only: str = "",
    ) -> None:
        """Run everything. Never raises for the target; after Ctrl-C the results so far are written.

        `only` names the one suite to run. The corpus is replayed before the suite `cache`.
        """
        self._only, self._progress = only, progress
        with self.guarded():
            self.start()
            chosen = [each for each in self.suites if only in ("", each.name)]
            with self._suites_shared(chosen, budget, seed) as ahead:
                for suite in chosen:
                    if suite.name == CACHE:
                        self.replay_corpus()
                    self._run(suite, budget, seed, partial(ahead, suite))
            if not only:
                self._write(TargetConcluded(target=self._handle.name))

    def _run(
        self,
        suite: Suite,
        budget: settings,
        seed: int | None,
        ahead: Callable[[], Counts | None],
    ) -> None:
        tally, progress = Tally(), partial(self._progress, suite.name)
        try:
            self.explore(suite, budget, tally, seed=seed, progress=progress, ahead=ahead)
            if tally.interrupted:
                raise KeyboardInterrupt
        except BaseException:  # stored next to the other results
            tally.interrupted = True
            self._record(suite, tally)
            raise
        self.conclude({suite.name: tally})

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn a death of the target, or a fault of the harness, into an event."""
        try:
            yield
        except TargetDied as died:
            self._write(target_failed(self._handle.name, died))
        except UsageError:
            raise
        except Exception as error:
            if limit_of_the_machine(error):
                raise
            self._fault(error)  # its own verdict

    def start(self) -> None:
        """Start the target, report it, and read the expected failures."""
        handle, profile = self._handle, self._handle.profile
        self._expected = expected_of(handle)
        known = expected_failures.known(profile.engine, self._expected)
        self.suites = tuple(suite.knowing(known) for suite in self.suites)
        self._write(
            TargetStarted(
                target=handle.name,
                engine=profile.engine,
                version=profile.version,
                profile=profile.flat(),
                isolation=handle.isolation,
                python=handle.python,
            )
        )

    def replay_corpus(self) -> None:
        """Replay the op logs of earlier bugs, before anything is drawn."""
        corpus = Corpus(self._handle, self.suites, self._expected, self._write)
        corpus.replay(lambda done, total: self._progress(CACHE, "replaying", done, total))

    def explore(
        self,
        suite: Suite,
        budget: settings,
        tally: Tally,
        *,
        seed: int | None = None,
        draw: Drawing | None = None,
        progress: Callable[[Doing, int, int], None] = lambda *_: None,
        deadline: float = math.inf,
        most: int = MOST_FAILURES,
        rest: bool = True,
        claim: Callable[[str], bool] = lambda _: True,
        ahead: Callable[[], Counts | None] = lambda: None,
    ) -> None:
        """Explore until nothing new fails; once `most` have, judge the others, with `rest` alone.

        Fills `tally` on the way, so that an early end loses nothing. Calls `claim` before it
        shrinks a property; False: another worker does. Skips a suite without properties for the
        target. `draw`: None takes seeds, where a suite has histories by seed. `ahead` is asked once
        for the counts of another process.
        """
        start, asked = time.monotonic(), self._handle.engine_seconds
        by_history = {each.property for each in self._expected if each.verbs}

        def unclaimed(name: str) -> bool:
            new = len(tally.failures) < most and name not in {*tally.failures, *tally.excused}
            return new and (name in by_history or claim(name))

        shared = partial(self._shared, suite, budget, tally, ahead, seed=seed)
        explore = partial(
            suite.explore,
            budget,
            draw=draw,
            seed=seed,
            progress=lambda seen: progress(
                "histories", seen, planned(suite.component, budget, seed)
            ),
            shrinking=lambda seen: progress("shrinking", seen, 0),
            deadline=deadline,
            claim=unclaimed,
        )
        try:
            while suite.judged and (rest or len(tally.failures) < most):
                with shared() as elsewhere:
                    seen = explore(elsewhere=elsewhere)
                tried = partial(progress, "shrinking", seen.test_cases, 0)
                seen.death = self._death(suite, seen, unclaimed, tried)
                if not self._add(suite, tally, seen, seed):
                    break
            self._rest(suite, tally, seed, claim)
        finally:
            tally.cut = not rest and len(tally.failures) >= most
            if not tally.seconds:
                tally.seconds = time.monotonic() - start
                tally.engine_seconds = self._handle.engine_seconds - asked

    def _suites_shared(
        self, chosen: Sequence[Suite], budget: settings, seed: int | None
    ) -> AbstractContextManager[Callable[[Suite], Counts | None]]:
        """Let another process explore some suites inside, where that is allowed and worth it."""
        sharing, alone = self._sharing, apart(chosen, budget)
        if sharing is None or sharing.own.in_process or not alone:
            return nullcontext(lambda _: None)
        return suites_shared_out(alone, partial(self._order, sharing, budget, seed))

    def _shared(
        self,
        suite: Suite,
        budget: settings,
        tally: Tally,
        ahead: Callable[[], Counts | None],
        *,
        seed: int | None,
    ) -> AbstractContextManager[Elsewhere]:
        """Let other processes explore some profiles inside, where that is allowed."""
        if not tally.test_cases and (counts := ahead()):
            return nullcontext(whole(counts))
        processes, parts = others(suite, budget, seed=seed)
        sharing = self._sharing
        if sharing is None or processes < 1 or self._handle.isolation != "worker":
            return nullcontext(lambda _: None)
        known = (*tally.failures, *tally.excused)
        order = dataclasses.replace(self._order(sharing, budget, seed, suite), known=known)
        return shared_out(processes, parts, lambda part: dataclasses.replace(order, part=part))

    def _order(self, sharing: Sharing, budget: settings, seed: int | None, suite: Suite) -> Order:
        size = budget.max_examples, budget.stateful_step_count, budget.derandomize
        return Order(
            sharing=sharing,
            level=self._level,
            suite=suite.name,
            part=None,
            budget=Budget(*size),
            seed=seed,
            known=(),
        )

    def _death(
        self,
        suite: Suite,
        seen: Exploration,
        claim: Callable[[str], bool],
        tried: Callable[[], None],
    ) -> Counterexample | None:
        """Return the history that killed the target, cut down, unless it is none to report."""
        died, found = seen.died, seen.death
        if seen.violation or not (died and found and suite.has(ANSWERS)):
            return None
        if seen.interrupted:
            return found
        if died.fatal and not claim(ANSWERS):  # of the others, it has been claimed
            return None
        hurry = self._handle.hurried() if died.kind == "hang" else nullcontext()
        try:
            return shortest_death(suite.component, found, hurry, tried=tried)
        except KeyboardInterrupt:
            seen.interrupted = True
            return found

    def _add(self, suite: Suite, tally: Tally, seen: Exploration, seed: int | None) -> bool:
        """Add an exploration to the tally; returns whether another one may find more."""
        found = seen.counterexample or seen.death
        if found and (known := self._same_history(found)):
            tally.excused.add(known.property)
            seen.tolerated[known.mechanism] += 1
            seen.unshrunk.clear()  # of histories that shrinking made: the budget is drawn once more
            seen.others.clear()
        elif found:
            tally.failures[found.violation.property] = self.failure(suite, found, seed)
        for name in tally.excused:
            del seen.unshrunk[name]
        tally.add(seen)
        tally.others |= seen.others
        tally.interrupted = seen.interrupted
        if seen.died and not seen.violation:
            tally.died = target_failed(self._handle.name, seen.died)
        if tally.died and seen.death:  # the failure has the history
            tally.died = replace(tally.died, history=[])
        return bool(seen.counterexample) and not tally.interrupted

    def _rest(
        self, suite: Suite, tally: Tally, seed: int | None, claim: Callable[[str], bool]
    ) -> None:
        """Give a history to each failure that never had its turn to be shrunk.

        Each is cut down by REST_TRIES, all within a minute, where the target still answers.
        """
        deadline = time.monotonic() + MINIMISE_SECONDS
        for name, found in tally.others.items():
            if name in {*tally.failures, *tally.excused} or not claim(name):
                continue
            if not (tally.died or tally.interrupted):
                tried = partial(self._progress, suite.name, "shrinking", tally.test_cases, 0)
                found = self._shorter(
                    suite, tally, found, seconds=deadline - time.monotonic(), tried=tried
                )
            if known := self._same_history(found):
                tally.excused.add(name)
                tally.tolerated[known.mechanism] += tally.unshrunk.pop(name)
            else:
                tally.failures[name] = self.failure(suite, found, seed)

    @staticmethod
    def _shorter(
        suite: Suite,
        tally: Tally,
        found: Counterexample,
        *,
        seconds: float,
        tried: Callable[[], None],
    ) -> Counterexample:
        try:
            return minimise(suite.component, found, seconds=seconds, most=REST_TRIES, tried=tried)
        except KeyboardInterrupt:
            tally.interrupted = True
            return found

    def _same_history(self, found: Counterexample) -> Expected | None:
        """Return the known failure whose minimal history has the same operations."""
        verbs = tuple(each.verb for each in found.history.operations)
        same = (each for each in self._expected if each.verbs == verbs)
        return next((each for each in same if each.property == found.violation.property), None)

    def conclude(self, tallies: Mapping[str, Tally]) -> None:
        """Write effort, failures, and a verdict for every property, by suite."""
        for suite in self.suites:
            if suite.name in tallies:
                self._record(suite, tallies[suite.name])
                name, tally = self._handle.name, tallies[suite.name]
                shown = self._shown(suite, tally)
                expected = self._expected_of(suite)
                judged = verdicts(name, suite, tally, expected, shown=shown)
                for verdict in sorted(judged, key=lambda each: _WORST_FIRST.index(each.verdict)):
                    if verdict.verdict != "unsupported" or self._says_so(suite, verdict.property):
                        self._write(verdict)

    def _expected_of(self, suite: Suite) -> list[Expected]:
        """Return the known failures, without those of properties that only another suite judges."""
        inapplicable = {prop.name for prop in suite.properties if suite.why_not(prop)}
        elsewhere = {prop.name for other in self.suites for prop in other.judged}
        return [each for each in self._expected if each.property not in inapplicable & elsewhere]

    def _says_so(self, suite: Suite, name: str) -> bool:
        """Whether a suite reports a property as inapplicable: no other one judges or reports it."""
        having = [each for each in self.suites if name in {prop.name for prop in each.properties}]
        judging = any(not each.why_not(each.of(name)) for each in having)
        return bool(self._only) or (not judging and having[0].name == suite.name)

    def _shown(self, suite: Suite, tally: Tally) -> set[str] | None:
        """Replay the own histories of known failures that no history met."""
        names = {prop.name for prop in suite.properties}
        judged = [each for each in self._expected_of(suite) if each.property in names]
        unmet = [each for each in judged if not tally.tolerated[each.mechanism]]
        if tally.interrupted or tally.died:
            return None
        found = set()
        for number, each in enumerate(unmet):
            self._progress(suite.name, "replaying", number, len(unmet))
            if shows(self._handle, each, self._expected):
                found.add(each.mechanism)
        return found

    def _record(self, suite: Suite, tally: Tally) -> None:
        if suite.judged:
            for name, reason in suite.unsupported.items():
                part = f"{name} of {self._handle.name}"
                self._write(Skipped(part=part, reason=reason))
            self._write(exercised(self._handle.name, suite, tally))
        for failure in tally.failures.values():
            self._write(failure)
        if tally.died:
            self._write(tally.died)

    def failure(self, suite: Suite, found: Counterexample, seed: int | None) -> Failure:
        """Store the op log and the script of a counterexample; returns its event."""
        return stored_failure(self._files, self._handle.name, suite, found, seed)

    def _fault(self, error: Exception) -> None:
        self._write(
            HarnessFault(
                where=f"suites on {self._handle.name}",
                message=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
            )
        )


def stored_failure(
    files: Files, target: str, suite: Suite, found: Counterexample, seed: int | None
) -> Failure:
    """Store the op log and the script of a counterexample; returns its event."""
    violation, evidence = found.violation, suite.evidence(found)
    folder = re.sub(r"[^\w.]+", "-", target)  # versions share their fingerprints
    stem = f"failures/{folder}/{violation.property}_{evidence.fingerprint}"
    files.write_file(f"{stem}.json", evidence.log)
    files.write_file(f"{stem}.py", evidence.script.encode())
    return Failure(
        target=target,
        property=violation.property,
        rules=list(suite.of(violation.property).rules),
        oracle=violation.oracle,
        sentence=violation.sentence,
        detail=violation.detail,
        fingerprint=evidence.fingerprint,
        op_log=f"{stem}.json",
        script=evidence.script,
        script_path=f"{stem}.py",
        history=evidence.history,
        blocks=evidence.blocks,
        tables=evidence.tables,
        timeline=evidence.timeline,
        seed=seed,
        intended=suite.of(violation.property).intended,
        related=evidence.related,
    )
