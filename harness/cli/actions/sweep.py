"""`kvproof sweep`: check kernels over all their shapes, print and compare the cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.harness.campaign.ray_sweep import RaySweep
from kvproof.harness.cli.arguments.sweep import SweepArguments
from kvproof.harness.cli.duration import seconds
from kvproof.harness.cli.options import check_workers, names
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import Exit, UsageError
from kvproof.harness.records.events import AnyEvent, Skipped
from kvproof.harness.records.run_directory import Run, read_run
from kvproof.harness.records.sweep_events import Cell
from kvproof.harness.records.sweep_results import CellKey, latest, rows, started
from kvproof.harness.scratch import scratch
from kvproof.harness.sweep.cell_filter import parse_where
from kvproof.harness.sweep.device_worker import DeviceSlot, SweepProcess
from kvproof.harness.sweep.messages import KernelFacts, ProviderFacts
from kvproof.harness.sweep.plan import SweepOptions, describe
from kvproof.harness.sweep.runner import MakeProcess, run_sweep
from kvproof.harness.sweep.verdict import slower, undecided
from kvproof.kernels.registry import provider_names, unusable_providers


def sweep(arguments: SweepArguments) -> int:
    """Check the chosen cells, and compare them with the baseline; returns the exit code.

    Raises UsageError before the run begins if the arguments are invalid.
    """
    options = _options(arguments)
    if arguments.list_:
        _list(options, standard_output())
        return Exit.PASS
    before = _baseline(arguments.baseline)
    make: MakeProcess = SweepProcess
    if arguments.ray:
        make = spread = RaySweep(arguments.ray)
        options = spread.options(options)
    config = {
        **asdict(options),
        "baseline": str(arguments.baseline or ""),
        "max_regression": arguments.max_regression,
    }
    console = Console(stderr=True) if arguments.json else None
    with (
        _cells_after(arguments.json) as shown,
        run_directory("sweep", config=config, output=arguments.output, console=console) as active,
    ):
        shown.append(active.writer.directory)
        found = run_in(active, options, make)
        if before:
            compare(active, found, before, arguments.max_regression)
    return active.exit_code


def _options(arguments: SweepArguments) -> SweepOptions:
    chosen = arguments.device
    check_workers(arguments.workers, least=0)
    options = SweepOptions(
        kernels=names(arguments.kernels),
        providers=names(arguments.providers) or SweepOptions().providers,
        peers=names(arguments.compare_with),
        cells=names(arguments.cells),
        where=arguments.filter_,
        device="cuda" if arguments.devices and chosen == "auto" else chosen,
        devices=_numbers("--devices", arguments.devices) or (0,),
        workers=arguments.workers,
        seeds=_numbers("--seeds", arguments.seeds),
        timing=arguments.timing,
        timeout=seconds(arguments.timeout),
        budget=seconds(arguments.budget) if arguments.budget else 0.0,
    )
    parse_where(options.where)
    return options


def _numbers(option: str, given: Sequence[str] | None) -> tuple[int, ...]:
    for name in names(given):
        if not name.isdecimal():
            raise UsageError(f"{option} {name!r} is not a number", f"for example {option} 0,1")
    return tuple(int(name) for name in names(given))


class Swept(NamedTuple):
    """Result of a sweep: its events, and the final cells."""

    events: list[AnyEvent]
    cells: dict[CellKey, Cell]


def run_in(active: ActiveRun, options: SweepOptions, make: MakeProcess = SweepProcess) -> Swept:
    """Sweep as a part of a run that may have been interrupted earlier."""
    events = list(active.earlier)

    def write(event: AnyEvent) -> None:
        active.write(event)
        events.append(event)

    with scratch("kvproof-sweep-") as logs:
        cells = run_sweep(
            options,
            write=write,
            progress=lambda text, done, total: active.status("sweep", text, done, total),
            logs=Path(logs),
            earlier=active.earlier,
            make=make,
        )
    return Swept(events, cells)


def _baseline(directory: Path | None) -> Run | None:
    """The baseline is read before anything runs."""
    if directory is None:
        return None
    run = read_run(directory)
    if not any(cell.samples for cell in latest(run.events).values()):
        raise UsageError(
            f"run {str(directory)!r} has no timed cell", "a baseline is a sweep on a GPU"
        )
    return run


def compare(active: ActiveRun, swept: Swept, before: Run, max_regression: float) -> None:
    """Compare times, on the same card only: those of another card measure another thing."""
    now, then = started(swept.events), started(before.events)
    here, there = ([each.name for each in run.devices] if run else [] for run in (now, then))
    if set(here) != set(there):
        why = f"it ran on {', '.join(there) or 'nothing'}, this on {', '.join(here) or 'nothing'}"
        active.write(Skipped(part="comparison with the baseline", reason=why))
        return
    old = latest(before.events)
    for event in slower(swept.cells, old, tolerated=max_regression):
        active.write(event)
    if unknown := undecided(swept.cells, old, tolerated=max_regression):
        part = f"comparison of {len(unknown):,} cells with the baseline"
        active.write(Skipped(part=part, reason=f"such as {unknown[0]}"))


@contextmanager
def _cells_after(wanted: bool) -> Iterator[list[Path]]:  # noqa: FBT001 - one caller, with an option
    directories: list[Path] = []
    try:
        yield directories
    finally:
        for directory in directories if wanted else ():
            _print_json(read_run(directory))


def _print_json(run: Run) -> None:
    figures = {id(row.cell): row for row in rows(run.events)}
    shown = []
    for cell in latest(run.events).values():
        row = figures.get(id(cell))
        more = {"median": row.seconds, "rate": row.rate, "unit": row.unit,
                "fraction": row.fraction} if row else {}  # fmt: skip
        shown.append({**msgspec.to_builtins(cell), **more})
    ended = run.ended
    whole = {
        "verdict": ended.verdict if ended else "killed",
        "sentence": ended.sentence if ended else "",
        "directory": str(run.directory),
        "cells": shown,
    }
    text = msgspec.json.format(msgspec.json.encode(whole)).decode()
    standard_output().print(text, soft_wrap=True, markup=False, highlight=False)


def _list(options: SweepOptions, console: Console) -> None:
    with scratch("kvproof-sweep-") as logs:
        lead = SweepProcess(DeviceSlot(options.device, options.devices[0]), logs / "lead.log")
        specs = dict.fromkeys([*provider_names(), *options.providers, *options.peers])
        try:
            found = describe(lead, options.kernels, list(specs))
        finally:
            lead.end()
    device = f"device: {lead.device}, {lead.facts.get('name', '')}"
    console.print(device, markup=False, highlight=False)
    console.print(_kernel_table(found.kernels))
    console.print(_provider_table(found.providers))


def _kernel_table(kernels: Sequence[KernelFacts]) -> Table:
    table = _table("kernel", "cells", "what it does")
    for each in kernels:
        sets = ", ".join(f"{name} {count:,}" for name, count in each.sets.items())
        sentence = each.sentence or f"not usable: {each.problem}"
        table.add_row(*map(escape, (each.name, sets, sentence)))
    return table


def _provider_table(providers: Sequence[ProviderFacts]) -> Table:
    table = _table("provider", "version", "kernels")
    for each in providers:
        kernels = ", ".join(each.kernels) or f"not usable: {each.problem}"
        table.add_row(*map(escape, (each.spec, each.version, kernels)))
    for offer in unusable_providers():
        table.add_row(*map(escape, (offer.name, "", f"not usable: {offer.problem}")))
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
