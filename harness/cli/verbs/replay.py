"""`kvproof replay` and `kvproof xfail`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.isolation import IsolationArguments
from kvproof.harness.cli.options import Output, Targets


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

    specs = chosen_targets(target, ()) if target else []
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
