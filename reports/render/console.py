"""Output for colour terminals, pipes, and terminals without UTF-8."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from kvproof.reports.values.svg import Table as Figures
from kvproof.reports.values.text import MARKS

STYLES = {
    "pass": "blue",
    "fail": "bold magenta",
    "inconclusive": "yellow",
    "expected_failure": "magenta",
    "unsupported": "dim",
    "not_run": "dim",
}
"""Terminals adapt the sixteen named colours to their background; palette colours are fixed."""

TONES = {
    "pass": "bold black on #6DB6FE",
    "inconclusive": "bold black on #FFAA26",
    "fail": "bold black on #FEB5DA",
}

_PLAIN = {"…": "...", "µ": "u", "✗": "x", "✓": "+", "≈": "~", "×": "x"}  # noqa: RUF001 - as written

_PLAIN_BOX = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)


_GAP = 2
"""Characters between two columns."""
_LONGEST = 24
"""Letters of a word that is not broken; names of properties are longer, and are."""


def _widths(columns: Iterable[Sequence[str]], room: int) -> list[int]:
    """Return widths in which only words beyond the longest are broken; none if they do not fit."""
    cells = list(columns)
    found = [min(_LONGEST, max(map(len, " ".join(each).split(" ")))) for each in cells]
    rest = room - sum(found) - _GAP * (len(found) - 1)
    for index, column in enumerate(cells):
        more = min(max(0, rest), max(map(len, column)) - found[index])
        found[index], rest = found[index] + more, rest - more
    return found if rest >= 0 else []


class Screen:
    """Writes to a console; plain ASCII if that is not a UTF-8 terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._encoding = console.encoding
        utf = self._encoding.lower().replace("-", "").startswith("utf")
        self.plain = not (console.is_terminal and utf)

    def symbol(self, verdict: str) -> str:
        """The verdict's symbol."""
        return MARKS[verdict].plain if self.plain else MARKS[verdict].symbol

    def sign(self, verdict: str) -> Text:
        """Symbol alone."""
        return Text(self.symbol(verdict), STYLES[verdict])

    def mark(self, verdict: str) -> Text:
        """Symbol and word."""
        return Text(f"{self.symbol(verdict)} {MARKS[verdict].word}", STYLES[verdict])

    def text(self, value: str, style: str = "") -> Text:
        """Foreign text without markup; characters that cannot be shown are spelled out."""
        if self.plain:
            value = "".join(_PLAIN.get(char, char) for char in value)
        shown = value.encode(self._encoding, "backslashreplace").decode(self._encoding)
        return Text(shown, style)

    def write(self, text: Text, indent: int = 0) -> None:
        """One paragraph."""
        self.show(text, indent=indent)

    def line(self, value: str = "", style: str = "", indent: int = 0) -> None:
        """One paragraph of plain text."""
        self.show(self.text(value, style), indent=indent)

    def command(self, value: str, indent: int = 0) -> None:
        """A line to copy, never wrapped."""
        text = self.text(" " * indent + value)
        self.console.print(text, soft_wrap=True, highlight=False, markup=False)

    def heading(self, value: str) -> None:
        """A title with an empty line before."""
        self.line()
        self.line(value, "bold")

    def table(self, *heads: str) -> Table:
        """Columns under a single rule."""
        table = Table(
            box=_PLAIN_BOX if self.plain else box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 1, 0, 0),
            safe_box=False,
            header_style="bold",
        )
        for head in heads:
            table.add_column(self.text(head), overflow="fold")
        return table

    def figures(self, data: Figures, *, wrap: bool = True) -> None:
        """A table of a report; numbers are right-aligned, and never broken.

        A row is a paragraph where the terminal is too narrow for the words of all columns.
        """
        columns = list(zip(data.head, *data.rows, strict=True))
        widths = _widths(columns, self.console.width)
        if wrap and not widths:
            self._paragraphs(data)
            return
        table = self.table(*data.head)
        for index, column in enumerate(table.columns):
            column.justify = "left" if index < data.words else "right"
            column.no_wrap = not wrap
            column.width = widths[index] if wrap else None
        for row in data.rows:
            table.add_row(*map(self.text, row))
        self.show(table)

    def _paragraphs(self, data: Figures) -> None:
        for name, *values in data.rows:
            self.line(name)
            pairs = zip(data.head[1:], values, strict=True)
            self.line(", ".join(f"{head} {value}" for head, value in pairs if value), indent=2)

    def show(self, what: RenderableType, indent: int = 0) -> None:
        """Print a renderable, indented."""
        padded = Padding(what, (0, 0, 0, indent), expand=False) if indent else what
        self.console.print(padded, highlight=False, markup=False)
