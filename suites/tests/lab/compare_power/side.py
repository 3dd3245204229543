"""One run of one side of `lab.compare_power`: an index and a kernel with a set slowdown."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvproof.harness.adapters.reference import target as reference
from kvproof.harness.bench.job import run as bench
from kvproof.harness.contract.target import Cycle, TargetConfig
from kvproof.harness.records.events import BenchSample
from kvproof.harness.records.run_directory import Manifest, RunWriter
from kvproof.harness.records.sweep_events import CaseValue, Cell

LAUNCHES = 2
"""Samples of the kernel per run."""
REPETITIONS = 3
"""Repetitions of the index per run; the median counts, as one takes 2 ms of CPU time."""
WORK = {"workload": "shared-prefix:requests=100,length=4096,shared=0.75", "block_size": 16,
        "num_blocks": 20_000}  # fmt: skip
CASE: dict[str, CaseValue] = {
        "page": 16, "head_dim": 64, "heads": 8, "dtype": "bf16", "cache": "same", "layout": "NHD",
        "to": "table", "requests": 16, "tokens": 256, "past": 40, "batch": "even",
        "rows": "packed", "scales": "tensor"}  # fmt: skip
_TIMED = 0.02
"""Minimum CPU seconds of one sample of the kernel."""

factor = 0.0
"""Slowdown of index and kernel in this process."""


def slowed(work: Callable[..., Any]) -> Callable[..., Any]:
    """Do the same work, then wait for `factor` of its CPU time."""
    owed = 0.0

    def run(*arguments: Any) -> Any:
        nonlocal owed
        began = time.thread_time_ns()
        found = work(*arguments)
        now = done = time.thread_time_ns()
        owed += factor * (done - began)
        while now - done < owed:
            now = time.thread_time_ns()
        owed -= now - done
        return found

    return run


def make_cycle(config: TargetConfig, variant: str) -> Cycle:
    """The reference's index; equal code on both sides, except for `factor`."""
    cycle: Any = reference.make_cycle(config, variant)
    cycle.run = slowed(cycle.run)
    made: Cycle = cycle
    return made


def index_sample(repetition: int) -> BenchSample:
    """One repetition of the bench."""
    found = bench({"factory": "kvproof.suites.tests.lab.compare_power.side:make_target", **WORK})
    names = ("requests", "tokens", "hit_tokens", "cpu_seconds", "wall_seconds", "p50_us",
             "p99_us", "harness_share", "cached_blocks")  # fmt: skip
    return BenchSample(
        target="index", workload="shared heads", block_size=16, num_blocks=20_000,
        case="no_eviction", repetition=repetition, **{name: found[name] for name in names},
    )  # fmt: skip


def kernel_launch() -> Callable[[], None]:
    """A prepared launch of torch's `kv_fill` on the CPU."""
    import torch

    from kvproof.kernels.registry import kernel, provider
    from kvproof.kernels.source import Source

    torch.set_num_threads(1)
    subject, entry = kernel("kv_fill"), provider("torch").kernels["kv_fill"]
    problem = subject.make(CASE, Source(seed=0, device="cpu", guarded=False))
    return slowed(entry.prepare(CASE, problem.arguments))


def kernel_cell(launch: Callable[[], None]) -> Cell:
    """CPU seconds of a launch: several samples of many launches each."""
    launch()
    samples = []
    for _ in range(LAUNCHES):
        count, began = 0, time.thread_time()
        while time.thread_time() - began < _TIMED:
            launch()
            count += 1
        samples.append((time.thread_time() - began) / count)
    return Cell(kernel="kv_fill", provider="torch", case=CASE, outcome="ok", samples=samples)


def measure(kind: str, planted: float, directory: Path, made: Manifest) -> None:
    """One run of one side, in a process of its own."""
    global factor
    factor = planted
    gc.freeze()  # what was imported is not looked at before every pass
    writer = RunWriter(directory, made)
    if kind == "kernel":
        writer.write(kernel_cell(kernel_launch()))
    for repetition in range(REPETITIONS if kind == "index" else 0):
        writer.write(index_sample(repetition))
    writer.close()


make_target = reference.make_target
