"""`kvproof eval divergence`: hits against recomputed answers, token by token."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec.structs import replace
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvproof.eval.divergence.protocol import Plan, Show, Sink, from_urls, run
from kvproof.eval.divergence.records import LINES, Options, read_divergence, stored
from kvproof.eval.divergence.report import Summary, print_summary, render
from kvproof.eval.run.config import Server, check_servers, read_config
from kvproof.eval.run.files import Writer
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.runs import link_latest, new_directory, new_manifest
from kvproof.harness.errors import UsageError

_EVERY = 60.0
"""Seconds between two lines of progress where there is no terminal."""


def divergence(
    *,
    config: Path | None,
    url: str,
    recompute_url: str,
    control_url: Sequence[str],
    reset: str,
    api_key_env: str,
    model: str,
    options: Options,
    output: Path | None,
) -> int:
    """Measure and judge; returns the exit code. Raises UsageError."""
    _check(options)
    if (config is None) == (not url):
        raise UsageError(
            "give --url or --config, one of them",
            "for example --url http://127.0.0.1:8000/v1 --recompute-url http://127.0.0.1:8001/v1",
        )
    if config is not None:
        if recompute_url or control_url or reset:
            raise UsageError(
                "--recompute-url, --control-url and --reset belong to --url",
                "a file of configurations has all of that",
            )
        read = read_config(config)
        plan = Plan(replace(read, model=model or read.model))
        check_servers(plan.config)
    else:
        server = Server(reset=reset, api_key_env=api_key_env)
        plan = from_urls(url, recompute_url, control_url, server, model=model)
    directory, console = output or new_directory("eval"), standard_output()
    writer = Writer(directory, new_manifest("eval", directory, stored(options)), LINES)
    with closing(writer), _shown(console) as show:
        run(plan, options, Sink(writer.write, show, directory / "servers"))
    return publish(directory, console).exit


def publish(directory: Path, console: Console) -> Summary:
    """Render a run's reports, print the summary, and link `runs/latest` to it."""
    summary = render(read_divergence(directory))
    print_summary(summary, console)
    link_latest(directory)
    return summary


def _check(options: Options) -> None:
    for name, value, least, most in (
        ("documents", options.documents, 1, 100_000),
        ("tokens", options.tokens, 1, 4096),
        ("at-once", options.at_once, 1, 256),
        ("length", options.most_tokens, 16, 10_000_000),
    ):
        if not least <= value <= most:
            raise UsageError(f"--{name} {value} is not from {least} to {most}", "for example 8")
    for name, share in (("alpha", options.alpha), ("detect", options.detect)):
        if not 0 < share < 0.5:
            raise UsageError(f"--{name} {share:g} is not between 0 and 0.5", "for example 0.05")


@contextmanager
def _shown(console: Console) -> Iterator[Show]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        task = bars.add_task("starting", total=None)
        last, at = "", 0.0

        def show(text: str, done: int, total: int) -> None:
            nonlocal last, at
            bars.update(task, description=text, completed=done, total=total or None)
            if not console.is_terminal and (text != last or time.monotonic() - at >= _EVERY):
                console.print(f"{text} ({done} of {total})", highlight=False, markup=False)
                last, at = text, time.monotonic()

        yield show
