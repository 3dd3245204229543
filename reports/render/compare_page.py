"""A comparison in the terminal, as Markdown and as one HTML file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from kvproof.harness.analysis.compare import LOSSES, Comparison, Row
from kvproof.reports.model.compare import (
    METRICS,
    TONES,
    claims,
    difference_table,
    row_table,
    sentence,
    side_words,
    undecided_table,
    verdict_table,
    word,
)
from kvproof.reports.render.console import TONES as COLOURS
from kvproof.reports.render.console import Screen
from kvproof.reports.render.html import environment
from kvproof.reports.render.markdown import escape
from kvproof.reports.values.svg import Box, Chart, Drawing, Label, Line, Scale, Shape, Table, fit
from kvproof.reports.values.text import plural

MOST_ROWS = 40
"""Most lines of a table in the terminal and in Markdown; the HTML file has up to 500."""

_MOST_HTML = 500
_WIDTH, _NAMES, _LINE = 760, 330, 22


def print_comparison(found: Comparison, console: Console) -> None:
    """Environment first, then changes; the verdict is last, next to the prompt."""
    screen = Screen(console)
    screen.line(f"base: {side_words(found.base)}")
    screen.line(f"head: {side_words(found.head)}")
    for title, table in _parts(found):
        screen.heading(title)
        screen.figures(_narrow(table))
    for reason in found.refused:
        screen.line(f"refused: {reason}", "yellow")
    screen.line()
    screen.line(claims(found), "dim")
    head = screen.text(f" {word(found)} ", COLOURS[TONES[found.code]])
    screen.write(head.append_text(screen.text(f" {sentence(found)}", "bold")))


def _parts(found: Comparison) -> Iterator[tuple[str, Table]]:
    if found.differences:
        yield "Differences of the environment", difference_table(found.differences)
    if found.verdicts:
        title = f"{plural(len(found.verdicts), 'verdict')} changed"
        yield title, verdict_table(found.verdicts)
    if found.changed:
        yield f"{plural(len(found.changed), 'figure')} changed", row_table(found.changed)
    if found.undecided:
        yield "Undecided", undecided_table(found.undecided)


def _narrow(table: Table) -> Table:
    rows = table.rows[:MOST_ROWS]
    left = len(table.rows) - len(rows)
    more = ((f"and {left} more", *("" for _ in table.head[1:])),) if left else ()
    return Table(table.head, (*rows, *more), table.words)


def markdown(found: Comparison) -> str:
    """Return a short summary for the page of a CI system."""
    return "\n".join(_markdown(found)) + "\n"


def _markdown(found: Comparison) -> Iterator[str]:
    yield f"## kvproof compare: {word(found)}"
    yield from ("", f"{escape(sentence(found))}.", "")
    yield f"- base: {escape(side_words(found.base))}"
    yield f"- head: {escape(side_words(found.head))}"
    yield from (f"- refused: {escape(reason)}" for reason in found.refused)
    for title, table in _parts(found):
        narrow = _narrow(table)
        yield from ("", f"### {title}", "", f"| {' | '.join(map(escape, narrow.head))} |")
        yield f"|{' --- |' * len(narrow.head)}"
        yield from (f"| {' | '.join(map(escape, row))} |" for row in narrow.rows)
    yield from ("", escape(claims(found)))


def html(found: Comparison) -> str:
    """Return the whole comparison as one document."""
    page = environment().get_template("compare.html.j2")
    return page.render(
        found=found,
        word=word(found),
        tone=TONES[found.code],
        sentence=sentence(found),
        claims=claims(found),
        base=side_words(found.base),
        head=side_words(found.head),
        differences=difference_table(found.differences),
        verdicts=_first(verdict_table(found.verdicts)),
        changed=_first(row_table(found.changed)),
        undecided=_first(undecided_table(found.undecided)),
        same=_first(row_table([row for row in found.rows if row.change == "same"])),
        chart=ratio_chart(found.changed),
    )


def _first(table: Table) -> Table:
    return Table(table.head, table.rows[:_MOST_HTML], table.words)


def ratio_chart(rows: Sequence[Row]) -> Chart | None:
    """Ratios with intervals and the threshold; None if no measured figure changed."""
    drawn = [row for row in rows if row.found is not None][:MOST_ROWS]
    if not drawn:
        return None
    ends = [end for row in drawn if row.found for end in (row.found.low, row.found.high)]
    scale = Scale(min(0.9, *ends), max(1.1, *ends), _NAMES, _WIDTH - 20)
    shapes: list[Shape] = []
    for index, row in enumerate(drawn):
        shapes += _interval(row, index * _LINE + 8, scale)
    height = len(drawn) * _LINE + 34
    for value in scale.ticks():
        shapes.append(Line(((scale(value), 0), (scale(value), height - 26)), "grid"))
        shapes.append(Label(scale(value), height - 10, f"{value:.2f}", "axis", "middle"))
    losses = sum(row.change in LOSSES for row in drawn)
    title = f"{losses} of {plural(len(drawn), 'changed figure')} cost more"
    return Chart(
        title=title,
        subtitle="cost of the head over that of the base, 95 % intervals; the bar is the threshold",
        drawing=Drawing(_WIDTH, height, title, tuple(shapes)),
        table=row_table(drawn),
    )


def _interval(row: Row, y: float, scale: Scale) -> list[Shape]:
    assert row.found is not None
    low, high = scale(1 / (1 + row.threshold)), scale(1 + row.threshold)
    style = "s1" if row.change in LOSSES else "s0"
    name = f"{row.key.subject}: {METRICS[row.key.metric]}, {row.key.detail}"
    middle = scale(row.ratio)
    return [
        Label(_NAMES - 10, y + 9, fit(name, _NAMES - 20), "", "end"),
        Box(low, y, high - low, 12, "block"),
        Line(((scale(row.found.low), y + 6), (scale(row.found.high), y + 6)), "whisker"),
        Box(middle - 4, y + 2, 8, 8, style, name),
    ]
