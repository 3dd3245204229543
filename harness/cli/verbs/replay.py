"""Verbs on recorded failures: `kvproof replay`, `xfail` and `bisect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.isolation import IsolationArguments
from kvproof.harness.cli.options import Output, Targets
from kvproof.harness.errors import UsageError

Many = Parameter(consume_multiple=True)


def replay(
    paths: list[Path],
    /,
    *,
    target: Targets = None,
    output: Output = None,
    isolation: Annotated[IsolationArguments, Parameter(name="*")] = IsolationArguments(),
) -> int:
    """Run recorded failures again: FIXED, FAILED, ERROR, or PASS on another engine.

    Parameters
    ----------
    paths
        Op logs, directories with op logs (a run's directory, the corpus), or recordings of
        kvproof record.
    target
        Target to replay on; by default the recorded one. Recordings need no target.
    output
        Directory of the run's records and reports.
    isolation
        Where your own target runs.

    """
    from kvproof.harness.cli.actions.targets import chosen_targets

    specs = chosen_targets(target, (), connector=isolation.connector) if target else []
    from kvproof.harness.cli.actions.replay import replay_paths  # dear: not for a mistyped target

    return replay_paths(paths, targets=specs, output=output, own=isolation.own_targets())


def xfail(run: Path, /, *, output: Path = Path("kvproof-known-failures.toml")) -> None:
    """Write the failures of a run as known failures, into your engine's own repository.

    kvproof run --known-failures FILE then expects them: an entry that no longer fails is red.

    Parameters
    ----------
    run
        Directory of a run with failures.
    output
        File of known failures; entries are added to it. Their histories go to a folder next to it.

    """
    from kvproof.harness.cli.actions import xfail as action

    action.xfail(run, output)


def bisect(
    history: Path,
    /,
    *,
    target: str,
    first: str = "",
    last: str = "",
    release: Annotated[list[str] | None, Many] = None,
    wheel: Annotated[list[Path] | None, Many] = None,
    checkout: Path | None = None,
    build: str = "",
    python: str = "",
) -> int:
    """Find the release, wheel or commit since which a history fails, or is fixed.

    Replays the history on about log2 of the versions. Missing environments of releases are built,
    which needs minutes for large engines. Ends with 3 if both ends have the same outcome.

    Parameters
    ----------
    history
        Op log of a failure.
    target
        Engine without its version, for example vllm; with --checkout also package.module:function.
    first
        Oldest release, or commit.
    last
        Newest release, or commit.
    release
        Releases to choose from; by default those of kvproof targets list.
    wheel
        Builds of the engine, oldest first, in place of releases.
    checkout
        Git checkout whose commits from --first to --last are searched, in a copy of its own.
    build
        Command line that builds a commit in that copy; none by default.
    python
        Interpreter of a build, relative to that copy, for a target that is an engine.

    """
    from kvproof.harness.cli.actions import bisect as action

    if checkout is not None:
        if not (first and last):
            raise UsageError("--checkout needs --first and --last", "name two commits")
        ends = {"first": first, "last": last}
        return action.commits(history, target, checkout, **ends, build=build, python=python)
    if wheel:
        return action.wheels(history, target, wheel)
    return action.releases(history, target, given=release or (), first=first, last=last)
