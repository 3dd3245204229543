"""Sweeps of separate jobs as one sweep: kernels, providers, devices and cells together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from kvproof.harness.records.events import AnyEvent
from kvproof.harness.records.run_directory import Run
from kvproof.harness.records.sweep_events import (
    Ceilings,
    Cell,
    SweepConcluded,
    SweepDevice,
    SweepKernel,
    SweepProvider,
    SweepStarted,
)
from kvproof.harness.records.sweep_results import case_name, latest, started

SWEEP = (SweepStarted, Ceilings, Cell, SweepConcluded)
"""Events that are merged here; each `Slower` stands for itself."""

_BAD_FIRST = ("fail", "inconclusive", "pass")


def merged_sweep(runs: Sequence[Run]) -> Iterator[AnyEvent]:
    """The events of one sweep over the cells of all; nothing if none swept."""
    begun = [(run, found) for run in runs if (found := started(run.events))]
    if not begun:
        return
    devices: list[SweepDevice] = []
    cells: list[Cell] = []
    limits: list[Ceilings] = []
    for run, found in begun:
        places = {device.index: _place(devices, device) for device in found.devices}
        cells += [
            replace(cell, device=places.get(cell.device, cell.device))
            for cell in latest(run.events).values()
        ]
        limits += [
            replace(event, device=places.get(event.device, event.device))
            for event in run.events
            if isinstance(event, Ceilings)
        ]
    every = [found for _, found in begun]
    yield _started(every, devices)
    yield from limits
    yield from latest(cells).values()
    yield from _concluded(runs, cells, every)


def _place(devices: list[SweepDevice], device: SweepDevice) -> int:
    """Number of a device among all of them; each machine's cards have their own numbers."""
    found = replace(device, index=len(devices))
    devices.append(found)
    return found.index


def _started(every: Sequence[SweepStarted], devices: list[SweepDevice]) -> SweepStarted:
    first = every[0]
    return replace(
        first,
        devices=devices,
        versions={k: v for each in every for k, v in each.versions.items()},
        kernels=_kernels(every),
        providers=_providers(every),
        cells=list(dict.fromkeys(name for each in every for name in each.cells)),
        seeds=sorted({seed for each in every for seed in each.seeds}),
        timing=any(each.timing for each in every),
    )


def _kernels(every: Sequence[SweepStarted]) -> list[SweepKernel]:
    found: dict[str, SweepKernel] = {}
    for each in every:
        for kernel in each.kernels:
            old = found.get(kernel.name)
            cells = kernel.cells + (old.cells if old else 0)
            found[kernel.name] = replace(kernel, cells=cells)
    return list(found.values())


def _providers(every: Sequence[SweepStarted]) -> list[SweepProvider]:
    found: dict[str, SweepProvider] = {}
    for each in every:
        for provider in each.providers:
            old = found.get(provider.name)
            kernels = dict.fromkeys([*(old.kernels if old else ()), *provider.kernels])
            found[provider.name] = replace(provider, kernels=list(kernels))
    return list(found.values())


def _concluded(
    runs: Sequence[Run], cells: Sequence[Cell], every: Sequence[SweepStarted]
) -> Iterator[AnyEvent]:
    """The worst verdict of all; a cell that one job missed and another ran is not missing."""
    concluded = [event for run in runs for event in run.events if isinstance(event, SweepConcluded)]
    if not concluded:
        return
    ran = {f"{cell.kernel} {cell.provider} {case_name(cell.case)}" for cell in cells}
    worst = min(concluded, key=lambda event: _BAD_FIRST.index(event.verdict))
    outcomes: dict[str, Counter[str]] = {p.name: Counter() for e in every for p in e.providers}
    for cell in latest(cells).values():
        outcomes[cell.provider][cell.outcome] += 1
    yield SweepConcluded(
        verdict=worst.verdict,
        reason="; ".join(dict.fromkeys(event.reason for event in concluded if event.reason)),
        planned=sum(event.planned for event in concluded),
        outcomes={name: dict(counts) for name, counts in outcomes.items()},
        missing=[name for event in concluded for name in event.missing if name not in ran],
    )
