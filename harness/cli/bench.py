"""`bench`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from kvproof.harness.bench import run_bench
from kvproof.harness.bench_cases import BenchOptions
from kvproof.harness.cli.conformance import open_all
from kvproof.harness.cli.runs import run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.events import AnyEvent, BenchSummary, Skipped, TargetFailed
from kvproof.harness.workloads import load_workload

WORKLOAD = "shared-heads:requests=2000,length=4096,shared=0.75"


def options(
    *,
    block_sizes: Sequence[int] | None,
    groups: str,
    cases: Sequence[str] | None,
    repetitions: int,
    peer: str,
    checked_tokens: int,
    max_blocks: int,
    growth: bool,
) -> BenchOptions:
    """Turn the command line into options."""
    return BenchOptions(
        block_sizes=tuple(block_sizes or BenchOptions().block_sizes),
        groups=groups,
        cases=tuple(cases or BenchOptions().cases),
        repetitions=repetitions,
        peer=peer,
        checked_tokens=checked_tokens,
        max_blocks=max_blocks,
        growth_sizes=BenchOptions().growth_sizes if growth else (),
    )


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
