"""The table family x level, for a terminal and for a document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from kvproof.suites.tests.lab.parity.cells import Cell, Report

MISSING = "-"
"""The level does not apply to the family."""
SHORT = {"float32": "f32", "float64": "f64", "bfloat16": "bf16"}


def columns(cells: Iterable[Cell]) -> list[str]:
    """Return the levels in order."""
    return list(dict.fromkeys(cell.level for cell in cells))


def rows(cells: Sequence[Cell]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield family, type and the result of each level."""
    names = columns(cells)
    for family, dtype in dict.fromkeys((cell.family, cell.dtype) for cell in cells):
        found = {
            cell.level: spell(cell)
            for cell in cells
            if (cell.family, cell.dtype) == (family, dtype)
        }
        yield family, dtype, [found.get(name, MISSING) for name in names]


def spell(cell: Cell) -> str:
    """Return the largest difference, or a failure in words."""
    if cell.crashed:
        return "CRASHED"
    if cell.difference is None:
        size = "inf"
    else:
        size = f"{cell.difference:.0e}" if cell.difference else "0"
    if cell.passed:
        return size
    return f"NOT SEEN {size}" if cell.bug else f"FAILS {size}"


def tables(report: Report) -> list[tuple[str, list[Cell]]]:
    """Return the parts of a report that have cells, with their titles."""
    parts = (
        ("Largest difference per level (0: equal bit by bit)", False),
        ("Planted bugs: largest difference that each makes", True),
    )
    split = [(title, [c for c in report.cells if c.bug is bug]) for title, bug in parts]
    return [(title, cells) for title, cells in split if cells]


def terminal(report: Report) -> Iterator[Table]:
    """Return the levels by family, and the bugs by how well they are found, in 80 columns."""
    for title, cells in tables(report):
        table = Table(
            title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0)
        )
        if cells[0].bug:
            _draw_bugs(table, cells)
        else:
            _draw_levels(table, cells)
        yield table


def _draw_levels(table: Table, cells: Sequence[Cell]) -> None:
    table.add_column("family")
    table.add_column("type")
    for name in columns(cells):
        table.add_column(name, justify="right")
    for family, dtype, found in rows(cells):
        table.add_row(family, SHORT.get(dtype, dtype), *(_coloured(text) for text in found))


def _draw_bugs(table: Table, cells: Sequence[Cell]) -> None:
    for name in ("bug", "families", "seen", "smallest", "on"):
        table.add_column(name, justify="left" if name in ("bug", "on") else "right")
    for name in columns(cells):
        own = [cell for cell in cells if cell.level == name]
        least = min(own, key=_size)
        seen = sum(cell.passed for cell in own)
        text = str(seen) if seen == len(own) else f"[bold red]{seen}[/]"
        table.add_row(name, str(len(own)), text, f"{_size(least):.0e}", least.family)


def _size(cell: Cell) -> float:
    return float("inf") if cell.difference is None else cell.difference


def _coloured(text: str) -> str:
    return f"[bold red]{text}[/]" if text.startswith(("FAILS", "CRASHED")) else text


def markdown(report: Report) -> str:
    """Return a report as a document."""
    about = report.versions
    kernels = ", ".join(about.kernels) or "none"
    lines = [
        f"transformers {about.transformers}, torch {about.torch}, {about.device}; "
        f"optional kernels: {kernels}; {report.seconds:.0f} s",
    ]
    for title, cells in tables(report):
        names = columns(cells)
        lines += ["", f"**{title}**", "", _line(["family", "type", *names])]
        lines.append(_line(["---", "---", *["--:"] * len(names)]))
        lines += [_line([family, dtype, *found]) for family, dtype, found in rows(cells)]
    lines += ["", *(f"- {reason}" for reason in reasons(report))]
    return "\n".join(lines).rstrip() + "\n"


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def reasons(report: Report) -> Iterator[str]:
    """Yield the reason of each failure."""
    if report.unfinished:
        yield f"given up: {', '.join(report.unfinished)}"
    for cell in report.failed:
        where = f"{cell.family} {cell.dtype}, {cell.level}"
        limit = f"{spell(cell)}, limit {cell.limit:.0e}"
        yield f"{where}: {cell.wrong or cell.detail or 'no other finding'} ({limit})"
