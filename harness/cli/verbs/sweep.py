"""`sweep`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NamedTuple

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kvproof.harness.campaign.ray_sweep import RaySweep
from kvproof.harness.cli.duration import seconds
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.runs import ActiveRun, run_directory
from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import AnyEvent, Skipped
from kvproof.harness.records.run_directory import Run, read_run
from kvproof.harness.records.sweep_events import Cell
from kvproof.harness.records.sweep_results import CellKey, latest, rows, started
from kvproof.harness.sweep.cell_filter import parse_where
from kvproof.harness.sweep.messages import KernelFacts, ProviderFacts
from kvproof.harness.sweep.plan import SweepOptions, describe
from kvproof.harness.sweep.runner import MakeProcess, run_sweep
from kvproof.harness.sweep.verdict import slower, undecided
from kvproof.harness.sweep.worker_pool import Seat, SweepProcess
from kvproof.kernels.registry import provider_names

Names = Annotated[list[str] | None, Parameter(consume_multiple=True)]


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Each field is an option, and what stands under it is its help."""

    kernels: Names = None
    """Names, separated by commas, or your own package.module:attribute; all by default."""
    providers: Names = None
    """Whose kernels are judged: kvproof, torch, an engine, or package.module:function."""
    peers: Names = None
    """Providers shown beside them, without a part in the verdict; skipped if not installed."""
    cells: Names = None
    """cpu, gpu, anchors, random:100; gpu on a GPU, else cpu."""
    where: str = ""
    """Only some cells, for example "page=16,32 head_dim=128"."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """cuda needs a GPU; on the cpu Triton interprets, and only correctness is judged."""
    devices: Names = None
    """GPUs over which cells are spread, for example 0,1."""
    workers: int = 0
    """Processes per device that check side by side; as many as the cores allow by default."""
    seeds: Names = None
    """Of the random inputs, all of which a cell is checked with; 0,1 on a GPU, else 0."""
    timing: bool = True
    """Measure the time of cells that are right."""
    timeout: str = "60s"
    """Of one cell, compilation included."""
    baseline: Path | None = None
    """Directory of an earlier sweep: a cell that is slower now ends the run with 4."""
    max_regression: float = 0.1
    """How much longer a cell may take than in the baseline."""
    output: Path | None = None
    """Directory of the run's records and reports; the same command resumes it."""
    json: bool = False
    """Print the cells as JSON, and everything else to standard error."""
    ray: str = ""
    """Spread cells over a Ray cluster: auto, or its address; all its GPUs, else its cores."""
    list_: Annotated[bool, Parameter("--list", negative="")] = False
    """Print kernels, providers and how many cells there are; exit."""

    def options(self) -> SweepOptions:
        """Raises UsageError for what can be refused without a worker."""
        options = SweepOptions(
            kernels=_split(self.kernels),
            providers=_split(self.providers) or SweepOptions().providers,
            peers=_split(self.peers),
            cells=_split(self.cells),
            where=self.where,
            device="cuda" if self.devices and self.device == "auto" else self.device,
            devices=_numbers("--devices", self.devices) or (0,),
            workers=self.workers,
            seeds=_numbers("--seeds", self.seeds),
            timing=self.timing,
            timeout=seconds(self.timeout),
        )
        _check(options, self.max_regression)
        return options


def sweep(asked: Annotated[Asked, Parameter(name="*")] = Asked()) -> None:
    """Judge kernels over all their shapes: right first, then how fast."""
    options = asked.options()
    if asked.list_:
        _list(options, standard_output())
        return
    before = _baseline(asked.baseline)
    make: MakeProcess = SweepProcess
    if asked.ray:
        make = spread = RaySweep(asked.ray)
        options = spread.options(options)
    console = Console(stderr=True) if asked.json else standard_output()
    config = {
        **asdict(options),
        "baseline": str(asked.baseline or ""),
        "max_regression": asked.max_regression,
    }
    with (
        _cells_after(asked.json) as told,
        run_directory("sweep", config=config, output=asked.output, console=console) as active,
    ):
        told.append(active.writer.directory)
        found = run_in(active, options, make)
        if before:
            compare(active, found, before, asked.max_regression)


class Swept(NamedTuple):
    """What a sweep has left: its events, and the cells as they ended."""

    events: list[AnyEvent]
    cells: dict[CellKey, Cell]


def run_in(active: ActiveRun, options: SweepOptions, make: MakeProcess = SweepProcess) -> Swept:
    """Sweep as a part of a run that may have been interrupted earlier."""
    events = list(active.earlier)

    def write(event: AnyEvent) -> None:
        active.write(event)
        events.append(event)

    with TemporaryDirectory(prefix="kvproof-sweep-") as logs:
        cells = run_sweep(
            options,
            write=write,
            progress=lambda text, done, total: active.status("sweep", text, done, total),
            logs=Path(logs),
            earlier=active.earlier,
            make=make,
        )
    return Swept(events, cells)


def _split(given: Sequence[str] | None) -> tuple[str, ...]:
    """Accept `--kernels a,b`, `--kernels "a b"` and `--kernels a --kernels b`."""
    names = [name for item in given or () for name in item.replace(",", " ").split()]
    return tuple(dict.fromkeys(names))


def _numbers(option: str, given: Sequence[str] | None) -> tuple[int, ...]:
    for name in _split(given):
        if not name.isdecimal():
            raise UsageError(f"{option} {name!r} is not a number", f"for example {option} 0,1")
    return tuple(int(name) for name in _split(given))


def _check(options: SweepOptions, max_regression: float) -> None:
    """What can be refused without a worker is refused before a run is begun."""
    parse_where(options.where)
    if options.workers < 0:
        raise UsageError(f"--workers {options.workers} is negative", "for example --workers 2")
    if not max_regression >= 0:
        raise UsageError(
            f"--max-regression {max_regression} is negative", "0.1 tolerates a tenth more time"
        )


def _baseline(directory: Path | None) -> Run | None:
    """What is to be compared with is read before anything runs."""
    if directory is None:
        return None
    run = read_run(directory)
    if not any(cell.samples for cell in latest(run.events).values()):
        raise UsageError(
            f"run {str(directory)!r} has no timed cell", "a baseline is a sweep on a GPU"
        )
    return run


def compare(active: ActiveRun, swept: Swept, before: Run, max_regression: float) -> None:
    """Times of another card say nothing about a change of the code."""
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
    """Print the cells of the run in the directory given, when the run is closed."""
    directories: list[Path] = []
    try:
        yield directories
    finally:
        for directory in directories if wanted else ():
            _print_json(read_run(directory))


def _print_json(run: Run) -> None:
    """The cells as they ended, each with its figures."""
    figures = {id(row.cell): row for row in rows(run.events)}
    told = []
    for cell in latest(run.events).values():
        row = figures.get(id(cell))
        more = {"median": row.seconds, "rate": row.rate, "unit": row.unit,
                "fraction": row.fraction} if row else {}  # fmt: skip
        told.append({**msgspec.to_builtins(cell), **more})
    ended = run.ended
    whole = {
        "verdict": ended.verdict if ended else "killed",
        "sentence": ended.sentence if ended else "",
        "directory": str(run.directory),
        "cells": told,
    }
    text = msgspec.json.format(msgspec.json.encode(whole)).decode()
    standard_output().print(text, soft_wrap=True, markup=False, highlight=False)


def _list(options: SweepOptions, console: Console) -> None:
    with TemporaryDirectory(prefix="kvproof-sweep-") as logs:
        lead = SweepProcess(Seat(options.device, options.devices[0]), Path(logs) / "lead.log")
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
    return table


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
