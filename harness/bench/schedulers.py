"""Share of step time that schedulers take, by requests under way and length of prompts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.harness.bench.scheduler_process import Cell
from kvproof.harness.bench.sides import JobRunner
from kvproof.harness.errors import TargetDied
from kvproof.harness.records.bench_events import SchedulerPoint
from kvproof.harness.records.events import AnyEvent, Skipped

STEP_SECONDS = 0.02
"""Simulated time of the model, which is absent."""
BLOCK_SIZE = 16
_HOUR = 3600.0
CELLS = (
    *(Cell(n, 1024, BLOCK_SIZE, STEP_SECONDS, 300) for n in (1, 16, 256, 4096)),
    Cell(16, 1 << 17, BLOCK_SIZE, STEP_SECONDS, 300),
    Cell(1, 1 << 20, BLOCK_SIZE, STEP_SECONDS, 300),
    Cell(16, 4096, BLOCK_SIZE, STEP_SECONDS, 300, _HOUR, 300.0),
)
"""The last one runs for an hour of simulated time."""
TURNS = 3
"""Repetitions of each cell except the hour."""
_TIMEOUT_S = 1800.0
_JOB = "kvproof.harness.bench.scheduler_job:run"


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

    Turns of the targets alternate; the turn with the median of the median steps is kept. An hour
    has one turn. `done`: (target, requests, tokens of a prompt) that an interrupted run measured.
    """
    schedulers = _Schedulers(list(runners), write, progress, lost)
    for cell in cells:
        left_out = {name for name, *of in done if of == [cell.requests, cell.prompt_tokens]}
        schedulers.measure(cell, left_out)


@dataclass
class _Schedulers:
    running: list[JobRunner]
    write: Callable[[AnyEvent], None]
    progress: Callable[[str], None]
    lost: Callable[[Any, TargetDied], None]

    def measure(self, cell: Cell, left_out: Collection[str]) -> None:
        found: dict[str, list[dict[str, Any]]] = {}
        last = 1 if cell.seconds else TURNS
        for turn in range(1, last + 1):
            for runner in [each for each in self.running if each.name not in left_out]:
                at = f"{cell.requests:,} requests of {cell.prompt_tokens:,} tokens"
                self.progress(f"bench: scheduler, {at}, {turn} of {last}: {runner.name}")
                if answer := self._turn(runner, cell):
                    found.setdefault(runner.name, []).append(answer)
        for name, turns in found.items():
            self.write(_point(name, cell, turns))

    def _turn(self, runner: JobRunner, cell: Cell) -> dict[str, Any] | None:
        job = {"factory": runner.factory, "cell": cell._asdict()}
        try:
            answer = runner.run_job(_JOB, job, timeout=_TIMEOUT_S)
        except TargetDied as error:
            self.running.remove(runner)
            self.lost(runner, error)
            return None
        if why := answer.get("unsupported"):
            self.running.remove(runner)
            self.write(Skipped(part=f"bench scheduler of {runner.name}", reason=why))
            return None
        return answer


def _point(target: str, cell: Cell, turns: list[dict[str, Any]]) -> SchedulerPoint:
    turns = sorted(turns, key=lambda each: float(each["p50_us"]))
    return SchedulerPoint(
        target=target,
        requests=cell.requests,
        prompt_tokens=cell.prompt_tokens,
        block_size=cell.block_size,
        step_seconds=cell.step_seconds,
        repetitions=len(turns),
        p50_low_us=turns[0]["p50_us"],
        p50_high_us=turns[-1]["p50_us"],
        **turns[len(turns) // 2],
    )
