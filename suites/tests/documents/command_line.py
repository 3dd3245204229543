"""The command line as Markdown: `--help` of every command, as installed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import entry_points
from io import StringIO
from pathlib import Path
from typing import cast

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

Main = Callable[[Sequence[str]], None]


def command_line() -> str:
    """Return one section for each command with its help, in alphabetical order."""
    with _plain_output(width=_WIDTH):
        return "\n".join(_sections(_main(), ()))


def commands_table(docs: Path) -> str:
    """Return one row for each command: its summary in `--help`, linked to its guide in `docs`."""
    with _plain_output(width=1000):
        found = _SUMMARY.findall(_help(_main(), ()))
    rows = (f"| {_linked(docs, name)} | {_first_sentence(why)} |" for name, why in found)
    return "\n".join(("| command | purpose |", "| --- | --- |", *rows, ""))


def _linked(docs: Path, name: str) -> str:
    page = f"{_GUIDES.get(name, f'guides/{name}')}.md"
    return f"[`{name}`](docs/{page})" if (docs / page).exists() else f"`{name}`"


def _first_sentence(text: str) -> str:
    return f"{text.split('. ')[0].rstrip('.')}."


def _main() -> Main:
    (command,) = entry_points(group="console_scripts", name="kvproof")
    return cast("Main", command.load())


def _sections(main: Main, words: tuple[str, ...]) -> Iterator[str]:
    text = _help(main, words)
    yield f"## {' '.join(('kvproof', *words))}\n\n```text\n{text}\n```\n"
    for name in _COMMAND.findall(text) if _USAGE.search(text) else ():
        yield from _sections(main, (*words, name))


def _help(main: Main, words: tuple[str, ...]) -> str:
    out = StringIO()
    with redirect_stdout(out):
        main([*words, "--help"])
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip()


@contextmanager
def _plain_output(*, width: int) -> Iterator[None]:
    kept = {
        name: os.environ.pop(name, None) for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE")
    }
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
