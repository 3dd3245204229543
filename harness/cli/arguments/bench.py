"""Options of `kvproof bench`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvproof.harness.cli.options import Output, Targets

WORKLOAD = "shared-prefix:requests=2000,length=4096,shared=0.75"


@dataclass(frozen=True, kw_only=True)
class BenchArguments:
    """Options of the verb; each attribute docstring is the help text."""

    workload: str = WORKLOAD
    """A trace (.jsonl, .jsonl.gz) or shared-prefix, multi-turn, agents, uniform with parameters,
    for example shared-prefix:requests=2000,length=4096,shared=0.75."""
    target: Targets = None
    """As for run; several are compared in one run."""
    block_size: Annotated[list[int] | None, Parameter(("--block-size", "--block-sizes"))] = None
    """Tokens per block, repeatable; 16 and 64 by default."""
    groups: str = ""
    """Groups of layers, for example full,window:1024,window:1024,state: kind, tokens of a window
    or chunk, blocks of a state. One of full attention by default."""
    case: Annotated[list[str] | None, Parameter(("--case", "--cases"))] = None
    """no_eviction, eviction, python-lists, index and index-eviction (the index of an engine alone),
    match (the lookup of 131,072 tokens), tiers (a store that engines share), scheduler (its share
    of step time), growth (cost with up to 10^7 cached blocks); repeatable; the first three by
    default."""
    repetitions: int = 5
    """Interleaved repetitions per target and case."""
    baseline_target: str | None = None
    """Baseline of the ratios."""
    verify_tokens: int = 1 << 20
    """Tokens of the workload that run once more with the shadow memory; 0 for none."""
    max_blocks: int = 1 << 21
    """Largest pool."""
    growth: bool = True
    """Also measure the cost per token with 10^3 to 10^6 cached blocks."""
    skip_absent: bool = False
    """An engine that is not installed is a row with the reason, not an error."""
    output: Output = None
    """Directory of the run's records and reports."""
    config: Path | None = None
    """Settings file."""
