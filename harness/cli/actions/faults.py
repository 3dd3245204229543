"""`kvproof faults`: plant each fault of the catalogue, and see which property finds it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rich.markup import escape

from kvproof.harness.cli.actions.drawn_faults import Sample, drawn
from kvproof.harness.cli.arguments.faults import FaultsArguments
from kvproof.harness.cli.duration import seconds
from kvproof.harness.cli.options import check_workers
from kvproof.harness.cli.output import standard_output, table_of
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.registry import open_handle
from kvproof.harness.records.events import HarnessFault, Skipped
from kvproof.harness.records.fault_events import FaultJudged, FaultsConcluded, FaultsStarted
from kvproof.reports.values.text import plural
from kvproof.suites.conformance.suite import NAME as CACHE
from kvproof.suites.faults.catalogue import KERNELS, PlantedFault, chosen
from kvproof.suites.faults.reach import load
from kvproof.suites.faults.verdict import judged
from kvproof.suites.faults.worker_pool import (
    FaultProgress,
    Report,
    WorkerCrashed,
    judge_faults,
)
from kvproof.suites.framework.suite import SUBJECT
from kvproof.suites.runner.registry import component

Budget = Literal["pr", "nightly"]
ALLOWED: dict[Budget, float] = {"pr": 0.05, "nightly": 0.0}
"""Budget -> share of the faults that may survive it."""
GOALS = {"reference": 0.9, "vllm": 0.85, "vllm-engine": 0.85}
OTHER_GOAL = 0.8
"""Target -> share of a sample that budget `pr` has to find; the rest may survive."""
_INSTALL = 'pip install "kvproof[gpu]"'


def faults(given: FaultsArguments) -> int:
    """Plant the chosen or drawn faults one by one, and run the suites; returns the exit code.

    Raises UsageError before anything runs if the options are invalid.
    """
    budget, target, sample, reach = given.budget, given.target, given.sample, given.reach
    histories = None if sample else given.seed
    limit = given.limit or ("2m" if sample else "20m" if budget == "pr" else "3h")
    most = seconds(limit)
    _check(given, histories)
    with run_directory(
        "faults", config=_config(given, limit), output=given.output, seed=given.seed
    ) as active:
        if sample:
            found, reach = drawn(active, target, sample, given.seed or 0, reach)
            share = 1 - GOALS.get(target.partition("==")[0], OTHER_GOAL)
        else:
            found, share = Sample("", chosen(given.only, target)), ALLOWED[budget]
        wanted = found.faults
        reports = judge_faults(
            _left(active, wanted), budget=budget, seed=histories,
            directory=active.writer.directory, workers=given.workers, limit=most,
            alone=given.alone, reach=str(reach.resolve()) if reach else "",
        )  # fmt: skip
        ran = [fault for fault in wanted if not (fault.equivalent or _missing(fault))]
        allowed = math.floor(share * len(ran))
        started = FaultsStarted(
            budget=budget, planned=len(wanted), allowed=allowed, source=found.source
        )
        with closing(reports):
            _run(active, started, len(ran), reports)
    return active.exit_code


def _check(given: FaultsArguments, histories: int | None) -> None:
    check_workers(given.workers)
    if given.sample:
        _check_sample(given.only, alone=given.alone)
    else:
        chosen(given.only, given.target)
    if given.reach:
        _check_reach(given.reach, given.budget, histories)
    if given.target != SUBJECT:
        open_handle(given.target).close()


def _config(given: FaultsArguments, limit: str) -> dict[str, str]:
    config = {"budget": given.budget, "only": given.only, "limit": limit}
    if given.alone:
        config["alone"] = "yes"
    if given.target != SUBJECT:
        config["target"] = given.target
    if given.sample:
        config["sample"] = str(given.sample)
    return config


def _check_sample(only: str, *, alone: bool) -> None:
    if only or alone:
        wrong = "--only" if only else "--alone"
        raise UsageError(f"{wrong} goes with the catalogue, not with --sample", "leave one out")


def _check_reach(path: Path, budget: Budget, seed: int | None) -> None:
    """The record is of histories that a seed, or budget nightly, would draw anew."""
    if budget != "pr" or seed is not None:
        raise UsageError("--reach goes with budget pr and no --seed", "its histories never change")
    load(path, budget)


def print_catalogue(only: str, target: str = SUBJECT) -> None:
    """Print the chosen faults. Raises UsageError for a name that fits none."""
    table = table_of("fault", "mechanism", "kind", "what is wrong")
    for fault in chosen(only, target):
        bugs = f" ({', '.join(fault.bugs)})" if fault.bugs else ""
        cells = (fault.name, fault.mechanism, fault.kind, fault.story + bugs)
        table.add_row(*map(escape, cells))
    standard_output().print(table)


def _left(active: ActiveRun, wanted: list[PlantedFault]) -> list[PlantedFault]:
    done = {event.fault for event in active.earlier if isinstance(event, FaultJudged)}
    skipped: Counter[tuple[str, str]] = Counter()
    for fault in wanted:
        if fault.name in done:
            continue
        if fault.equivalent:
            active.write(judged(fault, None))
        elif why := _missing(fault):
            skipped[fault.suite, why] += 1
    for (suite, why), count in skipped.items():
        part = f"{plural(count, 'fault')} of the suite {suite}"
        command = _INSTALL if suite == KERNELS else ""
        active.write(Skipped(part=part, reason=why, command=command))
    return [f for f in wanted if not (f.name in done or f.equivalent or _missing(f))]


def _missing(fault: PlantedFault) -> str:
    if fault.suite == KERNELS:
        absent = [name for name in ("torch", "triton") if not find_spec(name)]
        return f"{' and '.join(absent)} not installed" if absent else ""
    elsewhere = fault.suite == CACHE or fault.target != SUBJECT
    return "" if elsewhere else component(fault.suite).missing()


def _run(active: ActiveRun, started: FaultsStarted, ran: int, reports: Iterator[Report]) -> None:
    active.write(started)
    events = [event for event in active.earlier if isinstance(event, FaultJudged)]
    for report in reports:
        if isinstance(report, FaultProgress):
            text = f"{report.fault.name}, {report.suite}"
            active.status("faults", text, len(events), started.planned)
        elif isinstance(report, WorkerCrashed):
            active.write(_fault(report))
        else:
            active.write(report)
            events.append(report)
    if started.source:  # a fault of the catalogue has to be judged
        ran -= len(_left_out(events))
    if ran:
        active.write(conclude(events, allowed=started.allowed, expected=ran))


def _fault(report: WorkerCrashed) -> HarnessFault:
    where = f"fault {report.fault.name}"
    return HarnessFault(where=where, message=report.message, traceback=report.log)


def conclude(events: list[FaultJudged], *, allowed: int, expected: int) -> FaultsConcluded:
    """Judge the suites by the faults found; `expected` faults should have been judged."""
    latest = {event.fault: event for event in events}
    outcomes = Counter[str](event.outcome for event in latest.values())
    survivors = [event.fault for event in latest.values() if event.outcome == "survived"]
    unseen = [event.fault for event in latest.values() if event.unseen]
    judged = outcomes["killed"] + outcomes["survived"]
    reasons = [f"{judged} of {expected} faults were judged"] if judged < expected else []
    if survivors:
        reasons.append(f"{len(survivors)} survived, {allowed} may: {', '.join(survivors)}")
    if names := ", ".join(_left_out(latest.values())):
        reasons.append(f"left out, as the engine fails without them, too: {names}")
    if unseen:
        reasons.append(f"no shadow memory saw {', '.join(unseen)}")
    verdict: Literal["pass", "fail", "inconclusive"] = "pass"
    if len(survivors) > allowed or unseen:
        verdict = "fail"
    elif judged < expected:
        verdict = "inconclusive"
    return FaultsConcluded(verdict=verdict, reason="; ".join(reasons), outcomes=dict(outcomes))


def _left_out(events: Iterable[FaultJudged]) -> list[str]:
    return [event.fault for event in events if event.outcome == "left_out"]
