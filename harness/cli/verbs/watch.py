"""`kvproof watch`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter


def watch(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    output: Path | None = None,
    attach: Path | None = None,
    keep: float = 60.0,
    every: float = 60.0,
    metrics_port: int = 0,
) -> int:
    """Judge the cache of an engine while it serves, from a process of its own.

    kvproof watch -- vllm serve MODEL

    A violation is written with the last seconds before it, for kvproof replay. The engine is never
    touched: it goes on, also without the watcher. docs/guides/record.md has the limits.

    Parameters
    ----------
    command
        Command that starts the engine, after --.
    output
        Folder of the run and its incidents; runs/DATE-TIME-watch by default.
    attach
        Instead of a command: folder that engines with KVPROOF_WATCH=FOLDER write into.
    keep
        Seconds before a violation that an incident has.
    every
        Seconds between two lines about the figures.
    metrics_port
        Port of Prometheus metrics on 127.0.0.1; 0 for none.

    """
    from kvproof.harness.cli.actions.serving import watch as action

    return action.watch(
        command, output=output, attach=attach,
        options=action.Options(keep=keep, every=every, metrics_port=metrics_port),
    )  # fmt: skip
