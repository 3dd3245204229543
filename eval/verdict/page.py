"""The formats that the reports of all evaluations share: tables, Markdown, HTML, files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jinja2
import msgspec

from kvproof import reports
from kvproof.harness.records.run_directory import store
from kvproof.reports.render.console import TONES, Screen
from kvproof.reports.values.svg import Table as Figures
from kvproof.reports.values.text import cut, one_line


class Table(NamedTuple):
    """A heading, column names, and cells; the first `words` columns are text."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int
    note: str = ""

    def columns(self, kept: Iterable[int], words: int) -> Table:
        """Some of the columns, for a terminal of 80 columns."""
        head, *rows = (tuple(row[at] for at in kept) for row in (self.head, *self.rows))
        return self._replace(head=head, rows=tuple(rows), words=words)


def write_files(directory: Path, name: str, summary: object, markdown: str, html: str) -> None:
    """Write `name` as JSON, report.md and report.html. Raises UsageError."""
    store(directory / name, msgspec.json.format(msgspec.json.encode(summary)))
    store(directory / "report.md", markdown.encode(errors="replace"))
    store(directory / "report.html", html.encode(errors="replace"))


def print_table(table: Table, screen: Screen) -> None:
    """Heading, figures and note on a terminal."""
    screen.heading(table.title)
    screen.figures(Figures(table.head, table.rows, table.words))
    if table.note:
        screen.line(table.note, "dim")


def print_verdict(verdict: str, sentence: str, screen: Screen) -> None:
    """The last line of a run: the verdict in its colour, and a sentence."""
    word = screen.text(f" {verdict.upper()} ", TONES[verdict])
    screen.write(word.append_text(screen.text(f" {sentence}", "bold")))


def markdown_table(table: Table) -> list[str]:
    """Heading, table and note as lines of Markdown, after an empty line."""
    rule = ("---",) * table.words + ("--:",) * (len(table.head) - table.words)
    rows = (tuple(map(escaped, row)) for row in (table.head, *table.rows))
    head, *body = (f"| {' | '.join(cells)} |" for cells in rows)
    lines = ["", f"## {escaped(table.title)}", "", head, f"| {' | '.join(rule)} |", *body]
    return [*lines, "", table.note] if table.note else lines


def escaped(text: str) -> str:
    """Text on one line, without meaning in Markdown."""
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return one_line(text)


def html_page(template: str, **values: object) -> str:
    """A page that opens offline, from a template of `eval/templates`."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> jinja2.Environment:
    folders = [Path(__file__).parents[1] / "templates", Path(reports.__file__).parent / "templates"]
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["brief"] = lambda value: cut(value, 8000)
    return made
