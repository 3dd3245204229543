"""A memory plan as text and as a page: bytes per group, lost bytes, capacity (P9)."""

from __future__ import annotations

from math import floor
from typing import TYPE_CHECKING

from rich.console import Console

from kvproof.reports.charts.chunk import chunk_chart
from kvproof.reports.charts.plan import block_chart, pool_chart, request_chart
from kvproof.reports.render.console import Screen
from kvproof.reports.render.html import environment
from kvproof.reports.values.plan_text import nbytes, numbers, sees
from kvproof.reports.values.svg import Table
from kvproof.reports.values.text import clean, percent, plural

if TYPE_CHECKING:
    from kvproof.reference.planner.plan import PlannedGroup
    from kvproof.reference.planner.summary import Alike, Summary


def headline(summary: Summary) -> str:
    """Capacity in one sentence."""
    stated = summary.capacity
    exact = floor(100 * stated.requests_exact) / 100
    return (
        f"{plural(stated.requests, 'request')} of {summary.request.length:,} tokens at once "
        f"({exact:,.2f}), {stated.tokens:,} tokens in all"
    )


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Return names and values of the plan's head."""
    plan, needed = summary.plan, summary.request
    longest = summary.capacity.longest
    rows = " and ".join(nbytes(worker.block_bytes) for worker in plan.workers)
    stages = plural(len(plan.workers), "pipeline stage")
    ranks = plural(plan.tensor_parallel, "tensor-parallel rank")
    if (shared := plan.settings.context).count > 1:
        turns = f"{plural(shared.interleave, 'token')} in turn"
        ranks += f", {plural(shared.count, 'context-parallel rank')} with {turns}"
    return [
        ("model", clean(plan.model)),
        ("memory", " and ".join(nbytes(size) for size in plan.settings.memory)),
        ("workers", f"{stages}, {ranks}"),
        ("blocks", f"{plan.num_blocks:,}, the null block included, of {rows}"),
        ("hits align to", plural(plan.unit, "token")),
        ("longest", "any length" if longest is None else plural(longest, "token")),
        (
            "one request",
            f"{nbytes(needed.bytes)}, of which {_share(needed.padding, needed.bytes)} padding "
            f"and {_share(needed.rounding, needed.bytes)} rounding",
        ),
    ]


def _share(part: int, whole: int) -> str:
    return percent(part / whole if whole else 0.0)


def group_table(summary: Summary) -> Table:
    """One line per run of equal groups; blocks in tokens, and per request."""
    head = ("group", "sees", "layers", "block", "kernel", "per request", "fills", "lost")
    return Table(head, tuple(_row(run) for run in summary.groups), words=2)


def _row(run: Alike) -> tuple[str, ...]:
    group = run.group
    readers = f" + {len(group.readers)}" if group.readers else ""
    tokens = (f"{group.block_size:,}", f"{group.config.kernel_size:,}")
    return (
        numbers(run),
        sees(group),
        f"{len(group.layers)}{readers}",
        *(("", "") if group.kind == "state" else tokens),
        f"{run.blocks:,}",
        nbytes(run.filled),
        _share(run.room - run.filled, run.room),
    )


def choice_table(summary: Summary) -> Table:
    """Gain by more groups."""
    rows = [
        (f"{choice.groups}", " and ".join(map(str, choice.block_sizes)), f"{choice.requests:,.2f}")
        for choice in summary.plan.choices
    ]
    return Table(("groups", "blocks, tokens", "requests at once"), tuple(rows))


def print_plan(summary: Summary, console: Console) -> None:
    """Write the plan to a terminal, a pipe or a file."""
    screen = Screen(console)
    screen.line(headline(summary), "bold")
    width = max(len(name) for name, _ in facts(summary))
    for name, value in facts(summary):
        screen.line(f"{name.ljust(width)}  {value}")
    screen.line()
    screen.figures(group_table(summary), wrap=False)
    if len(summary.plan.choices) > 1:
        screen.heading("Gain by another group")
        screen.figures(choice_table(summary), wrap=False)
    if summary.plan.notes:
        screen.line()
    for note in summary.plan.notes:
        screen.line(clean(note))


def render_plan(summary: Summary) -> str:
    """Return the plan as one page that opens offline."""
    page = environment().get_template("plan.html.j2")
    groups = enumerate(summary.plan.groups)
    charts = [block_chart(summary), request_chart(summary), pool_chart(summary)]
    if summary.chunk is not None:
        charts.append(chunk_chart(summary.chunk))
    return page.render(
        model=clean(summary.plan.model),
        notes=[clean(note) for note in summary.plan.notes],
        schema=summary.plan.schema,
        length=summary.request.length,
        headline=headline(summary),
        facts=facts(summary),
        groups=group_table(summary),
        choices=choice_table(summary),
        charts=charts,
        layers=[(index, sees(group), _listed(group)) for index, group in groups],
    )


def _listed(group: PlannedGroup) -> str:
    names = [name.removeprefix("layers.") for name in group.layers]
    read = [name.removeprefix("layers.") for name in group.readers]
    return clean(", ".join(names) + (f"; read by {', '.join(read)}" if read else ""))
