"""`kvproof fuzz`: work units over local processes or a Ray cluster, until the time is up."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import count, islice
from pathlib import Path

from kvproof.harness.campaign.claims import Claims, DirectoryClaims, RayClaims
from kvproof.harness.campaign.databases import (
    PASSWORD_VARIABLE,
    open_database,
    why_unreachable,
)
from kvproof.harness.campaign.pool import LocalPool, Pool
from kvproof.harness.campaign.ray_pool import RayPool
from kvproof.harness.cli.actions.campaign.driver import Campaign
from kvproof.harness.cli.actions.campaign.unit import explore_unit, unit_id
from kvproof.harness.cli.actions.targets import open_all
from kvproof.harness.cli.options import check_workers
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.registry import USUAL, OwnTargets, open_handle
from kvproof.harness.records.events import AnyEvent, Failure
from kvproof.harness.records.run_directory import read_run
from kvproof.harness.settings import CampaignSettings, Drawing
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.verdicts import Tally
from kvproof.suites.runner.levels import suites as suites_of
from kvproof.suites.runner.runner import SuiteRun

LONGEST = 300.0
"""Seconds that a unit explores at most; it usually takes some."""

_SHRINKING = 120.0
"""Seconds more after which its process is given up: it hangs."""


def fuzz(
    specs: Sequence[str],
    *,
    max_seconds: float,
    workers: int,
    level: Level,
    seed: int | None,
    keep_going: bool,
    draw: Drawing = "hypothesis",
    shared: CampaignSettings,
    output: Path | None,
    ray: str,
    units: int,
    secret: str = "",
    own: OwnTargets = USUAL,
) -> int:
    """Explore until the time is up; `units` 0: as many as the time allows. Returns the exit code.

    Raises UsageError before anything runs if the options are invalid.
    """
    check_workers(workers)
    password = secret or os.environ.get(PASSWORD_VARIABLE, "")
    open_database(shared.database, shared.artifact, password=password)
    away = why_unreachable(shared.database, password=password)
    suites = _suites(specs, level, own, draw)
    first = first_seed(output) if seed is None else seed
    config = {
        "targets": list(specs), "max_seconds": max_seconds, "units": units, "level": level,
        "keep_going": keep_going, "database": shared.database, "artifact": shared.artifact,
        "histories": shared.histories, **own.recorded(),
        **({"draw": draw} if draw == "seeds" else {}),
    }  # fmt: skip
    with (
        closing(_pool(ray, workers)) as pool,
        run_directory("fuzz", config=config, output=output, seed=first) as active,
    ):
        claims: Claims = (
            RayClaims(ray) if ray else DirectoryClaims(active.writer.directory / "claims")
        )
        driver = Campaign(
            active, claims, shared, password=password, level=level, draw=draw,
            keep_going=keep_going, own=own,
        )  # fmt: skip
        if away:
            driver.database_is_away(away)
        every = _units(suites, first)
        cut_short = True
        try:
            with closing(claims):
                driver.run(pool, islice(every, units) if units else every, max_seconds, LONGEST)
            cut_short = False
        finally:  # judged also after Ctrl-C, which is how long campaigns usually end
            for spec in specs:
                _conclude(active, level, spec, driver.tallies[spec], own, cut_short=cut_short)
    return active.exit_code


def _pool(ray: str, workers: int) -> Pool:
    limit = LONGEST + _SHRINKING
    if ray:
        return RayPool(explore_unit, ray, limit=limit)
    return LocalPool(explore_unit, workers, limit=limit)


def first_seed(output: Path | None) -> int:
    """Go on with the seed of the run in `output`, if there is one; else draw one."""
    if output and (output / "run.json").exists():
        recorded = read_run(output).manifest
        if recorded.verb == "fuzz" and recorded.seed is not None:
            return recorded.seed
    return secrets.randbits(32)


def _suites(
    specs: Sequence[str], level: Level, own: OwnTargets, draw: Drawing
) -> list[tuple[str, str]]:
    """Target and suite of everything that is judged; a typing error costs nothing."""
    with ExitStack() as stack:
        handles = open_all(specs, stack, own)
        judged = [
            (handle.name, suite)
            for handle in handles
            for suite in suites_of(handle, level)
            if suite.judged
        ]
        for target, suite in judged if draw == "seeds" else ():
            if suite.component.by_seed is None:
                raise UsageError(
                    f"--draw seeds: the suite {suite.name!r} of {target} has no histories by seed",
                    "leave --draw out, or name a target with its own loop: --target vllm-engine",
                )
        return [(target, suite.name) for target, suite in judged]


def _units(suites: Sequence[tuple[str, str]], first: int) -> Iterator[str]:
    """Yield units without an end: the targets take turns, whatever their numbers of suites."""
    every = {target: [suite for owner, suite in suites if owner == target] for target, _ in suites}
    for turn in count():
        for target, own in every.items():
            later, place = divmod(turn, len(own))
            yield unit_id(target, own[place], first + later)


def _conclude(
    active: ActiveRun,
    level: Level,
    spec: str,
    suites: Mapping[str, Tally],
    own: OwnTargets,
    *,
    cut_short: bool,
) -> None:
    """Judge all properties on everything that all units did; nothing on nothing."""
    if cut_short and not any(tally.test_cases or tally.died for tally in suites.values()):
        return

    def write(event: AnyEvent) -> None:
        if not isinstance(event, Failure):  # recorded when it was found
            active.write(event)

    with open_handle(spec, options=own) as handle:
        run = SuiteRun(handle, active.writer, write=write, level=level)
        with run.guarded():
            run.start()
            found = {suite.name: suites.get(suite.name, Tally()) for suite in run.suites}
            for tally in found.values():
                tally.interrupted = tally.interrupted or cut_short
            run.conclude(found)
