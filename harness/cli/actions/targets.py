"""Engines under test: which are named, open them, list them, show what one supports."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

from rich.markup import escape

from kvproof.harness.cli.options import names
from kvproof.harness.cli.output import print_text, standard_output, table_of
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation import environments
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import USUAL, OwnTargets, expand, list_targets, open_handle

_SILENCE = 2.0
"""Seconds: an engine may import for longer."""


def chosen_targets(given: Sequence[str] | None, default: Sequence[str]) -> list[str]:
    """Return the targets that `--target` names, else the default ones. Raises UsageError.

    Accepts `--targets a,b`, `--targets "a b"` and `--target a --target b`.
    """
    named = names(given)
    if not (named or default):
        raise UsageError("there is no target to judge", "for example --target reference")
    return expand(named or default)


def open_all(specs: Sequence[str], stack: ExitStack, own: OwnTargets = USUAL) -> list[Handle]:
    """Open every target before anything runs, so that a typing error costs nothing.

    Worker logs last as long as the run; its records keep the needed parts.
    """
    logs = Path(stack.enter_context(TemporaryDirectory(prefix="kvproof-")))
    found = []
    for spec in specs:
        with _announced(f"importing {spec}"):
            found.append(stack.enter_context(open_handle(spec, log_directory=logs, options=own)))
    return found


@contextmanager
def _announced(text: str) -> Iterator[None]:
    """Print on standard error what takes more than two seconds."""
    timer = Timer(_SILENCE, lambda: print(f"kvproof: {text}", file=sys.stderr, flush=True))  # noqa: T201 - a console of rich is not for threads
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_targets() -> None:
    """Print every target, its isolation and its state, and how to build a missing one."""
    rows = list_targets()
    table = table_of("target", "runs", "state")
    for row in rows:
        table.add_row(*map(escape, (row.name, row.isolation, row.state)))
    standard_output().print(table)
    print_text(f"\nEnvironments are in {environments.home() / 'targets'}.")
    if lacking := [row for row in rows if row.command]:
        print_text(f"To build one that is missing or outdated: {lacking[-1].command}")


def install(spec: str) -> None:
    """Build the environment of an engine and print the progress. Raises UsageError."""
    environments.install(spec, progress=print_text)


def remove(spec: str) -> None:
    """Delete the environment of an engine. Raises UsageError."""
    removed = environments.remove(spec)
    print_text(f"{spec} is removed" if removed else f"{spec} was not installed")
