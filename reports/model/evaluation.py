"""Evaluations in a report: their conditions, and their tables as they were recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvproof.harness.records.eval_events import EvalConcluded, EvalFigure, EvalStarted, EvalTable
from kvproof.harness.records.events import AnyEvent
from kvproof.reports.values.svg import Table


@dataclass(frozen=True)
class Evaluation:
    """One benchmark of a run."""

    started: EvalStarted
    tables: tuple[EvalTable, ...]
    """Tables with rows."""


def evaluations_of(events: Sequence[AnyEvent]) -> list[Evaluation]:
    """Return the evaluations of a run; none of other runs."""
    tables = [each for each in events if isinstance(each, EvalTable) and each.rows]
    return [
        Evaluation(each, tuple(t for t in tables if t.benchmark == each.benchmark))
        for each in events
        if isinstance(each, EvalStarted)
    ]


def whole(table: EvalTable) -> Table:
    """All columns."""
    return Table(table.head, table.rows, table.words)


def narrow(table: EvalTable) -> Table:
    """The columns for a terminal of 80 columns."""
    head, *rows = (tuple(row[at] for at in table.narrow) for row in (table.head, *table.rows))
    return Table(head, tuple(rows), sum(at < table.words for at in table.narrow))


def describe(event: AnyEvent) -> tuple[str, str]:
    """Verdict and line of an event."""
    match event:
        case EvalStarted():
            return "", "; ".join([event.title, *event.lines])
        case EvalFigure():
            return "", f"{event.target} {event.property}: {event.metric} {event.value:.3g}"
        case EvalTable():
            return "", f"{event.title}: {len(event.rows)} rows"
        case EvalConcluded():
            return event.verdict, f"{event.benchmark}: {event.sentence}"
    return "", type(event).__name__
