"""Events of `kvproof eval`. Its verdicts are `PropertyVerdict`s, one for each row that is judged.

The answers themselves are lines of a file next to the events: they are large, and only a later part
of the same run, or `kvproof eval compare`, reads them again.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from kvproof.harness.records.base import Event

EvalMetric: TypeAlias = Literal["wrong_answers", "recomputed_tokens", "largest_difference"]


class EvalStarted(Event, tag="eval_started", frozen=True, kw_only=True):
    """An evaluation began, or goes on."""

    benchmark: str
    """Name in the properties, for example `longbench_v2`."""
    title: str
    lines: tuple[str, ...]
    """Size and conditions of the run, and notes."""


class EvalFigure(Event, tag="eval_figure", frozen=True, kw_only=True):
    """One figure of a configuration; a smaller one is better."""

    target: str
    property: str
    """Property that judges the same answers."""
    metric: EvalMetric
    value: float


class EvalTable(Event, tag="eval_table", frozen=True, kw_only=True):
    """Figures of an evaluation as cells of text; a later table of the same title replaces it."""

    benchmark: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int
    """Columns of text; the others are numbers."""
    note: str = ""
    narrow: tuple[int, ...] = ()
    """Columns on a terminal; none: only files have the table."""


class EvalConcluded(Event, tag="eval_concluded", frozen=True, kw_only=True):
    """The verdict of an evaluation over all rows."""

    benchmark: str
    verdict: Literal["pass", "inconclusive", "fail"]
    sentence: str
    doubts: tuple[str, ...] = ()
    """Obstacles to a pass that belong to no row."""
