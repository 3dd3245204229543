"""Which events of a run count if it was interrupted and went on, and so repeats some of them.

One rule for every command, report and comparison: **of several events on one subject the last
counts, but a failure with evidence is never taken back.** Evidence is a reproducer (a `Failure`,
or the fingerprint of one in a verdict), and for a check or a threshold its own measurement. A
failure without evidence is judged anew: an interrupted campaign may have missed a situation, or
a failure that is expected.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence

from msgspec.structs import replace

from kvproof.harness.records.base import Event
from kvproof.harness.records.bench_events import (
    BenchGiven,
    BenchPair,
    GrowthPoint,
    SchedulerPoint,
    TierSample,
    TierSummary,
)
from kvproof.harness.records.eval_events import EvalConcluded, EvalFigure, EvalStarted, EvalTable
from kvproof.harness.records.events import (
    AnyEvent,
    BenchSummary,
    Checked,
    Explained,
    Failure,
    Optimum,
    PropertyVerdict,
    Skipped,
    Threshold,
)


def once(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """Return events in order, and of those on one subject only the one that counts."""
    kept: dict[Hashable, AnyEvent] = {}
    for place, event in enumerate(events):
        key = _subject(event) or (place,)
        old = kept.pop(key, event)
        kept[key] = old if _proves(old) and not _fails(event) else event
    return _with_failures(kept.values())


def final_verdicts(events: Iterable[AnyEvent]) -> list[PropertyVerdict]:
    """Return the last verdict of each target, suite and property; a recorded `Failure` stays.

    A suite that does not judge a property is left out where another one does. Up to version 0.14
    such suites had other names for it.
    """
    judged = [event for event in events if isinstance(event, PropertyVerdict | Failure)]
    last = [event for event in once(judged) if isinstance(event, PropertyVerdict)]
    known = {(e.target, e.property) for e in last if e.verdict != "unsupported"}
    return [e for e in last if e.verdict != "unsupported" or (e.target, e.property) not in known]


def continuous(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """Return events whose `at` counts the seconds of work since the run began.

    Up to version 0.13 every part of a resumed run counted from 0. The time between two parts is
    left out.
    """
    return [
        event if event.at == at else replace(event, at=at)
        for event, at in zip(events, _clock(events), strict=True)
    ]


def _clock(events: Iterable[Event]) -> Iterator[float]:
    before = last = 0.0
    for event in events:
        if event.at < last:
            before += last
        last = event.at
        yield round(before + last, 3)


def _fails(event: AnyEvent) -> bool:
    return isinstance(event, PropertyVerdict | Checked | Threshold) and event.verdict == "fail"


def _proves(event: AnyEvent) -> bool:
    return _fails(event) and (not isinstance(event, PropertyVerdict) or bool(event.fingerprint))


def _with_failures(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """Let no property pass of which a failure is recorded: its part ended before its verdict."""
    every = list(events)
    recorded = {(e.target, e.property): e for e in every if isinstance(e, Failure)}
    return [
        _failed(event, recorded[event.target, event.property])
        if isinstance(event, PropertyVerdict)
        and event.verdict in ("pass", "inconclusive")
        and (event.target, event.property) in recorded
        else event
        for event in every
    ]


def _failed(verdict: PropertyVerdict, failure: Failure) -> PropertyVerdict:
    return replace(
        verdict,
        verdict="fail",
        reason=failure.sentence,
        oracle=failure.oracle,
        fingerprint=failure.fingerprint,
    )


def _subject(event: AnyEvent) -> tuple[Hashable, ...] | None:
    """Return the subject of an event that a resumed run may repeat, None for all others."""
    match event:
        case PropertyVerdict():
            return type(event), event.target, event.suite, event.property
        case BenchSummary():
            return _sized(event, event.groups, event.case)
        case BenchPair():
            return _sized(event, event.groups, event.case, event.peer)
        case BenchGiven():
            return type(event), event.target, event.lacks
        case Checked():
            return _sized(event)
        case Explained():
            return _sized(event, event.request)
        case Optimum():
            return type(event), event.workload, event.block_size, event.rule, event.capacity
        case GrowthPoint():
            return type(event), event.target, event.block_size, event.cached_blocks
        case TierSample():
            return *_tier(event), event.repetition
        case TierSummary():
            return _tier(event)
        case SchedulerPoint():
            return type(event), event.target, event.requests, event.prompt_tokens
        case Threshold():
            return type(event), event.name
        case Skipped():
            return type(event), event.part, event.reason
        case EvalStarted() | EvalConcluded():
            return type(event), event.benchmark
        case EvalFigure():
            return type(event), event.target, event.property, event.metric
        case EvalTable():
            return type(event), event.benchmark, event.title
    return None


def _tier(event: TierSample | TierSummary) -> tuple[Hashable, ...]:
    return type(event), event.target, event.operation, event.object_bytes, event.clients


def _sized(
    event: BenchSummary | BenchPair | Checked | Explained, *more: str
) -> tuple[Hashable, ...]:
    return type(event), event.target, event.workload, event.block_size, event.num_blocks, *more
