"""Share of step time that schedulers take, by requests under way and length of prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from kvproof.harness.bench.scheduler_process import Cell
from kvproof.harness.bench.sides import JobRunner
from kvproof.harness.errors import TargetDied
from kvproof.harness.records.bench_events import SchedulerPoint
from kvproof.harness.records.events import AnyEvent, Skipped

STEP_SECONDS = 0.02
"""Of the model that is not there."""
BLOCK_SIZE = 16
_HOUR = 3600.0
CELLS = (
    *(Cell(n, 1024, BLOCK_SIZE, STEP_SECONDS, 300) for n in (1, 16, 256, 4096)),
    Cell(16, 1 << 17, BLOCK_SIZE, STEP_SECONDS, 300),
    Cell(1, 1 << 20, BLOCK_SIZE, STEP_SECONDS, 300),
    Cell(16, 4096, BLOCK_SIZE, STEP_SECONDS, 300, _HOUR, 300.0),
)
"""The last one runs for an hour of simulated time."""
_TIMEOUT_S = 1800.0


def measure_schedulers(
    runners: Sequence[JobRunner],
    *,
    write: Callable[[AnyEvent], None],
    progress: Callable[[str], None],
    lost: Callable[[Any, TargetDied], None],
    cells: Sequence[Cell] = CELLS,
    done: Collection[tuple[str, int, int]] = (),
) -> None:
    """Measure all targets that have such a loop, cell by cell; others are skipped with the why.

    `done`: (target, requests, tokens of a prompt) that an interrupted run has measured.
    """
    running = list(runners)
    for cell in cells:
        for runner in list(running):
            if (runner.name, cell.requests, cell.prompt_tokens) in done:
                continue
            at = f"{cell.requests:,} requests of {cell.prompt_tokens:,} tokens"
            progress(f"bench: scheduler, {at}: {runner.name}")
            job = {"factory": runner.factory, "cell": cell._asdict()}
            try:
                answer = runner.run_job(
                    "kvproof.harness.bench.scheduler_job:run", job, timeout=_TIMEOUT_S
                )
            except TargetDied as error:
                running.remove(runner)
                lost(runner, error)
                continue
            if why := answer.get("unsupported"):
                running.remove(runner)
                write(Skipped(part=f"bench scheduler of {runner.name}", reason=why))
                continue
            write(_point(runner.name, cell, answer))


def _point(target: str, cell: Cell, answer: dict[str, Any]) -> SchedulerPoint:
    return SchedulerPoint(
        target=target,
        requests=cell.requests,
        prompt_tokens=cell.prompt_tokens,
        block_size=cell.block_size,
        step_seconds=cell.step_seconds,
        **answer,
    )
