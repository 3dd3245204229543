"""One engine's scheduler around a model of fixed step time, as a process (Python 3.10, numpy).

`scheduler_process.py MODULE CELL`, a cell being the JSON of `Cell`. As many requests as the cell
has are always under way: one that ends is followed by the next. The control plane is
timed by CPU time of the thread; the step time of the model is added to a simulated clock and not
waited for. The garbage collector stays on, with the first turn's objects frozen, as
engines do; its pauses are counted apart. Prints the JSON of the measured figures.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import sys
import time
import tracemalloc
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if not __package__:  # started as a file, because an engine's environment has no kvproof
    _namespace = types.ModuleType("kvproof")
    _namespace.__path__ = [str(Path(__file__).resolve().parents[2])]
    sys.modules["kvproof"] = _namespace

from kvproof.harness.bench.workloads import Workload, load_workload
from kvproof.harness.contract.loop import Loop, LoopConfig

LEAST, SPREAD = 64, 128
"""Tokens of an answer: from LEAST on, so that requests do not end together."""
_SHARED = "shared=0.5,families=4"
_BUDGET, _PER_REQUEST = 8192, 16
_SPARE, _SPARE_PROMPTS = 1.25, 4
"""Pool size over the need of the running requests: the rest is cached, and evicted all the time."""
_WAITING = 1 << 22
"""Tokens of the requests whose memory is counted while they wait, at least two requests."""


class Cell(NamedTuple):
    """One measured cell."""

    requests: int
    """Under way at the same time."""
    prompt_tokens: int
    block_size: int
    step_seconds: float
    """Simulated time of the model in one step."""
    steps: int
    """Least number of measured steps; each request that was under way ends once, too."""
    seconds: float = 0.0
    """Least simulated time."""
    most_cpu_seconds: float = 60.0
    """The first turn, and then the measurement, stop there, whatever is missing."""

    @property
    def loop(self) -> LoopConfig:
        """Sizes for the engine."""
        longest = self.prompt_tokens + LEAST + SPREAD
        prompts = self.requests * _SPARE + _SPARE_PROMPTS
        blocks = int(prompts * -(-longest // self.block_size))
        budget = max(_BUDGET, _PER_REQUEST * self.requests)
        return LoopConfig(blocks + 1, self.block_size, self.requests, budget, longest)


class Spent(NamedTuple):
    """Nanoseconds of one step."""

    control: int
    """CPU time of the control plane, the collector included."""
    collector: int
    call: int
    """The longest call of the step, without the collector."""


class Bench:
    """Drives one loop."""

    def __init__(self, loop: Loop, cell: Cell) -> None:
        self._loop, self._cell = loop, cell
        self._prompts = _prompts(cell.prompt_tokens)
        self._submitted = self._live = self.finished = 0
        self._collector = self._paused = 0
        self._calls: list[tuple[int, int]] = []
        """Time and pause of each call of the step."""
        self.cut = ""

    def collected(self, phase: str, _: dict[str, int]) -> None:
        """Count a pause; for `gc.callbacks`."""
        now = time.thread_time_ns()
        if phase == "start":
            self._paused = now
        else:
            self._collector += now - self._paused

    @contextmanager
    def _call(self) -> Iterator[None]:
        paused, began = self._collector, time.thread_time_ns()
        yield
        self._calls.append((time.thread_time_ns() - began, self._collector - paused))

    def step(self) -> Spent:
        """Let requests arrive, run one step; returns the nanoseconds of the control plane."""
        loop = self._loop
        self._calls.clear()
        while self._live < self._cell.requests:
            self.submit()
            self._live += 1
        with self._call():
            plan = loop.schedule()
        if plan is None:
            raise RuntimeError(f"{self._live} requests are under way and nothing can run")
        answer = loop.answer(plan)
        with self._call():
            done = len(loop.complete(plan, answer))
        self._live -= done
        self.finished += done
        control, collector = map(sum, zip(*self._calls, strict=True))
        return Spent(control, collector, max(time - pause for time, pause in self._calls))

    def submit(self) -> None:
        """Let the next request arrive."""
        prompt = self._loop.prepare(next(self._prompts))
        number = self._submitted
        self._submitted += 1
        with self._call():
            self._loop.submit(str(number), prompt, LEAST + number * 37 % SPREAD)

    def measure(self) -> list[Spent]:
        """Nanoseconds of each step, after every request of the start has ended."""
        cell = self._cell
        began = time.process_time()
        while self.finished < cell.requests:
            self.step()
            if time.process_time() - began > cell.most_cpu_seconds:
                ended = f"{self.finished:,} of {cell.requests:,} requests"
                self.cut = f"first turn: {ended} in {cell.most_cpu_seconds:g} s of CPU time"
                break
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self.collected)
        try:
            return self._measure()
        finally:
            gc.callbacks.remove(self.collected)

    def _measure(self) -> list[Spent]:
        cell, spent = self._cell, list[Spent]()
        self.finished, simulated, began = 0, 0.0, time.process_time()
        while True:
            spent.append(self.step())
            simulated += cell.step_seconds + spent[-1].control / 1e9
            enough = len(spent) >= cell.steps and self.finished >= cell.requests
            if enough and simulated >= cell.seconds:
                return spent
            if time.process_time() - began > cell.most_cpu_seconds:
                self.cut = self.cut or f"after {cell.most_cpu_seconds:g} s of CPU time"
                return spent

    def bytes_per_waiting(self) -> float:
        """Bytes that the engine keeps for a request that waits, without the caller's prompt."""
        count = max(2, min(1000, _WAITING // self._cell.prompt_tokens))
        prompts = [self._loop.prepare(next(self._prompts)) for _ in range(count)]
        gc.collect()
        tracemalloc.start(1)
        for number, prompt in enumerate(prompts):
            self._loop.submit(f"waiting {number}", prompt, LEAST)
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size / count


def _prompts(length: int) -> Iterator[memoryview]:
    many = 1 << 16
    workload: Workload = load_workload(f"shared-prefix:requests={many},length={length},{_SHARED}")
    for index in range(many):
        yield workload.prompt(index).data
    for index in range(many):  # another seed: none of them was there before
        more = f"shared-prefix:requests={many},length={length},{_SHARED},seed=2"
        workload = workload if index else load_workload(more)
        yield workload.prompt(index).data


def measured(loop: Loop, cell: Cell) -> dict[str, Any]:
    """Run a cell."""
    bench = Bench(loop, cell)
    steps = np.array(bench.measure(), np.int64)
    spent, collector, calls = steps.T
    control, tenth = float(spent.sum()) / 1e9, max(1, len(spent) // 10)
    p50, p99, p9999 = (np.percentile(spent, [50, 99, 99.99]) / 1000).tolist()
    without = float(np.percentile(spent - collector, 99.99)) / 1000
    many = len(spent) >= 10_000
    return {
        "num_blocks": cell.loop.num_blocks,
        "steps": len(spent),
        "finished": bench.finished,
        "simulated_seconds": control + len(spent) * cell.step_seconds,
        "share": control / (control + len(spent) * cell.step_seconds),
        "p50_us": p50,
        "p99_us": p99,
        "p9999_us": p9999 if many else None,
        "p9999_without_us": without if many else None,
        "longest_us": float(spent.max()) / 1000,
        "longest_call_us": float(calls.max()) / 1000,
        "collector_us": float(collector.max()) / 1000,
        "collector_share": float(collector.sum()) / float(spent.sum()),
        "cut": bench.cut,
        "drift": float(np.mean(spent[-tenth:]) / np.mean(spent[:tenth])),
        "bytes_per_waiting": bench.bytes_per_waiting(),
    }


def main(arguments: list[str]) -> None:
    """Measure the cell of the arguments."""
    module, cell = arguments
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what an engine prints belongs to the log
    chosen = Cell(**json.loads(cell))
    loop = importlib.import_module(module).make_loop(chosen.loop)
    answers.write(json.dumps(measured(loop, chosen)))
    answers.close()


if __name__ == "__main__":
    main(sys.argv[1:])
