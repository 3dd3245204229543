"""`kvproof bench`: run the cases, refuse a run that measured nothing."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict

from kvproof.harness.bench.cases import APART, GROWTH, LARGE_GROWTH, BenchOptions
from kvproof.harness.bench.runner import run_bench
from kvproof.harness.bench.workloads import load_workload
from kvproof.harness.cli.actions.targets import open_all
from kvproof.harness.cli.arguments.bench import BenchArguments
from kvproof.harness.cli.options import names
from kvproof.harness.cli.runs import run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import OwnTargets
from kvproof.harness.records.bench_events import GrowthPoint, SchedulerPoint, TierSummary
from kvproof.harness.records.events import AnyEvent, BenchSummary, Skipped, TargetFailed


def bench(specs: Sequence[str], arguments: BenchArguments) -> int:
    """Measure, record and report; returns the exit code. Raises UsageError."""
    options, workload = _options(arguments), arguments.workload
    load_workload(workload)
    config = {"targets": specs, "workload": workload, **asdict(options)}
    with ExitStack() as stack:
        handles, absent = _opened(specs, stack, skip=arguments.skip_absent)
        active = stack.enter_context(run_directory("bench", config=config, output=arguments.output))
        events: list[AnyEvent] = []

        def write(event: AnyEvent) -> None:
            events.append(event)
            active.write(event)

        for each in absent:
            write(each)
        run_bench(
            handles,
            workload,
            options=options,
            write=write,
            progress=lambda text: active.status("bench", text.removeprefix("bench: ")),
            earlier=active.earlier,
        )
        _refuse_nothing(events)
    return active.exit_code


def _opened(
    specs: Sequence[str], stack: ExitStack, *, skip: bool
) -> tuple[list[Handle], list[Skipped]]:
    """Open targets; with `skip`, those that are not there are skipped. Raises UsageError."""
    found, absent = list[Handle](), list[Skipped]()
    for spec in specs:
        try:
            found += open_all([spec], stack, OwnTargets(memory=0))
        except UsageError as error:
            if not skip:
                raise
            absent.append(Skipped(part=f"bench of {spec}", reason=str(error)))
    return found, absent


def _options(arguments: BenchArguments) -> BenchOptions:
    usual, baseline = BenchOptions(), arguments.baseline_target
    cases = tuple(names(arguments.case) or usual.cases)
    if baseline is not None:
        names([baseline])  # refuses one that is empty
    return BenchOptions(
        block_sizes=tuple(arguments.block_size or usual.block_sizes),
        groups=arguments.groups,
        cases=cases,
        repetitions=arguments.repetitions,
        peer=baseline or "",
        checked_tokens=arguments.verify_tokens,
        max_blocks=arguments.max_blocks,
        growth_sizes=growth_sizes(cases, wanted=arguments.growth),
    )


_MEASURED = (BenchSummary, TierSummary, SchedulerPoint, GrowthPoint, TargetFailed)


def growth_sizes(cases: Sequence[str], *, wanted: bool) -> tuple[int, ...]:
    """Cached blocks to measure at: the case goes further; cases apart from the workload have none.

    `wanted` is the option.
    """
    if GROWTH in cases:
        return LARGE_GROWTH
    return BenchOptions().growth_sizes if wanted and set(cases) - set(APART) else ()


def _refuse_nothing(events: Sequence[AnyEvent]) -> None:
    """A bench that measured nothing must not look like one that passed."""
    if not any(isinstance(event, _MEASURED) for event in events):
        skipped = [event for event in events if isinstance(event, Skipped)]
        raise UsageError(
            "nothing was measured", "; ".join(f"{e.part}: {e.reason}" for e in skipped)
        )
