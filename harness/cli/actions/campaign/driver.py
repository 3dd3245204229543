"""The driver of `fuzz`: gives out work units, and records the result of each once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from kvproof.harness.campaign.claims import Claims
from kvproof.harness.campaign.databases import for_workers
from kvproof.harness.campaign.driver import Given, Outcome, work_off
from kvproof.harness.campaign.pool import Lost, Pool
from kvproof.harness.cli.actions.campaign.unit import Order, UnitResult, claim_name, parse, tally_of
from kvproof.harness.cli.runs import DATABASE, ActiveRun, driver
from kvproof.harness.errors import ANSWERS
from kvproof.harness.isolation.registry import USUAL, OwnTargets
from kvproof.harness.records.campaign_events import UnitDone, UnitLost
from kvproof.harness.records.events import (
    AnyEvent,
    Failure,
    HarnessFault,
    Skipped,
    TargetFailed,
)
from kvproof.harness.settings import CampaignSettings, Drawing
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.verdicts import Tally

_QUIET = 10.0
"""Seconds between lines of a log: there may be a million units."""


class Campaign:
    """State of the driver: all of it is in the records, so another driver can continue."""

    def __init__(
        self,
        active: ActiveRun,
        claims: Claims,
        shared: CampaignSettings,
        *,
        password: str,
        level: Level,
        keep_going: bool,
        draw: Drawing = "hypothesis",
        own: OwnTargets = USUAL,
    ) -> None:
        self._active, self._claims, self._shared = active, claims, shared
        self._password, self._away = password, False
        self._level: Level = level
        self._keep_going = keep_going
        self._draw: Drawing = draw
        self._own = own
        self._done: set[str] = set()
        self._seconds: dict[str, float] = {}
        """Unit that was begun -> how long it may explore, also when it is tried again."""
        self._lost_before: set[str] = set()
        """Units that an earlier driver has lost and not tried again."""
        self._losses: dict[str, list[Lost]] = defaultdict(list)
        self._known: dict[tuple[str, str], set[str]] = defaultdict(set)
        self._spent = self._next_line = 0.0
        self._line = "starting"
        self.tallies: dict[str, defaultdict[str, Tally]] = defaultdict(lambda: defaultdict(Tally))
        self._take_over(active.earlier)

    def _take_over(self, events: Sequence[AnyEvent]) -> None:
        failures = {(e.target, e.property): e for e in events if isinstance(e, Failure)}
        self._spent = max((event.at for event in events), default=0.0)
        for event in events:
            if isinstance(event, UnitDone):
                self._count(event, failures)
            elif isinstance(event, UnitLost):
                self._lost_before.add(event.unit)
            elif isinstance(event, HarnessFault) and event.where != driver("fuzz"):
                self._active.count(event)  # its unit is not done again

    def run(self, pool: Pool, units: Iterator[str], max_seconds: float, longest: float) -> None:
        """Run all units until all are done, the time is up, or the first failure.

        `max_seconds` is for all parts of a resumed campaign, `longest` for one unit.
        """
        begun = time.monotonic() - self._spent
        deadline = begun + max_seconds
        lost = sorted(self._lost_before - self._done)
        known = self._done.union(lost)
        left = (unit for unit in units if unit not in known)
        order = partial(self._order, deadline=deadline, longest=longest)

        def tick(running: int) -> None:
            elapsed = time.monotonic() - begun
            if elapsed >= self._next_line:
                self._next_line = elapsed + _QUIET
                self._line = f"{len(self._done)} units done, {running} running"
            done = min(int(elapsed), int(max_seconds))
            self._active.status("fuzz", self._line, done, int(max_seconds))

        def take(outcome: Outcome) -> bool:
            return self._take(outcome) and not self._keep_going

        work_off(pool, left, order, take, deadline=deadline, tick=tick, lost=lost)

    def _order(self, given: Given, *, deadline: float, longest: float) -> Order:
        target, suite, _ = parse(given.unit)
        left = max(1.0, min(longest, deadline - time.monotonic()))
        return Order(
            unit=given.unit,
            attempt=given.attempt,
            level=self._level,
            keep_going=self._keep_going,
            draw=self._draw,
            database=for_workers(self._shared.database),
            password=self._password,
            artifact=self._shared.artifact,
            histories=self._shared.histories,
            seconds=self._seconds.setdefault(given.unit, left),
            known=tuple(self._known[target, suite]),
            claim=self._claims.claim,
            own=self._own,
        )

    def _take(self, outcome: Outcome) -> bool:
        if isinstance(outcome.result, Lost):
            return self._lost(outcome, outcome.result)
        result: UnitResult = outcome.result
        for name, data in result.files.items():
            if not (self._active.writer.directory / name).exists():
                self._active.writer.write_file(name, data)
        for event in (*result.events, *result.failures):
            self._active.write(event)
        failures = {(e.target, e.property): e for e in result.failures}
        if result.interrupted:  # counted for now, and done again by a driver that goes on
            self.tallies[result.done.target][result.done.suite].merge(
                tally_of(result.done, {e.property: e for e in result.failures})
            )
            return False
        self._active.write(self._news(result.done))
        if count := result.done.database.get("unreachable", 0):
            self.database_is_away(f"{count} operations of {result.done.unit} were left out")
        self._count(result.done, failures, result.died)
        if result.holds:
            self._release(result.done)
        return bool(result.done.shrunk or result.died or result.events)

    def _news(self, done: UnitDone) -> UnitDone:
        """Leave the pairs of earlier units out of a unit's record."""
        known = self.tallies[done.target][done.suite].pairs
        return replace(done, pairs=[each for each in done.pairs if each not in known])

    def database_is_away(self, why: str) -> None:
        """Report once that failing examples are neither read nor kept for other runs."""
        if not self._away:
            self._away = True
            where = self._shared.database
            self._active.write(
                Skipped(
                    part=DATABASE,
                    reason=f"{where} does not answer: {why}",
                    command="start it, or choose another --database",
                )
            )

    def _release(self, done: UnitDone) -> None:
        """Release the unshrunk claims of a unit; the death of its target is reported once."""
        used = (*done.shrunk, ANSWERS) if done.died else done.shrunk
        self._claims.release(done.unit, used={claim_name(done.target, name) for name in used})

    def _lost(self, outcome: Outcome, lost: Lost) -> bool:
        """A unit that always ends its own process, or hangs in it, is the target's fault."""
        self._claims.release(outcome.unit)
        self._active.write(UnitLost(unit=outcome.unit, attempt=outcome.attempt, reason=lost.reason))
        self._losses[outcome.unit].append(lost)
        if not outcome.last:
            return False
        target, suite, seed = parse(outcome.unit)
        losses = self._losses.pop(outcome.unit)
        reasons = "; ".join(dict.fromkeys(each.reason for each in losses))
        why = f"{reasons} while fuzzing {suite} with seed {seed}, {len(losses)} times"
        nodes = any(each.kind == "node" for each in losses)
        if nodes:
            self._active.write(HarnessFault(where=f"kvproof fuzz on {target}", message=why))
        done = UnitDone(
            unit=outcome.unit, target=target, suite=suite, seed=seed, attempt=outcome.attempt,
            where="", seconds=0.0, cpu_seconds=0.0, gave_up=lost.reason,
            died={} if nodes else {"kind": lost.kind, "message": why},
        )  # fmt: skip
        self._active.write(done)
        self._count(done, {})
        return True

    def _count(
        self,
        done: UnitDone,
        failures: Mapping[tuple[str, str], Failure],
        died: TargetFailed | None = None,
    ) -> None:
        self._done.add(done.unit)
        self._seconds.pop(done.unit, None)
        shrunk = {
            name: failures[done.target, name]
            for name in done.shrunk
            if (done.target, name) in failures
        }
        self._known[done.target, done.suite].update(shrunk)
        found = tally_of(done, shrunk)
        if done.died:
            found.died = died or TargetFailed(target=done.target, **done.died)  # type: ignore[arg-type]  # its kind is one of the literals
        self.tallies[done.target][done.suite].merge(found)
