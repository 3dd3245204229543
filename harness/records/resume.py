"""What a run that was resumed has written again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kvproof.harness.records.events import (
    AnyEvent,
    BenchSummary,
    Checked,
    Explained,
    GrowthPoint,
    Optimum,
    Threshold,
)


def once(events: Sequence[AnyEvent]) -> list[AnyEvent]:
    """Events in order, of what a resumed bench has measured or checked again only the last word.

    A check or a threshold that failed is never taken back.
    """
    kept: dict[Hashable, AnyEvent] = {}
    for place, event in enumerate(events):
        key = _identity(event) or (place,)
        old = kept.pop(key, event)
        failed = isinstance(old, Checked | Threshold) and old.verdict == "fail"
        kept[key] = old if failed else event
    return list(kept.values())


def _identity(event: AnyEvent) -> tuple[Hashable, ...] | None:
    """What two events that say the same thing have in common; None if nothing is said twice."""
    match event:
        case BenchSummary():
            return _sized(event, event.groups, event.case)
        case Checked():
            return _sized(event)
        case Explained():
            return _sized(event, event.request)
        case Optimum():
            return type(event), event.workload, event.block_size, event.rule, event.capacity
        case GrowthPoint():
            return type(event), event.target, event.block_size, event.cached_blocks
        case Threshold():
            return type(event), event.name
    return None


def _sized(event: BenchSummary | Checked | Explained, *more: str) -> tuple[Hashable, ...]:
    return type(event), event.target, event.workload, event.block_size, event.num_blocks, *more
