"""Engines under test: which are named, open them, list them, show what one supports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.markup import escape

from kvproof.harness.cli.options import names
from kvproof.harness.cli.output import print_text, standard_output, table_of
from kvproof.harness.contract.differences import Difference
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.isolation import environments, fit, patched
from kvproof.harness.isolation.chosen import is_engine, named
from kvproof.harness.isolation.connected import with_connector
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import (
    USUAL,
    OwnTargets,
    check_names,
    engine_handle,
    expand,
    list_targets,
    open_handle,
)
from kvproof.harness.isolation.worker_handle import WorkerHandle


def chosen_targets(
    given: Sequence[str] | None,
    default: Sequence[str],
    *,
    connector: str = "",
    usual_connector: str = "",
) -> list[str]:
    """Return the targets that `--target` names, else the default ones. Raises UsageError.

    `connector`: a class of the user's own that engines run with; else the usual one.

    Accepts `--targets a,b`, `--targets "a b"` and `--target a --target b`. Comes before the verb's
    own imports, so that a mistyped name is answered at once.
    """
    named = names(given)
    if not (named or default):
        raise UsageError("there is no target to judge", "for example --target reference")
    specs = with_connector(expand(named or default), connector, usual=usual_connector)
    check_names(specs)
    return specs


def open_all(specs: Sequence[str], stack: ExitStack, own: OwnTargets = USUAL) -> list[Handle]:
    """Open every target before anything runs, so that a typing error costs nothing.

    Worker logs last as long as the run; its records keep the needed parts.
    """
    from kvproof.harness.scratch import scratch  # a start counts its modules

    logs = stack.enter_context(scratch("kvproof-"))
    if own.python and not any(map(is_engine, specs)):
        raise UsageError(
            f"--python {own.python!r} is for engines, and {', '.join(specs)} is none",
            "for example --target vllm --python ~/vllm/.venv",
        )
    found = []
    WorkerHandle.waiting = staticmethod(_wait)
    for spec in specs:
        found.append(stack.enter_context(open_handle(spec, log_directory=logs, options=own)))
        if named(own.python) and is_engine(spec):
            _say(f"{found[-1].name} is run by {named(own.python)}, an environment of your own")
    return found


def _say(text: str) -> None:
    _wait(f"kvproof: {text}")


def _wait(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201 - no answer


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


def install(spec: str, *, wheel: Path | None, patch: Path | None) -> None:
    """Build the environment of an engine and print the progress. Raises UsageError."""
    if wheel and patch:
        raise UsageError("--wheel and --patch exclude each other", "patch the wheel's sources")
    if patch:
        patched.install(spec, patch, progress=print_text)
    else:
        environments.install(spec, progress=print_text, wheel=wheel)


def check(spec: str, *, python: str, as_json: bool) -> int:
    """Print the differences between an engine and its adapter; returns the exit code.

    Raises UsageError for a target that is no engine, or is not installed.
    """
    from kvproof.harness.scratch import scratch  # a start counts its modules

    with scratch("kvproof-") as logs:
        handle = engine_handle(spec, python=python, log_directory=logs)
        WorkerHandle.waiting = staticmethod(_wait)
        with handle:
            found = fit.differences(handle)
    if as_json:
        rows = [{**asdict(each), "advice": each.advice} for each in found]
        print_text(json.dumps({"target": handle.name, "differences": rows}, indent=2))
    else:
        _print_differences(handle.name, found)
    return Exit.USAGE if any(each.blocks for each in found) else Exit.PASS


def _print_differences(name: str, found: Sequence[Difference]) -> None:
    if not found:
        print_text(f"{name}: every call is as the adapter knows it")
        return
    for each in sorted(found, key=lambda one: not one.blocks):
        print_text("\n".join(_lines(each)))
    count = sum(each.blocks for each in found)
    verdict = f"{count} in the way" if count else "none in the way"
    print_text(f"\n{name}: {len(found)} differences, {verdict}")


def _lines(each: Difference) -> Iterator[str]:
    yield f"{each.name}: {each.changes}"
    if each.kind == "call" and each.found:
        yield f"  the adapter's: {each.expected}"
        yield f"  the engine's:  {each.found}"
    yield f"  to do: {each.advice}"


def remove(spec: str) -> None:
    """Delete the environment of an engine. Raises UsageError."""
    removed = environments.remove(spec)
    print_text(f"{spec} is removed" if removed else f"{spec} was not installed")
