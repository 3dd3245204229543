"""`bench`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from kvproof.harness.bench.cases import BenchOptions
from kvproof.harness.bench.runner import run_bench
from kvproof.harness.bench.workloads import load_workload
from kvproof.harness.cli.options import Output, Targets
from kvproof.harness.cli.runs import run_directory
from kvproof.harness.cli.verbs.conformance import open_all
from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import AnyEvent, BenchSummary, Skipped, TargetFailed

WORKLOAD = "shared-heads:requests=2000,length=4096,shared=0.75"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Each field is an option, and what stands under it is its help."""

    workload: str = WORKLOAD
    """A trace (.jsonl, .jsonl.gz) or shared-heads, multi-turn, agents, uniform with parameters,
    for example shared-heads:requests=2000,length=4096,shared=0.75."""
    target: Targets = None
    """As for run; side by side in one run."""
    block_size: Annotated[list[int] | None, Parameter(("--block-size", "--block-sizes"))] = None
    """Tokens per block, repeatable; 16 and 64 by default."""
    groups: str = ""
    """Groups of layers, for example full,window:1024,window:1024,state: kind, tokens of a window
    or chunk, blocks of a state. One of full attention by default."""
    case: Annotated[list[str] | None, Parameter(("--case", "--cases"))] = None
    """no_eviction, eviction, lists, match (the lookup alone of 131,072 tokens); repeatable; all
    but match by default."""
    repetitions: int = 5
    """Interleaved repetitions per target and case."""
    peer: str = ""
    """Target that ratios are against."""
    checked_tokens: int = 1 << 20
    """Tokens of the workload that run once more under the shadow memory; 0 for none."""
    max_blocks: int = 1 << 21
    """Largest pool."""
    growth: bool = True
    """Measure the cost per token beside 10^3 to 10^6 cached blocks too."""
    output: Output = None
    """Directory of the run's records and reports."""
    config: Path | None = None
    """Settings file."""

    def options(self) -> BenchOptions:
        """Turn the command line into options."""
        usual = BenchOptions()
        return BenchOptions(
            block_sizes=tuple(self.block_size or usual.block_sizes),
            groups=self.groups,
            cases=tuple(self.case or usual.cases),
            repetitions=self.repetitions,
            peer=self.peer,
            checked_tokens=self.checked_tokens,
            max_blocks=self.max_blocks,
            growth_sizes=usual.growth_sizes if self.growth else (),
        )


USUAL = Asked()
"""What is asked without options."""


def bench(
    specs: Sequence[str],
    *,
    workload: str,
    options: BenchOptions,
    output: Path | None,
    console: Console,
) -> None:
    """`kvproof bench`."""
    load_workload(workload)
    config = {"targets": list(specs), "workload": workload, **asdict(options)}
    with ExitStack() as stack:
        handles = open_all(specs, stack)
        active = stack.enter_context(
            run_directory("bench", config=config, output=output, console=console)
        )
        events: list[AnyEvent] = []

        def write(event: AnyEvent) -> None:
            events.append(event)
            active.write(event)

        run_bench(
            handles,
            workload,
            options=options,
            write=write,
            progress=lambda text: active.status("bench", text.removeprefix("bench: ")),
            earlier=active.samples,
        )
        _refuse_nothing(events)


def _refuse_nothing(events: Sequence[AnyEvent]) -> None:
    """A bench that measured nothing must not look like one that passed."""
    if not any(isinstance(event, (BenchSummary, TargetFailed)) for event in events):
        skipped = [event for event in events if isinstance(event, Skipped)]
        raise UsageError(
            "nothing was measured", "; ".join(f"{e.part}: {e.reason}" for e in skipped)
        )
