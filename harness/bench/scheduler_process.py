"""One engine's scheduler around a model of fixed step time, as a process (Python 3.10, numpy).

`scheduler_process.py MODULE CELL`, a cell being the JSON of `Cell`. As many requests as the cell
has are always under way: one that ends is followed by the next. What the control plane does is
timed by CPU time of the thread; the step time of the model is added to a simulated clock and not
waited for. The garbage collector stays on, with what exists after the first turn frozen, as
engines do. Prints the JSON of the measured figures.
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
"""Pool over what the requests under way fill: the rest is cached, and evicted all the time."""
_WAITING = 1 << 22
"""Tokens of the requests whose memory is counted while they wait, at least two requests."""


class Cell(NamedTuple):
    """What is measured."""

    requests: int
    """Under way at the same time."""
    prompt_tokens: int
    block_size: int
    step_seconds: float
    """Of the model."""
    steps: int
    """Least number of measured steps; each request that was under way ends once, too."""
    seconds: float = 0.0
    """Least simulated time."""
    most_cpu_seconds: float = 60.0
    """The measurement stops there, whatever is missing."""

    @property
    def loop(self) -> LoopConfig:
        """Sizes for the engine."""
        longest = self.prompt_tokens + LEAST + SPREAD
        prompts = self.requests * _SPARE + _SPARE_PROMPTS
        blocks = int(prompts * -(-longest // self.block_size))
        budget = max(_BUDGET, _PER_REQUEST * self.requests)
        return LoopConfig(blocks + 1, self.block_size, self.requests, budget, longest)


class Bench:
    """Drives one loop."""

    def __init__(self, loop: Loop, cell: Cell) -> None:
        self._loop, self._cell = loop, cell
        self._prompts = _prompts(cell.prompt_tokens)
        self._submitted = self._live = self.finished = 0

    def step(self) -> int:
        """Let requests arrive, run one step; returns the nanoseconds of the control plane."""
        loop, spent = self._loop, 0
        while self._live < self._cell.requests:
            spent += self.submit()
            self._live += 1
        began = time.thread_time_ns()
        plan = loop.schedule()
        spent += time.thread_time_ns() - began
        if plan is None:
            raise RuntimeError(f"{self._live} requests are under way and nothing can run")
        answer = loop.answer(plan)
        began = time.thread_time_ns()
        done = len(loop.complete(plan, answer))
        spent += time.thread_time_ns() - began
        self._live -= done
        self.finished += done
        return spent

    def submit(self) -> int:
        """Let the next request arrive; returns the nanoseconds."""
        prompt = self._loop.prepare(next(self._prompts))
        number = self._submitted
        self._submitted += 1
        began = time.thread_time_ns()
        self._loop.submit(str(number), prompt, LEAST + number * 37 % SPREAD)
        return time.thread_time_ns() - began

    def measure(self) -> list[int]:
        """Nanoseconds of each step, after every request of the start has ended."""
        cell = self._cell
        while self.finished < cell.requests:
            self.step()
        gc.collect()
        gc.freeze()
        spent: list[int] = []
        self.finished, simulated, began = 0, 0.0, time.process_time()
        while time.process_time() - began < cell.most_cpu_seconds:
            spent.append(self.step())
            simulated += cell.step_seconds + spent[-1] / 1e9
            enough = len(spent) >= cell.steps and self.finished >= cell.requests
            if enough and simulated >= cell.seconds:
                break
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
    spent = bench.measure()
    control, tenth = sum(spent) / 1e9, max(1, len(spent) // 10)
    p50, p99, p9999 = (np.percentile(spent, [50, 99, 99.99]) / 1000).tolist()
    return {
        "num_blocks": cell.loop.num_blocks,
        "steps": len(spent),
        "finished": bench.finished,
        "simulated_seconds": control + len(spent) * cell.step_seconds,
        "share": control / (control + len(spent) * cell.step_seconds),
        "p50_us": p50,
        "p99_us": p99,
        "p9999_us": p9999 if len(spent) >= 10_000 else None,
        "longest_us": max(spent) / 1000,
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
