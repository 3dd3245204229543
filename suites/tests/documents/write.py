"""Writes the generated ends of the documents: `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from kvproof.suites import known_bugs
from kvproof.suites.runner.properties_table import properties_table
from kvproof.suites.tests.documents.command_line import command_line, commands_table
from kvproof.suites.tests.documents.faults import table as faults_table
from kvproof.suites.tests.documents.life_cycles import life_cycles
from kvproof.suites.tests.documents.rules_table import rules_table
from kvproof.suites.tests.known_failures.masks import table as masks_table

MARK = "<!-- written by `make docs`, from here to the end -->\n"
README_MARKS = ("<!-- commands, written by `make docs` -->", "<!-- end of the commands -->")
"""Around the table of commands in the README."""
GENERATED: dict[str, Callable[[], str]] = {
    "cli.md": command_line,
    "faults.md": faults_table,
    "known-bugs.md": known_bugs.table,
    "life-cycles.md": life_cycles,
    "properties.md": properties_table,
    "rules.md": rules_table,
    "whole-engine.md": masks_table,
}
"""File in `docs/` -> generator of the text below the mark."""


def is_fresh(path: Path) -> bool:
    """Whether a document has its present generated end."""
    return path.read_text(encoding="utf-8") == _written(path)


def _written(path: Path) -> str:
    head, mark, _ = path.read_text(encoding="utf-8").partition(MARK)
    assert mark, f"{path} lacks the line {MARK!r}"
    return f"{head}{mark}\n{GENERATED[path.name]()}"


def readme(docs: Path) -> str:
    """Return the README beside `docs` with its present table of commands."""
    begin, end = README_MARKS
    head, rest = (docs.parent / "README.md").read_text(encoding="utf-8").split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n\n{commands_table(docs)}\n{end}{tail}"


def write(folder: Path) -> None:
    """Write all generated documents of a folder again, and the table of commands in the README."""
    (folder.parent / "README.md").write_text(readme(folder), encoding="utf-8")
    for name in GENERATED:
        (folder / name).write_text(_written(folder / name), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
