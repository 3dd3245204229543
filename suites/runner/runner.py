"""Run the suites of a level against one target and write verdicts to a run record."""

from __future__ import annotations

import math
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

from hypothesis import settings

from kvproof.harness.errors import TargetDied, UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.records.events import (
    AnyEvent,
    Failure,
    HarnessFault,
    Replayed,
    Skipped,
    TargetConcluded,
    TargetFailed,
    TargetStarted,
)
from kvproof.harness.reproduce import oplog
from kvproof.harness.reproduce.oplog import CACHE
from kvproof.suites.framework import expected_failures
from kvproof.suites.framework.component_suite import Counterexample
from kvproof.suites.framework.expected_failures import Expected
from kvproof.suites.framework.explore import Exploration
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.suite import Suite
from kvproof.suites.framework.verdicts import Tally, exercised, verdicts
from kvproof.suites.runner import levels
from kvproof.suites.runner.replay import IMPOSSIBLE, property_of, replay, target_failed, unseen

CORPUS = Path(__file__).parents[1] / "corpus"
"""Op logs of earlier bugs, replayed before anything is generated."""


MOST_FAILURES = 3
"""Most failing properties that one suite reports; after each the rest is explored anew."""


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
    ) -> None:
        self._handle = handle
        self._files = files
        self._write = write
        self._level: Level = level
        self.suites = levels.suites(handle, level)
        self._expected: dict[str, Expected] = {}

    def run(
        self,
        budget: settings,
        *,
        seed: int | None = None,
        progress: Callable[[str, int], None] = lambda *_: None,
        only: str = "",
    ) -> None:
        """Run everything. Never raises for the target; after Ctrl-C the results so far are written.

        `progress` receives the name of a suite and the number of its test cases; `only` names the
        one suite to run. The corpus is replayed before the suite `cache`.
        """
        with self.guarded():
            self.start()
            for suite in self.suites:
                if suite.name == CACHE and only in ("", CACHE):
                    self._replay_corpus()
                if only in ("", suite.name):
                    self._run(suite, budget, seed, progress)
            if not only:
                self._write(TargetConcluded(target=self._handle.name))

    def _run(
        self,
        suite: Suite,
        budget: settings,
        seed: int | None,
        progress: Callable[[str, int], None],
    ) -> None:
        tally = Tally()
        try:
            self.explore(suite, budget, tally, seed=seed, progress=partial(progress, suite.name))
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
        except Exception as error:  # noqa: BLE001 - a fault of the harness is its own verdict
            self._fault(error)

    def start(self) -> None:
        """Start the target, report it, and read the expected failures."""
        handle, profile = self._handle, self._handle.profile
        names = levels.property_names()
        self._expected = expected_failures.load(profile.engine, profile.version, names=names)
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

    def _replay_corpus(self) -> None:
        deaths: dict[str, TargetFailed] = {}
        for path in sorted(CORPUS.glob("*.json")):
            if not self._concerns(path):
                continue
            event = replay(self._handle, path, died=lambda e: deaths.setdefault(e.message, e))
            self._write(self._excused(event) or event)
        for death in deaths.values():
            self._write(death)

    def _concerns(self, path: Path) -> bool:
        """A log applies to a target judged by its suite if it is portable or was recorded there."""
        log = oplog.load(path)
        judging = [suite for suite in self.suites if suite.name == log.suite and suite.judged]
        return any(suite.component.portable or suite.target == log.target for suite in judging)

    def _excused(self, event: Replayed) -> Skipped | None:
        """A log proves nothing where its bug cannot be seen, or something else fails."""
        known = self._expected.get(property_of(event))
        if event.outcome == "FAILED" and known:
            reason = f"{known.property} is expected to fail: {known.reason}"
        elif event.message == IMPOSSIBLE:
            reason = event.message
        elif event.message == unseen(event.expected):
            reason = self._why_not(event.expected)
        else:
            reason = ""
        where = f"{Path(event.path).name} on {event.target}"
        return Skipped(part=where, reason=reason) if reason else None

    def _why_not(self, name: str) -> str:
        found = [
            suite.why_not(prop)
            for suite in self.suites
            for prop in suite.properties
            if prop.name == name
        ]
        return found[0] if found else "no suite of this level judges it"

    def explore(
        self,
        suite: Suite,
        budget: settings,
        tally: Tally,
        *,
        seed: int | None = None,
        progress: Callable[[int], None] = lambda _: None,
        deadline: float = math.inf,
        most: int = MOST_FAILURES,
        claim: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """Explore until nothing new fails, or until `most` properties have.

        Fills `tally` on the way, so that an early end loses nothing. Calls `claim` before it
        shrinks a property; False: another worker does. Skips a suite without properties for the
        target.
        """
        start = time.monotonic()
        explore = partial(
            suite.explore,
            budget,
            seed=seed,
            progress=progress,
            tolerate=expected_failures.everywhere(self._expected),
            confined=expected_failures.confined(self._expected),
            deadline=deadline,
            claim=lambda name: name not in tally.failures and claim(name),
        )
        try:
            while suite.judged and len(tally.failures) < most:
                if not self._add(suite, tally, explore(), seed):
                    break
        finally:
            tally.cut = len(tally.failures) >= most
            tally.seconds = time.monotonic() - start

    def _add(self, suite: Suite, tally: Tally, seen: Exploration, seed: int | None) -> bool:
        """Add an exploration to the tally; returns whether another one may find more."""
        tally.add(seen)
        tally.interrupted = seen.interrupted
        if seen.died and not seen.violation:
            tally.died = target_failed(self._handle.name, seen.died)
        if seen.counterexample:
            failure = self.failure(suite, seen.counterexample, seed)
            tally.failures[failure.property] = failure
        return bool(seen.counterexample) and not tally.interrupted

    def conclude(self, tallies: Mapping[str, Tally]) -> None:
        """Write effort, failures, and a verdict for every property, by suite."""
        for suite in self.suites:
            if suite.name in tallies:
                self._record(suite, tallies[suite.name])
                name, tally = self._handle.name, tallies[suite.name]
                for verdict in verdicts(name, suite, tally, self._expected, level=self._level):
                    self._write(verdict)

    def _record(self, suite: Suite, tally: Tally) -> None:
        if suite.judged:
            self._write(exercised(self._handle.name, suite, tally))
        for failure in tally.failures.values():
            self._write(failure)
        if tally.died:
            self._write(tally.died)

    def failure(self, suite: Suite, found: Counterexample, seed: int | None) -> Failure:
        """Store the op log and the script of a counterexample; returns its event."""
        violation, evidence = found.violation, suite.evidence(found)
        folder = re.sub(r"[^\w.]+", "-", self._handle.name)  # versions share their fingerprints
        stem = f"failures/{folder}/{violation.property}_{evidence.fingerprint}"
        self._files.write_file(f"{stem}.json", evidence.log)
        self._files.write_file(f"{stem}.py", evidence.script.encode())
        return Failure(
            target=self._handle.name,
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
            seed=seed,
        )

    def _fault(self, error: Exception) -> None:
        self._write(
            HarnessFault(
                where=f"suites on {self._handle.name}",
                message=f"{type(error).__name__}: {error}",
                traceback="".join(traceback.format_exception(error)),
            )
        )
