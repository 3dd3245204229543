"""`kvproof faults`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from kvproof.harness.errors import Exit


def faults(
    *,
    target: str = "reference",
    budget: Literal["pr", "nightly"] = "pr",
    only: str = "",
    workers: int = 1,
    alone: Annotated[bool, Parameter(negative="")] = False,
    sample: Annotated[int, Parameter(show_default=False)] = 0,
    seed: int | None = None,
    limit: str = "",
    reach: Path | None = None,
    output: Annotated[Path | None, Parameter("--output")] = None,
    list_: Annotated[bool, Parameter("--list", negative="")] = False,
) -> int:
    """Measure the suites: plant known or drawn bugs, one at a time.

    Parameters
    ----------
    target
        Where they are planted: the reference, or the files of an installed engine, for example
        vllm==0.33.0, or vllm-engine==0.33.0, which runs its own loop.
    budget
        pr: up to 5 % of the faults may survive. nightly: none may.
    only
        Names of faults or mechanisms, with * and ?, separated by commas; blind* for blind ones.
    workers
        Parallel processes; each runs one fault.
    alone
        Only the property that the catalogue names may find a fault; others are passed over.
    sample
        Draw so many faults over the lines that the suites execute, in place of the catalogue.
    seed
        Seed of the sample; without a sample, of the histories (by default the budget's own).
    limit
        Time without a finished test case after which a fault counts as found; 20m, at nightly 3h.
    reach
        Record of executed lines; suites that never execute the changed ones are left out.
    output
        Directory of the run's records and reports; the same command resumes it.
    list_
        Print the catalogue; exit.

    """
    from kvproof.harness.cli.actions import faults as action

    if list_:
        action.print_catalogue(only, target)
        return Exit.PASS
    return action.faults(
        target=target,
        budget=budget,
        only=only,
        workers=workers,
        alone=alone,
        sample=sample,
        seed=seed,
        limit=limit,
        reach=reach,
        output=output,
    )
