"""The command line as Markdown: `--help` of every command, as installed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

from rich.console import Console

from kvproof.harness.cli.app import app

_WIDTH = 100
_COMMAND = re.compile(r"^│ ([a-z][a-z0-9-]*)", re.MULTILINE)
"""A row in the list of commands."""
_SUMMARY = re.compile(r"^│ ([a-z][a-z0-9-]*) +(.+?) *│$", re.MULTILINE)
"""The same on a screen so wide that no summary is wrapped."""
_GUIDES = {
    "baseline": "guides/compare",
    "cache-server": "engine/tiers",
    "doctor": "start/first-run",
    "gate": "test/ci",
    "history": "guides/compare",
    "merge": "guides/compare",
    "new-target": "test/write-a-target",
    "plan": "engine/planning",
    "replay": "guides/record",
    "serve": "engine/serve",
    "targets": "engines/index",
    "faults": "how/evidence",
    "run": "start/first-run",
    "report": "start/read-a-failure",
}
"""Verb -> its page below docs/; a page `guides/<verb>` needs no row."""
_USAGE = re.compile(r"^Usage: .* COMMAND", re.MULTILINE)


def command_line() -> str:
    """Return one section for each command with its help, in alphabetical order."""
    return "\n".join(_sections(()))


def commands_table(docs: Path) -> str:
    """Return one row for each command: its summary in `--help`, linked to its guide in `docs`."""
    found = _SUMMARY.findall(_help((), width=1000))
    rows = (f"| {_linked(docs, name)} | {_first_sentence(why)} |" for name, why in found)
    return "\n".join(("| command | purpose |", "| --- | --- |", *rows, ""))


def _linked(docs: Path, name: str) -> str:
    page = f"{_GUIDES.get(name, f'guides/{name}')}.md"
    return f"[`{name}`](docs/{page})" if (docs / page).exists() else f"`{name}`"


def _first_sentence(text: str) -> str:
    return f"{text.split('. ')[0].rstrip('.')}."


def _sections(words: tuple[str, ...]) -> Iterator[str]:
    text = _help(words, width=_WIDTH)
    yield f"## {' '.join(('kvproof', *words))}\n\n```text\n{text}\n```\n"
    for name in _COMMAND.findall(text) if _USAGE.search(text) else ():
        yield from _sections((*words, name))


def _help(words: tuple[str, ...], *, width: int) -> str:
    """Return the help of one command. Reads no variable, and leaves this process as it is."""
    app.resolved_commands()  # the help of a verb is in its module
    out = StringIO()
    plain = Console(file=out, width=width, force_terminal=False, no_color=True, _environ={})
    app.help_print([*words], console=plain)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip()
