"""Writes the table of commands in the README: `make docs`."""

from __future__ import annotations

from kvproof.suites.tests.documents.command_line import commands_table
from kvproof.suites.tests.documents.site import DOCS, ROOT

MARKS = ("<!-- commands, written by `make docs` -->", "<!-- end of the commands -->")
"""Around the table."""


def readme() -> str:
    """Return the README with its present table of commands."""
    begin, end = MARKS
    head, rest = (ROOT / "README.md").read_text(encoding="utf-8").split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n\n{commands_table(DOCS)}\n{end}{tail}"


if __name__ == "__main__":
    (ROOT / "README.md").write_text(readme(), encoding="utf-8")
