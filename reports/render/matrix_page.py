"""The conformance matrix: property x engine x version, failures first.

A second table has the evidence per engine: histories, operations, hits, evictions, and required
situations that never occurred.

`python -m kvproof.reports.render.matrix_page RUN` prints it and writes matrix.html and matrix.md
into the run.
"""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import PropertyVerdict
from kvproof.harness.records.run_directory import Run, read_run, write_atomically
from kvproof.reports.model.build import build
from kvproof.reports.model.report import Report
from kvproof.reports.render.console import Screen
from kvproof.reports.render.html import environment
from kvproof.reports.render.markdown import escape
from kvproof.reports.values.text import MARKS, percent
from kvproof.reports.values.types import MAIN_SUITE, Coverage, Row

ORDER = ("fail", "inconclusive", "expected_failure", "pass", "unsupported", "not_run")
"""Verdicts, the worst first."""

_EVICTIONS = ("cached blocks are evicted to make room", "objects are evicted to make room")
REFERENCE = "reference"
"""The target of the component suites."""


@dataclass(frozen=True)
class Line:
    """One property over all targets."""

    row: Row
    verdicts: tuple[str, ...]
    """Per target, in the order of `Matrix.targets`."""

    @property
    def rank(self) -> tuple[int, int]:
        """Worst verdict first; among equals, the one on more targets."""
        worst = min(ORDER.index(verdict) for verdict in self.verdicts)
        return worst, -self.verdicts.count(ORDER[worst])


@dataclass(frozen=True)
class Matrix:
    """All verdicts, and their evidence."""

    targets: tuple[str, ...]
    lines: tuple[Line, ...]
    evidence: tuple[Evidence, ...]
    reasons: tuple[Reason, ...]

    def counts(self, verdict: str) -> list[int]:
        """Properties with this verdict, per target."""
        columns = zip(*(line.verdicts for line in self.lines), strict=True)
        return [column.count(verdict) for column in columns]


@dataclass(frozen=True)
class Evidence:
    """Histories and operations of one target."""

    target: str
    histories: int
    operations: int
    reused: str
    evictions: int
    missing: str
    """Required situations that never occurred."""


@dataclass(frozen=True)
class Reason:
    """Reason for a verdict other than pass, with the targets that share it."""

    property: str
    verdict: str
    targets: str
    text: str


def matrix_of(run: Run) -> Matrix:
    """Sort the verdicts of a run; properties of the reference alone are left out."""
    report = build(run)
    rows = [row for row in report.rows if row.part in ("", MAIN_SUITE) or _of_engines(row)]
    judged = [each for each in report.judged if any(each in row.cells for row in rows)]
    targets = tuple(sorted(judged, key=_in_order))
    lines = sorted((_line(row, targets) for row in rows), key=lambda line: line.rank)
    return Matrix(
        targets,
        tuple(lines),
        tuple(
            _evidence(each, report)
            for each in sorted(report.coverage, key=lambda found: _in_order(found.target))
        ),
        tuple(_reasons(lines)),
    )


def _in_order(target: str) -> tuple[bool, str, list[int]]:
    engine, _, version = target.partition("==")
    return target != REFERENCE, engine, [int(part) for part in re.findall(r"\d+", version)]


def _of_engines(row: Row) -> bool:
    found = (cell.verdict for target, cell in row.cells.items() if target != REFERENCE)
    return any(verdict != "unsupported" for verdict in found)


def _line(row: Row, targets: Sequence[str]) -> Line:
    found = (row.cells.get(target) for target in targets)
    return Line(row, tuple(cell.verdict if cell else "not_run" for cell in found))


def _evidence(found: Coverage, report: Report) -> Evidence:
    admitted = sum(found.hit_blocks.values())
    reused = 1 - found.hit_blocks.get("0", 0) / admitted if admitted else 0.0
    died = [event.message for event in report.deaths if event.target == found.target]
    return Evidence(
        found.target,
        found.test_cases,
        sum(found.operations.values()),
        percent(reused),
        sum(found.situations.get(name, 0) for name in _EVICTIONS),
        "; ".join((*found.missing, *(f"died: {message}" for message in died))),
    )


def _reasons(lines: Sequence[Line]) -> Iterator[Reason]:
    for line in lines:
        shown: dict[tuple[str, str], list[str]] = {}
        for target, cell in line.row.cells.items():
            if cell.verdict != "pass":
                shown.setdefault((cell.verdict, _why(cell)), []).append(target)
        for (verdict, text), targets in sorted(shown.items(), key=lambda x: ORDER.index(x[0][0])):
            yield Reason(line.row.property, verdict, ", ".join(targets), text)


def _why(cell: PropertyVerdict) -> str:
    return cell.reason or "no reason was given"


MOST_IN_WORDS = 4
"""Most targets for which a verdict is written as a word."""

HEADS = ("target", "histories", "operations", "admissions that reused blocks", "evictions",
         "never occurred")  # fmt: skip


def _cells(each: Evidence) -> tuple[str, ...]:
    return (
        each.target,
        f"{each.histories:,}",
        f"{each.operations:,}",
        each.reused,
        f"{each.evictions:,}",
        each.missing or "nothing",
    )


def render_matrix_markdown(run: Run) -> str:
    """The matrix, the reasons and the evidence as three tables."""
    matrix = matrix_of(run)
    mark = _mark if len(matrix.targets) <= MOST_IN_WORDS else _symbol
    marked = [[escape(line.row.property), *map(mark, line.verdicts)] for line in matrix.lines]
    sums = [[f"**{_mark(v)}**", *map(str, matrix.counts(v))] for v in _used(matrix)]
    reasons = [
        [escape(r.property), _mark(r.verdict), escape(r.targets), escape(r.text)]
        for r in matrix.reasons
    ]
    parts = [
        ["# Conformance matrix", "", *_table(["property", *matrix.targets], [*marked, *sums])],
        ["", "## What is not a pass", "",
         *_table(["property", "verdict", "on", "why"], reasons)],
        ["", "## What the verdicts rest on", "",
         *_table(HEADS, [list(map(escape, _cells(each))) for each in matrix.evidence])],
    ]  # fmt: skip
    return "\n".join(line for part in parts for line in part) + "\n"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(heads)} |"
    yield f"|{' --- |' * len(heads)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _mark(verdict: str) -> str:
    return f"{MARKS[verdict].symbol} {MARKS[verdict].word}"


def _symbol(verdict: str) -> str:
    return MARKS[verdict].symbol


def _used(matrix: Matrix) -> list[str]:
    return [verdict for verdict in ORDER if any(matrix.counts(verdict))]


def render_matrix_html(run: Run) -> str:
    """Return one page that opens offline."""
    matrix = matrix_of(run)
    page = environment().get_template("matrix.html.j2")
    return page.render(
        matrix=matrix, marks=MARKS, used=_used(matrix), heads=HEADS,
        cells=[_cells(each) for each in matrix.evidence],
    )  # fmt: skip


def print_matrix(run: Run, console: Console) -> None:
    """Print the matrix to a terminal."""
    matrix, screen = matrix_of(run), Screen(console)
    screen.heading(f"{len(matrix.lines)} properties on {len(matrix.targets)} targets")
    _print_verdicts(matrix, screen)
    screen.heading("What is not a pass")
    for reason in matrix.reasons:
        if reason.verdict != "unsupported":
            shown = f"  {reason.property} on {reason.targets}: {reason.text}"
            screen.write(screen.mark(reason.verdict) + screen.text(shown))
    screen.heading("What the verdicts rest on")
    below = screen.table(*HEADS)
    for each in matrix.evidence:
        below.add_row(*map(screen.text, _cells(each)))
    screen.show(below)


def _print_verdicts(matrix: Matrix, screen: Screen) -> None:
    few = len(matrix.targets) <= MOST_IN_WORDS
    letters = [*string.ascii_letters, *matrix.targets][: len(matrix.targets)]
    if not few:
        for letter, target in zip(letters, matrix.targets, strict=True):
            screen.line(f"{letter}  {target}", indent=2)
        screen.line()
    grid = screen.table("property", *(matrix.targets if few else letters))
    for line in matrix.lines:
        shown = [screen.mark(v) if few else screen.sign(v) for v in line.verdicts]
        grid.add_row(screen.text(line.row.property), *shown)
    screen.show(grid)
    if not few:
        legend = [screen.mark(verdict) for verdict in _used(matrix)]
        screen.write(Text("   ").join(legend), indent=2)


def write_matrix(run: Run) -> list[Path]:
    """Write matrix.html and matrix.md into the run's directory; returns their paths."""
    files = {
        run.directory / "matrix.html": render_matrix_html(run),
        run.directory / "matrix.md": render_matrix_markdown(run),
    }
    for path, text in files.items():
        write_atomically(path, text.encode("utf-8", "backslashreplace"))
    return list(files)


def main(arguments: Sequence[str]) -> int:
    """Print and write the matrix of a run; returns the exit status."""
    console = Console(width=max(120, Console().width))
    if len(arguments) != 1:
        Console(stderr=True).print("python -m kvproof.reports.render.matrix_page RUN", markup=False)
        return 2
    try:
        run = read_run(Path(arguments[0]))
    except UsageError as error:
        Console(stderr=True).print(f"{error}\n  {error.hint}", markup=False, soft_wrap=True)
        return 2
    print_matrix(run, console)
    for path in write_matrix(run):
        console.print(f"Matrix: {path}", markup=False, highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
