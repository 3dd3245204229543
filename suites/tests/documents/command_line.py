"""The command line as Markdown: `--help` of every command, as installed."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.metadata import entry_points
from io import StringIO

_WIDTH = 100
_COMMAND = re.compile(r"^│ ([a-z][a-z0-9-]*)", re.MULTILINE)
"""A row in the list of commands."""
_USAGE = re.compile(r"^Usage: .* COMMAND", re.MULTILINE)

Main = Callable[[Sequence[str]], None]


def command_line() -> str:
    """Return one section for each command with its help, in alphabetical order."""
    (command,) = entry_points(group="console_scripts", name="kvproof")
    with _plain_output():
        return "\n".join(_sections(command.load(), ()))


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
def _plain_output() -> Iterator[None]:
    kept = {
        name: os.environ.pop(name, None) for name in ("COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE")
    }
    os.environ["COLUMNS"] = str(_WIDTH)
    try:
        yield
    finally:
        for name, value in kept.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
