"""`kvproof gate`: corpus, suites, bench, thresholds and kernels in one run with one report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import msgspec

from kvproof.harness.analysis.baseline import load_baseline, save_baseline
from kvproof.harness.analysis.thresholds import judge_thresholds
from kvproof.harness.bench.cases import SMALL
from kvproof.harness.bench.runner import run_bench
from kvproof.harness.cli.actions.conformance import suites
from kvproof.harness.cli.actions.sweep import run_in
from kvproof.harness.cli.actions.targets import open_all
from kvproof.harness.cli.runs import ActiveRun, hardware, run_directory, versions
from kvproof.harness.errors import UsageError
from kvproof.harness.isolation.doctor import GPU_EXTRA, KERNELS_NEED
from kvproof.harness.isolation.handles import Handle
from kvproof.harness.isolation.registry import OwnTargets
from kvproof.harness.records.events import AnyEvent, BenchSample, BenchSummary, Skipped
from kvproof.harness.settings import Settings
from kvproof.harness.sweep.plan import SweepOptions
from kvproof.suites.framework.property import Level
from kvproof.suites.framework.suite import SUBJECT

REPETITIONS = 6
"""Repetitions of the gate's bench: fewer samples could show no loss between two targets."""


def gate(
    specs: Sequence[str],
    *,
    settings: Settings,
    save: bool,
    output: Path | None,
    own: OwnTargets,
) -> int:
    """Run suites, bench, thresholds and kernels on targets; returns the exit code.

    Raises UsageError before anything runs if the baseline is invalid.
    """
    recorded = {"targets": specs, **msgspec.to_builtins(settings), **own.recorded()}
    baseline = load_baseline(Path(settings.gate.baseline))
    if save:
        _check_place(Path(settings.gate.baseline))
    with ExitStack() as stack:
        handles = open_all(specs, stack, own)
        active = stack.enter_context(run_directory("gate", config=recorded, output=output))
        for handle in handles:
            level: Level = settings.gate.level if handle.name == SUBJECT else "core"
            suites(handle, active, budget=settings.run.budget, level=level, seed=None)
        if settings.gate.bench:
            summaries, samples = _bench(handles, active, settings)
            judged = judge_thresholds(
                summaries, settings.gate, baseline,
                hardware=hardware(), targets=specs, samples=samples,
            )  # fmt: skip
            judgements: list[AnyEvent] = [*judged.thresholds, *judged.skipped]
            for event in judgements:
                active.write(event)
            if save:
                save_baseline(
                    Path(settings.gate.baseline),
                    summaries,
                    samples,
                    hardware=hardware(),
                    versions=versions(),
                )
        if settings.gate.sweep:
            _sweep(active)
    return active.exit_code


def _sweep(active: ActiveRun) -> None:
    """The listed small cells of all kernels, right or not; times belong to `kvproof sweep`."""
    lacking = [name for name in KERNELS_NEED if find_spec(name) is None]
    if lacking:
        reason = f"{' and '.join(lacking)} not installed"
        active.write(
            Skipped(part="sweep of the kernels", reason=reason, command=f"pip install {GPU_EXTRA}")
        )
    else:
        run_in(active, SweepOptions(cells=("cpu",), timing=False))


def _check_place(baseline: Path) -> None:
    """Refuse a baseline that cannot be stored before the work begins."""
    if not os.access(baseline.parent, os.W_OK):
        raise UsageError(
            f"cannot write baseline {str(baseline)!r}: its folder is missing or read-only",
            "set gate.baseline in kvproof.toml to a writable place",
        )


def _bench(
    handles: Sequence[Handle], active: ActiveRun, settings: Settings
) -> tuple[list[BenchSummary], list[BenchSample]]:
    summaries: list[BenchSummary] = []
    samples = list(active.samples)

    def write(event: AnyEvent) -> None:
        active.write(event)
        if isinstance(event, BenchSummary):
            summaries.append(event)
        elif isinstance(event, BenchSample):
            samples.append(event)

    run_bench(
        handles,
        f"shared-prefix:requests={settings.gate.requests}",
        options=replace(SMALL, repetitions=REPETITIONS),
        write=write,
        progress=lambda text: active.status("bench", text.removeprefix("bench: ")),
        earlier=active.samples,
    )
    return summaries, samples
