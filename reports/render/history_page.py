"""Many runs on one page: changes, trends, expected failures, corpus, faults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvproof.harness.analysis.history import Expected, History, Strip, Trend, began
from kvproof.harness.analysis.series import UNITS
from kvproof.harness.records.run_directory import Run
from kvproof.reports.charts.history import growth_chart, strip_chart, trend_chart
from kvproof.reports.model.compare import METRICS
from kvproof.reports.render.html import environment
from kvproof.reports.values.svg import Chart, Table
from kvproof.reports.values.text import clean, cut, one_line, plural, significant

LIMIT = 2_000_000
"""Bytes of the page at most; larger pages draw fewer trends."""

_MOST_TRENDS = (80, 40, 20, 5)
_MOST_ROWS, _MOST_STRIPS, _MOST_RUNS = 300, 200, 60
_TEXT = 240


class Change(NamedTuple):
    """A step of a trend, with the run before and after it."""

    trend: Trend
    run: Run
    ratio: float
    before: float
    after: float


def render_history(found: History) -> str:
    """The whole history as one document."""
    for most in _MOST_TRENDS:
        page = _page(found, most)
        if len(page.encode("utf-8", "backslashreplace")) < LIMIT:
            break
    return page


def _page(found: History, most: int) -> str:
    changes = _changes(found)
    ordered = sorted(found.trends, key=lambda trend: (not trend.steps, trend.key))
    return (
        environment()
        .get_template("history.html.j2")
        .render(
            sentence=sentence(found),
            span=_span(found.runs),
            unreadable=[_cell(line) for line in found.unreadable[:20]],
            changes=_change_table(changes),
            moved=[trend_chart(trend, found.runs) for trend in ordered[:most] if trend.steps],
            steady=[
                trend_chart(trend, found.runs)
                for trend in ordered[:most]
                if not trend.steps and _varies(trend)
            ],
            trends=len(ordered),
            last=_last_table(ordered),
            expected=_expected_table(found.expected),
            corpus=growth_chart("op logs in the corpus", found.corpus, found.runs),
            failures=growth_chart("different failures found", found.failures, found.runs),
            faults=_matrix("planted faults", found.faults, found.runs),
            verdicts=_matrix(
                "properties whose verdict changed",
                [strip for strip in found.verdicts if strip.changed],
                found.runs,
            ),
            unchanged=sum(not strip.changed for strip in found.verdicts),
            runs=_run_table(found.runs),
        )
    )


def _varies(trend: Trend) -> bool:
    return len({point.value for point in trend.points}) > 1


def sentence(found: History) -> str:
    """Summary of the history in one sentence."""
    steps = sum(len(trend.steps) for trend in found.trends)
    worse = sum(step.ratio > 1 for trend in found.trends for step in trend.steps)
    waiting = sum(not each.over for each in found.expected)
    moved = sum(strip.changed for strip in found.verdicts)
    parts = [
        plural(len(found.runs), "run"),
        f"{plural(steps, 'change')} of level in {plural(len(found.trends), 'trend')}, "
        f"{worse} for the worse",
        f"{plural(waiting, 'expected failure')}",
        f"{plural(moved, 'property')} with another verdict now and then",
    ]
    return ", ".join(parts)


def _span(runs: Sequence[Run]) -> str:
    return f"{began(runs[0]):%Y-%m-%d} to {began(runs[-1]):%Y-%m-%d}"


def _changes(found: History) -> list[Change]:
    every = [
        Change(trend, found.runs[trend.points[step.at].run], step.ratio, step.before, step.after)
        for trend in found.trends
        for step in trend.steps
    ]
    return sorted(every, key=lambda each: began(each.run), reverse=True)


def _change_table(changes: Sequence[Change]) -> Table:
    rows = [
        (
            f"{began(each.run):%Y-%m-%d %H:%M}",
            (each.run.manifest.commit or "")[:10],
            each.trend.key.subject,
            METRICS[each.trend.key.metric],
            each.trend.key.detail,
            f"{(each.ratio - 1) * 100:+.1f} %",
            _value(each.trend, each.before),
            _value(each.trend, each.after),
        )
        for each in changes[:_MOST_ROWS]
    ]
    head = ("first run", "commit", "subject", "figure", "of", "change", "before", "after")
    return _table(head, rows, 5)


def _last_table(trends: Sequence[Trend]) -> Table:
    rows = [
        (
            trend.key.subject,
            METRICS[trend.key.metric],
            trend.key.detail,
            trend.machine,
            str(len(trend.points)),
            _value(trend, trend.points[0].value),
            _value(trend, trend.points[-1].value),
            str(len(trend.steps)),
        )
        for trend in trends[:_MOST_ROWS]
    ]
    head = ("subject", "figure", "of", "machine", "runs", "first", "last", "changes")
    return _table(head, rows, 4)


def _value(trend: Trend, value: float) -> str:
    return f"{significant(value)} {UNITS[trend.key.metric]}".strip()


def _expected_table(found: Sequence[Expected]) -> Table:
    ordered = sorted(found, key=lambda each: (each.over, -each.days))
    rows = [
        (
            each.target,
            each.property,
            "no longer expected" if each.over else f"{each.days:.0f} days",
            str(each.runs),
            f"{each.since:%Y-%m-%d}",
            each.reason,
        )
        for each in ordered[:_MOST_ROWS]
    ]
    return _table(("target", "property", "age", "runs in a row", "since", "why"), rows, 6)


def _matrix(what: str, strips: Sequence[Strip], runs: Sequence[Run]) -> Chart | None:
    ordered = sorted(strips, key=lambda strip: (not strip.changed, strip.name))
    return strip_chart(what, ordered[:_MOST_STRIPS], runs) if ordered else None


def _run_table(runs: Sequence[Run]) -> Table:
    rows = [
        (
            f"{began(run):%Y-%m-%d %H:%M}",
            run.manifest.verb,
            (run.manifest.commit or "")[:10],
            run.ended.verdict if run.ended else "killed",
            run.ended.sentence if run.ended else "",
            str(run.directory),
        )
        for run in reversed(runs[-_MOST_RUNS:])
    ]
    return _table(("started", "verb", "commit", "verdict", "what", "where"), rows, 6)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], words: int) -> Table:
    return Table(head, tuple(tuple(_cell(value) for value in row) for row in rows), words)


def _cell(value: str) -> str:
    return cut(one_line(clean(value)), _TEXT)
