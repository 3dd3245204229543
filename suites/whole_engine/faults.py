"""Bugs planted in an engine's own files, as the faults of a run of `kvproof faults`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvproof.harness.isolation.handles import Handle
from kvproof.harness.oracle.violation import SHADOW
from kvproof.harness.records import fault_events
from kvproof.harness.records.fault_events import FaultJudged
from kvproof.harness.reproduce import oplog
from kvproof.suites.framework.budgets import BUDGETS
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.evidence import log_of
from kvproof.suites.whole_engine.choices import Choices
from kvproof.suites.whole_engine.planted_bugs import Bug, Kill, hunt
from kvproof.suites.whole_engine.strategies import SUITE

HANG = "hang"
CUT_S = 3.0
"""Seconds of leaving operations out of a failing history."""
UNSHADOWED = "its history had ended by another oracle"

Store = Callable[[str, bytes], object]
"""Receives the name of a file below the run's directory, and its content."""


def judge(
    handle: Handle,
    bugs: Sequence[Bug],
    store: Store,
    *,
    budget: str,
    seed: int | None,
    profiles: Sequence[Callable[[Choices], Config]] = (),
) -> Iterator[FaultJudged]:
    """Plant bugs one after the other; yield the verdict on each. Raises TargetDied."""
    settings = BUDGETS[budget]
    kills = hunt(
        handle,
        bugs,
        seed=1 if seed is None else seed,
        histories=settings.max_examples,
        operations=settings.stateful_step_count,
        seconds=float("inf"),
        profiles=profiles,
        cut=CUT_S,
    )
    for kill in kills:
        yield judged(kill.bug, _found(kill, handle.name, store), kill)


def judged(
    bug: Bug, found: fault_events.Kill | None = None, kill: Kill | None = None
) -> FaultJudged:
    """Return the event about a bug; without `kill` it was not run, because nothing can find it."""
    shadow = any(prop.name == bug.property and prop.oracle == SHADOW for prop in SUITE.properties)
    seen = found is not None and found.oracle == SHADOW
    return FaultJudged(
        fault=bug.name,
        mechanism=bug.mechanism,
        kind="soundness" if shadow else "accounting",
        bugs=[],
        story=bug.story,
        module=bug.module,
        expected=bug.property,
        outcome="killed" if found else "survived" if kill else "equivalent",
        kill=found,
        shadow=found if seen else None,
        unshadowed=UNSHADOWED if shadow and not seen else "",
        reason=bug.unseen or bug.survives,
        cases=kill.histories if kill else 0,
        seconds=round(kill.seconds, 3) if kill else 0.0,
    )


def _found(kill: Kill, target: str, store: Store) -> fault_events.Kill | None:
    if not kill.found_by:
        return None
    oracle, fingerprint, path = HANG, "", ""
    if kill.failure is not None:
        log = log_of(kill.failure, target)
        oracle, fingerprint = kill.failure.violation.oracle, log.fingerprint
        path = f"faults/{kill.bug.name}.json"
        store(path, oplog.dump(log))
    return fault_events.Kill(
        suite=SUITE.name,
        property=kill.found_by,
        oracle=oracle,
        sentence=kill.sentence,
        cases=kill.histories,
        seconds=round(kill.seconds, 3),
        size=kill.length,
        fingerprint=fingerprint,
        op_log=path,
    )
