"""One HTML file that opens offline, needs no script, and prints."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jinja2

from kvproof.harness.records.bench_events import BenchGiven, BenchPair, SchedulerPoint, TierSummary
from kvproof.harness.records.events import Optimum
from kvproof.harness.records.run_directory import SCHEMA_VERSION, Run
from kvproof.reports.charts import bench as charts
from kvproof.reports.charts import bench_sides as sides
from kvproof.reports.charts import block_table as blocks
from kvproof.reports.charts import fuzz_pace as campaign
from kvproof.reports.charts import hit_rate as capacity
from kvproof.reports.charts import schedulers, tiers, timeline
from kvproof.reports.charts import sweep as sweep_charts
from kvproof.reports.charts.hit_loss import cause_charts
from kvproof.reports.model import attention as notes
from kvproof.reports.model import evaluation as evaluations
from kvproof.reports.model import faults as faults_tables
from kvproof.reports.model import sweep_tables
from kvproof.reports.model.build import build
from kvproof.reports.model.report import Report, grouped
from kvproof.reports.model.sweep import sweep_of
from kvproof.reports.model.sweep_names import names_of
from kvproof.reports.values import text
from kvproof.reports.values import types as parts
from kvproof.reports.values.pairs import level_rows, pairs_line
from kvproof.reports.values.svg import Chart, Table

LIMIT = 1_000_000
"""Bytes of a page at most; larger pages show fewer failures in full."""

MOST_FAILURES = (25, 10, 3, 0)
"""Failures shown in full: the first number that fits. The others are lines of a table."""

MOST_TEXT = 8_000
"""Most characters of a script, log or detail; the run directory has the whole text."""

_MOST_CELL = 600


class SituationRow(NamedTuple):
    """One situation over all targets."""

    name: str
    cells: tuple[SituationCell, ...]


class SituationCell(NamedTuple):
    """`width`: the bar in percent, logarithmic."""

    times: int | None
    width: float
    missing: bool


def render_html(run: Run) -> str:
    """The whole report as one document."""
    report = build(run)
    context = _context(report)
    page = environment().get_template("report.html.j2")
    for most in MOST_FAILURES:
        text = page.render(**context, most_failures=most)
        if len(text.encode("utf-8", "backslashreplace")) < LIMIT:
            break
    return text


def _context(report: Report) -> dict[str, Any]:
    found: dict[str, Any] = {
        "report": report,
        "notes": notes.notes(report),
        "histograms": [charts.hit_lengths(c) for c in report.coverage if c.hit_blocks],
        "situations": situation_rows(report),
        "pairs_line": pairs_line,
        "level_rows": level_rows,
        "throughput": [charts.throughput(group, report.targets) for group in report.bench],
        "bench_tables": _bench_tables(report),
        "bench_notes": _bench_notes(report),
        "bench_given": sides.given(report.of(BenchGiven)),
        "bench_pairs": sides.pairs(report.of(BenchPair)),
        "hit_rates": _hit_rates(report),
        "optimum": capacity.optimum_table(report.of(Optimum)),
        "growth": [charts.growth(*item, report.targets) for item in report.growth.items()],
        "tiers": tiers.table(report.of(TierSummary)),
        "schedulers": schedulers.table(report.of(SchedulerPoint)),
        "causes": cause_charts(report),
        "sweep": sweep_of(report.run.events),
        "faults": faults_tables.matrix_of(report.run.events),
        "campaign": campaign.campaign_of(report.run.events),
        "evaluation": evaluations.evaluations_of(report.run.events),
        "schema": SCHEMA_VERSION,
    }
    return {**found, "sections": _sections(found)}


def _sections(context: dict[str, Any]) -> dict[str, str]:
    """Rendered sections with their own templates; empty ones are missing."""
    units = context["campaign"]
    more = {
        "sweep_charts": sweep_charts,
        "sweep_tables": sweep_tables,
        "names_of": names_of,
        "faults_tables": faults_tables,
        "campaign_tables": campaign,
        "whole": evaluations.whole,
        "campaign_pace": campaign.pace_chart(units) if units else None,
    }
    return {
        name: environment().get_template(f"{name}.html.j2").render(**context, **more)
        if context[name]
        else ""
        for name in ("sweep", "faults", "campaign", "evaluation")
    }


def situation_rows(report: Report) -> list[SituationRow]:
    """Situations that some target never reached first, then by count."""
    names = {name for c in report.coverage for name in (*c.situations, *c.missing)}
    most = max((n for c in report.coverage for n in c.situations.values()), default=1)
    rows = [
        SituationRow(name, tuple(_situation(name, c, most) for c in report.coverage))
        for name in names
    ]
    return sorted(rows, key=lambda row: (not any(c.missing for c in row.cells), _rarity(row)))


def _situation(name: str, coverage: parts.Coverage, most: int) -> SituationCell:
    count = coverage.situations.get(name)
    width = 100 * math.log1p(max(count or 0, 0)) / math.log1p(max(most, 1))
    return SituationCell(count, round(width, 1), name in coverage.missing)


def _rarity(row: SituationRow) -> tuple[int, str]:
    return (-sum(cell.times or 0 for cell in row.cells), row.name)


def _bench_tables(report: Report) -> dict[str, Table]:
    groups = grouped(report.bench, lambda group: group.title)
    return {title: charts.bench_table(found) for title, found in groups.items()}


def _bench_notes(report: Report) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for group in report.bench:
        for entry in group.entries:
            lines = found.setdefault(group.title, [])
            line = f"{charts.case_words(group.case)}: {entry.note}"
            if entry.note and line not in lines:
                lines.append(line)
    return found


def _hit_rates(report: Report) -> list[Chart]:
    found = (capacity.hit_rates(points, report.bench, report.targets) for points in report.optimum)
    return [chart for chart in found if chart]


@cache
def environment() -> jinja2.Environment:
    """Return the templates with their filters and names."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parents[1] / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "brief": lambda value: text.cut(value, _MOST_CELL),
        "long": lambda value: text.cut(value, MOST_TEXT),
        "tail": lambda value: text.tail(value, MOST_TEXT),
        "percent": text.percent,
        "duration": text.duration,
        "number": notes.number,
        "plural": text.plural,
        "json": lambda value: text.cut(json.dumps(value, indent=2, ensure_ascii=False), MOST_TEXT),
    }
    made.globals |= {
        "mark": text.MARKS.__getitem__,
        "marks": text.MARKS,
        "anchor": parts.evidence_anchor,
        "block_picture": blocks.block_picture,
        "block_table": blocks.block_table,
        "timeline_picture": timeline.timeline_picture,
        "launch_table": timeline.launch_table,
        "replay_verdict": notes.replay_verdict,
        "is_link": is_link,
        "facts": facts,
        "pairs": pairs,
        "unsupported": unsupported,
    }
    return made


def is_link(value: str) -> bool:
    """Only web addresses become links; everything else stays text."""
    try:
        return urlsplit(value).scheme in ("http", "https")
    except ValueError:
        return False


_OPTIONS = {"where": "filter", "checked_tokens": "verify_tokens", "peer": "baseline_target"}
"""Name of a setting in run.json -> its option, where they differ."""


def facts(report: Report) -> list[tuple[str, str]]:
    """List in the head: options, place and length of the run."""
    manifest = report.manifest
    config = manifest.config.items()
    plain = {
        _OPTIONS.get(name, name): value
        for name, value in config
        if isinstance(value, str | int | float) and value != ""
    }
    found = [
        ("started", manifest.started.replace("T", " ").replace("Z", " UTC")),
        ("duration", text.duration(report.seconds)),
        ("seed", "" if manifest.seed is None else str(manifest.seed)),
        ("settings", pairs(plain)),
        ("machine", pairs(manifest.hardware)),
        ("commit", manifest.commit or ""),
    ]
    return [(name, value) for name, value in found if value]


def pairs(values: Mapping[str, Any], order: Sequence[str] = ()) -> str:
    """Format as `key value, key value`, with lists written out."""
    keys = [*order, *(key for key in values if key not in order)]
    return ", ".join(f"{key.replace('_', ' ')} {_plain(values[key])}" for key in keys)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(_plain(item) for item in value)
    return str(value)


def unsupported(profile: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Properties that a target's profile switches off, with reasons."""
    found = profile.get("unsupported")
    return [(str(k), str(v)) for k, v in found.items()] if isinstance(found, dict) else []
