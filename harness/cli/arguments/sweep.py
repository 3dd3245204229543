"""Options of `kvproof sweep`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Names = Annotated[list[str] | None, Parameter(consume_multiple=True)]


@dataclass(frozen=True, kw_only=True)
class SweepArguments:
    """Options of the verb; each attribute docstring is the help text."""

    kernels: Names = None
    """Names, separated by commas, or your own package.module:attribute; all by default."""
    providers: Names = None
    """Providers under test: kvproof, torch, an engine, or package.module:function."""
    compare_with: Names = None
    """Further providers, shown without a verdict; skipped if not installed."""
    cells: Names = None
    """cpu, gpu, published, random:100; gpu on a GPU, else cpu."""
    filter_: Annotated[str, Parameter("--filter")] = ""
    """Only some cells, for example "page=16,32 head_dim=128"."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """cuda needs a GPU; on the cpu Triton interprets, and only correctness is checked."""
    devices: Names = None
    """GPUs over which cells are spread, for example 0,1."""
    workers: int = 0
    """Parallel checking processes per device; as many as the cores allow by default."""
    seeds: Names = None
    """Seeds of the random inputs of each cell; 0,1 on a GPU, else 0."""
    timing: bool = True
    """Measure the time of correct cells."""
    timeout: str = "60s"
    """Time limit of one cell, compilation included."""
    budget: str = ""
    """Time limit of the sweep, for example 8m: cells of all kinds first, the others are named."""
    baseline: Path | None = None
    """Directory of an earlier sweep: a cell that is slower now ends the run with 4."""
    max_regression: float = 0.1
    """Largest slowdown of a cell against the baseline."""
    output: Path | None = None
    """Directory of the run's records and reports; the same command resumes it."""
    json: bool = False
    """Print the cells as JSON, and all other output to standard error."""
    ray: str = ""
    """Spread cells over a Ray cluster: auto, or its address; all its GPUs, else its cores."""
    list_: Annotated[bool, Parameter("--list", negative="")] = False
    """Print kernels, providers and numbers of cells; exit."""
