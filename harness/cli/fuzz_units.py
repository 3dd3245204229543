"""`fuzz` as a campaign: work units over local processes or a Ray cluster, one record of it all."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import count, islice
from pathlib import Path

from rich.console import Console

from kvproof.harness.campaign.claims import Claims, DirectoryClaims, RayClaims
from kvproof.harness.campaign.databases import for_workers, open_database
from kvproof.harness.campaign.driver import Given, Outcome, outcomes
from kvproof.harness.campaign.pool import LocalPool, Lost, Pool
from kvproof.harness.campaign.ray_pool import RayPool
from kvproof.harness.campaign_events import UnitDone, UnitLost
from kvproof.harness.cli.conformance import open_all
from kvproof.harness.cli.fuzz import conclude, first_seed, fuzz
from kvproof.harness.cli.fuzz_unit import Order, UnitResult, explore_unit, parse, tally_of, unit_id
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.events import AnyEvent, Failure, HarnessFault
from kvproof.harness.settings import CampaignSettings
from kvproof.suites.levels import suites as suites_of
from kvproof.suites.property import Level
from kvproof.suites.verdicts import Tally

_LONGEST = 300.0
"""Seconds that a unit explores at most; it usually takes some."""

_SHRINKING = 120.0
"""Seconds more after which its process is given up: it hangs."""


def chosen(*, ray: str, units: int) -> Callable[..., None]:
    """The verb: a campaign if its units are counted or spread, else the plain one."""
    if units < 0:
        raise UsageError(f"--units {units} is negative", "for example --units 100")
    return partial(campaign, ray=ray, units=units) if ray or units else fuzz


def campaign(
    specs: Sequence[str],
    *,
    max_seconds: float,
    workers: int,
    level: Level,
    seed: int | None,
    keep_going: bool,
    shared: CampaignSettings,
    output: Path | None,
    console: Console,
    ray: str,
    units: int,
) -> None:
    """`kvproof fuzz --ray` and `kvproof fuzz --units`."""
    if workers < 1:
        raise UsageError(f"--workers {workers} must be at least 1", "for example --workers 2")
    open_database(shared.database, shared.artifact)
    suites = _suites(specs, level)
    first = first_seed(output) if seed is None else seed
    limit = _LONGEST + _SHRINKING
    pool: Pool = (
        RayPool(explore_unit, ray, limit=limit)
        if ray
        else LocalPool(explore_unit, workers, limit=limit)
    )
    config = {
        "targets": list(specs), "max_seconds": max_seconds, "units": units, "level": level,
        "keep_going": keep_going, "database": shared.database, "artifact": shared.artifact,
        "histories": shared.histories,
    }  # fmt: skip
    with (
        closing(pool),
        run_directory("fuzz", config=config, output=output, console=console, seed=first) as active,
    ):
        claims: Claims = (
            RayClaims(ray) if ray else DirectoryClaims(active.writer.directory / "claims")
        )
        every = _units(suites, first)
        driver = Campaign(active, claims, shared, level=level, keep_going=keep_going)
        try:
            driver.run(pool, islice(every, units) if units else every, max_seconds)
        finally:  # judged also after Ctrl-C, which is how long campaigns usually end
            for spec in specs:
                conclude(active, level, spec, driver.tallies[spec])


def _suites(specs: Sequence[str], level: Level) -> list[tuple[str, str]]:
    """Target and suite of everything that is judged; a typing error costs nothing."""
    with ExitStack() as stack:
        handles = open_all(specs, stack)
        return [
            (handle.name, suite.name)
            for handle in handles
            for suite in suites_of(handle, level)
            if suite.judged
        ]


def _units(suites: Sequence[tuple[str, str]], first: int) -> Iterator[str]:
    """All suites with a seed, then all with the next."""
    for seed in count(first):
        yield from (unit_id(target, suite, seed) for target, suite in suites)


class Campaign:
    """What the driver knows: all of it is in the records, so that another driver can go on."""

    def __init__(
        self,
        active: ActiveRun,
        claims: Claims,
        shared: CampaignSettings,
        *,
        level: Level,
        keep_going: bool,
    ) -> None:
        self._active, self._claims, self._shared = active, claims, shared
        self._level: Level = level
        self._keep_going = keep_going
        self._done: set[str] = set()
        self._known: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.tallies: dict[str, defaultdict[str, Tally]] = defaultdict(lambda: defaultdict(Tally))
        self._take_over(active.earlier)

    def _take_over(self, events: Sequence[AnyEvent]) -> None:
        failures = {(e.target, e.property): e for e in events if isinstance(e, Failure)}
        for event in events:
            if isinstance(event, UnitDone):
                self._count(event, failures)

    def run(self, pool: Pool, units: Iterator[str], max_seconds: float) -> None:
        """Do what is not done, until all is, the time is up, or the first failure."""
        begun = time.monotonic()
        deadline = begun + max_seconds
        left = (unit for unit in units if unit not in self._done)
        order = partial(self._order, deadline=deadline)

        def tick(running: int) -> None:
            done = f"{len(self._done)} units done, {running} running"
            elapsed = min(int(time.monotonic() - begun), int(max_seconds))
            self._active.status("fuzz", done, elapsed, int(max_seconds))

        with closing(outcomes(pool, left, order, deadline=deadline, tick=tick)) as found:
            for outcome in found:
                if self._take(outcome) and not self._keep_going:
                    return

    def _order(self, given: Given, *, deadline: float) -> Order:
        target, suite, _ = parse(given.unit)
        return Order(
            unit=given.unit,
            attempt=given.attempt,
            level=self._level,
            keep_going=self._keep_going,
            database=for_workers(self._shared.database),
            artifact=self._shared.artifact,
            histories=self._shared.histories,
            seconds=max(1.0, min(_LONGEST, deadline - time.monotonic())),
            known=tuple(self._known[target, suite]),
            claim=self._claims.claim,
        )

    def _take(self, outcome: Outcome) -> bool:
        """Record one outcome; whether something failed."""
        if isinstance(outcome.result, Lost):
            self._lost(outcome, outcome.result.reason)
            return False
        result: UnitResult = outcome.result
        for name, data in result.files.items():
            if not (self._active.writer.directory / name).exists():
                self._active.writer.write_file(name, data)
        for event in (*result.events, *result.failures):
            self._active.write(event)
        self._active.write(result.done)
        self._count(result.done, {(e.target, e.property): e for e in result.failures})
        tally = self.tallies[result.done.target][result.done.suite]
        tally.died = tally.died or result.died
        return bool(result.done.failed or result.died or result.events)

    def _lost(self, outcome: Outcome, reason: str) -> None:
        self._claims.release(outcome.unit)
        self._active.write(UnitLost(unit=outcome.unit, attempt=outcome.attempt, reason=reason))
        if not outcome.last:
            return
        target, suite, seed = parse(outcome.unit)
        why = f"{outcome.unit} lost its worker {outcome.attempt} times, at last: {reason}"
        self._active.write(HarnessFault(where="kvproof fuzz", message=why))
        done = UnitDone(
            unit=outcome.unit, target=target, suite=suite, seed=seed, attempt=outcome.attempt,
            where="", seconds=0.0, cpu_seconds=0.0, gave_up=reason,
        )  # fmt: skip
        self._active.write(done)
        self._done.add(outcome.unit)

    def _count(self, done: UnitDone, failures: Mapping[tuple[str, str], Failure]) -> None:
        self._done.add(done.unit)
        shrunk = {
            name: failures[done.target, name]
            for name in done.shrunk
            if (done.target, name) in failures
        }
        self._known[done.target, done.suite].update(shrunk)
        self.tallies[done.target][done.suite].merge(tally_of(done, shrunk))
