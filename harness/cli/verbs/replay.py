"""`kvproof replay`."""

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
