"""Options of `kvproof faults`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from kvproof.harness.cli.options import Output


@dataclass(frozen=True, kw_only=True)
class FaultsArguments:
    """Options of the verb; each attribute docstring is the help text."""

    target: str = "reference"
    """Where they are planted: the reference, or the files of an installed engine, for example
    vllm==0.33.0, or vllm-engine==0.33.0, which runs its own loop."""
    budget: Literal["pr", "nightly"] = "pr"
    """pr: up to 5 % of the faults may survive. nightly: none may."""
    only: str = ""
    """Names of faults or mechanisms, with * and ?, separated by commas; blind* for blind ones."""
    workers: int = 1
    """Parallel processes; each runs one fault."""
    alone: Annotated[bool, Parameter(negative="")] = False
    """Only the property that the catalogue names may find a fault; others are passed over."""
    sample: Annotated[int, Parameter(show_default=False)] = 0
    """Draw so many faults over the lines that the suites execute, in place of the catalogue."""
    seed: int | None = None
    """Seed of the sample; without a sample, of the histories (by default the budget's own)."""
    limit: str = ""
    """Time without a finished test case after which a fault counts as found; 20m, at nightly 3h;
    of a sample 2m, so that a short part of a run judges one that hangs."""
    reach: Path | None = None
    """Record of executed lines; suites that never execute the changed ones are left out."""
    output: Output = None
    """Directory of the run's records and reports; the same command resumes it."""
    list_: Annotated[bool, Parameter("--list", negative="")] = False
    """Print the catalogue; exit."""
