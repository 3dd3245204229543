"""A memory plan as text and as a page: bytes per group, what is lost, what fits (P9)."""

from __future__ import annotations

from itertools import groupby
from math import floor
from typing import NamedTuple

from rich.console import Console

from kvproof.reference.plan import Plan, PlannedGroup
from kvproof.reference.plan_sizes import capacity, need
from kvproof.reports.html import environment
from kvproof.reports.plan_drawing import block_chart, filling, pool_chart, request_chart
from kvproof.reports.plan_words import nbytes, sees
from kvproof.reports.screen import Screen
from kvproof.reports.svg import Table
from kvproof.reports.text import percent, plural


class Alike(NamedTuple):
    """Groups one after the other that differ only in their layers."""

    first: int
    last: int
    group: PlannedGroup

    @property
    def name(self) -> str:
        """`3` or `3 to 7`."""
        return f"{self.first}" if self.first == self.last else f"{self.first} to {self.last}"


def alike(plan: Plan) -> list[Alike]:
    """Return runs of groups that a table need not tell apart."""
    found = []
    for _, members in groupby(enumerate(plan.groups), key=lambda item: _shape(plan, *item)):
        run = list(members)
        found.append(Alike(run[0][0], run[-1][0], run[0][1]))
    return found


def _shape(plan: Plan, index: int, group: PlannedGroup) -> tuple[object, ...]:
    used = tuple(worker.used[index] for worker in plan.workers)
    return (group.config, len(group.layers), len(group.readers), used)


def headline(plan: Plan) -> str:
    """Say what fits, in one sentence."""
    stated = capacity(plan)
    return (
        f"{plural(stated.requests, 'request')} of {plan.settings.max_len:,} tokens at once "
        f"({floor(100 * stated.requests_exact) / 100:,.2f}), {stated.tokens:,} tokens in all"
    )


def facts(plan: Plan) -> list[tuple[str, str]]:
    """Return names and values of the plan's head."""
    stated, needed = capacity(plan), need(plan, plan.settings.max_len)
    longest = "any length" if stated.longest is None else f"{stated.longest:,} tokens"
    rows = ", ".join(nbytes(worker.block_bytes) for worker in plan.workers)
    return [
        ("model", plan.model),
        ("memory", " and ".join(nbytes(size) for size in plan.settings.memory)),
        ("workers", f"{plural(len(plan.workers), 'pipeline stage')}, "
                    f"{plural(plan.tensor_parallel, 'tensor-parallel rank')}"),
        ("blocks", f"{plan.num_blocks:,}, the null block included, of {rows}"),
        ("hits align to", plural(plan.unit, "token")),
        ("longest", longest),
        ("one request", f"{nbytes(needed.bytes)}, of which {_share(needed.padding, needed.bytes)} "
                        f"padding and {_share(needed.rounding, needed.bytes)} rounding"),
    ]  # fmt: skip


def _share(part: int, whole: int) -> str:
    return percent(part / whole if whole else 0.0)


def group_table(plan: Plan) -> Table:
    """Return one line for each run of groups alike; blocks in tokens, and per request."""
    needed = need(plan, plan.settings.max_len)
    head = ("group", "sees", "layers", "block", "kernel", "per request", "fills", "lost")
    return Table(head, tuple(_row(plan, run, needed.blocks[run.first]) for run in alike(plan)), 2)


def _row(plan: Plan, run: Alike, blocks: int) -> tuple[str, ...]:
    group = run.group
    filled, room = filling(plan, run.first)
    tokens = (f"{group.block_size:,}", f"{group.config.kernel_size:,}")
    return (
        run.name,
        sees(group),
        _layers(group),
        *(("", "") if group.kind == "state" else tokens),
        f"{blocks:,}",
        nbytes(filled),
        _share(room - filled, room),
    )


def _layers(group: PlannedGroup) -> str:
    readers = f" + {len(group.readers)}" if group.readers else ""
    return f"{len(group.layers)}{readers}"


def choice_table(plan: Plan) -> Table:
    """Return what more groups would gain."""
    rows = [
        (f"{choice.groups}", " and ".join(map(str, choice.block_sizes)), f"{choice.requests:,.2f}")
        for choice in plan.choices
    ]
    return Table(("groups", "blocks, tokens", "requests at once"), tuple(rows))


def print_plan(plan: Plan, console: Console) -> None:
    """Write the plan to a terminal, a pipe or a file."""
    screen = Screen(console)
    screen.line(headline(plan), "bold")
    width = max(len(name) for name, _ in facts(plan))
    for name, value in facts(plan):
        screen.line(f"{name.ljust(width)}  {value}")
    screen.line()
    _print_table(screen, group_table(plan))
    if len(plan.choices) > 1:
        screen.heading("What another group would gain")
        _print_table(screen, choice_table(plan))
    if plan.notes:
        screen.line()
    for note in plan.notes:
        screen.line(note)


def _print_table(screen: Screen, data: Table) -> None:
    table = screen.table(*data.head)
    for index, column in enumerate(table.columns):
        column.justify = "left" if index < data.words else "right"
        column.no_wrap = True
    for row in data.rows:
        table.add_row(*(screen.text(cell) for cell in row))
    screen.show(table)


def render_plan(plan: Plan) -> str:
    """Return the plan as one page that opens offline."""
    labels = [(run.name, run.first) for run in alike(plan)]
    page = environment().get_template("plan.html.j2")
    return page.render(
        plan=plan,
        headline=headline(plan),
        facts=facts(plan),
        groups=group_table(plan),
        choices=choice_table(plan),
        charts=[block_chart(plan, labels), request_chart(plan, labels), pool_chart(plan)],
        layers=[(index, sees(group), _listed(group)) for index, group in enumerate(plan.groups)],
    )


def _listed(group: PlannedGroup) -> str:
    names = [name.removeprefix("layers.") for name in group.layers]
    read = [name.removeprefix("layers.") for name in group.readers]
    return ", ".join(names) + (f"; read by {', '.join(read)}" if read else "")
