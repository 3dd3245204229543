"""`kvproof compare` and `kvproof baseline`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

baseline_app = App(name="baseline", help="Save runs as baselines for later comparisons.")


def compare(
    base: Path,
    head: Path,
    /,
    *,
    output: Path | None = None,
    json: Annotated[bool, Parameter(negative="")] = False,
    ratios: Annotated[bool, Parameter(negative="")] = False,
    config: Path | None = None,
) -> int:
    """Compare two runs: verdicts, then figures with a stated error rate.

    Ends with 1 for a new failure, 4 for a slower or worse figure, 3 if nothing could be decided
    or a run of the head was cut short, else 0.

    Parameters
    ----------
    base
        A run's directory, a folder of several runs, or the name of a baseline.
    head
        The same, of the change. Sides measured in turns give the smallest error bars.
    output
        Directory for comparison.json, comparison.md and comparison.html.
    json
        Print comparison.json instead of tables.
    ratios
        Compare instead the ratios between the sides of two benches, which another machine should
        not change: ends with 4 if one differs by more than 10 %.
    config
        Settings file; its table compare has thresholds and the error rate.

    """
    from kvproof.harness.cli.actions import compare as action

    if ratios:
        return action.compare_ratios(base, head, config=config)
    return action.compare(base, head, output=output, json=json, config=config)


@baseline_app.command
def save(
    runs: list[Path],
    /,
    *,
    name: str = "main",
    replace: bool = False,
    config: Path | None = None,
) -> None:
    """Copy the records of runs as a baseline with a name.

    Parameters
    ----------
    runs
        Directories of runs, or folders of several.
    name
        Name of the baseline, for kvproof compare NAME HEAD.
    replace
        Replace a baseline of that name.
    config
        Settings file; compare.baselines is the folder.

    """
    from kvproof.harness.cli.actions import compare as action

    action.save_baseline(runs, name=name, replace=replace, config=config)
