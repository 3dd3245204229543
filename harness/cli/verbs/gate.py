"""`kvproof gate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.arguments.isolation import IsolationArguments
from kvproof.harness.cli.options import Output, Targets
from kvproof.harness.settings import load_settings


def gate(
    *,
    target: Targets = None,
    config: Path | None = None,
    save_baseline: bool = False,
    output: Output = None,
    isolation: Annotated[IsolationArguments, Parameter(name="*")] = IsolationArguments(),
) -> int:
    """Check a change in one command, with one report.

    Replays the corpus, runs the suites and the benchmark, applies the thresholds, and sweeps the
    kernels.

    Parameters
    ----------
    target
        As for run.
    config
        Settings file; kvproof.toml of the working directory by default.
    save_baseline
        Store this run's figures as the baseline of this machine.
    output
        Directory of the run's records and reports.
    isolation
        Where your own target runs.

    """
    from kvproof.harness.cli.actions.targets import chosen_targets

    settings = load_settings(config)
    specs = chosen_targets(target, settings.run.targets, **isolation.connectors(settings.run))
    from kvproof.harness.cli.actions import gate as action  # dear: not for a mistyped target

    return action.gate(
        specs,
        settings=settings,
        save=save_baseline,
        output=output,
        own=isolation.own_targets(settings.run),
    )
