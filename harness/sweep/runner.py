"""Sweeps kernels over their cells: first correctness, then speed.

Every cell runs in a worker process: its crash or hang does not stop the sweep. Cells are checked in
parallel and timed one after the other. Neither torch nor Triton is imported here.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from kvproof.harness.isolation.pool import WorkerLost, run_on_pool
from kvproof.harness.records.events import AnyEvent, HarnessFault
from kvproof.harness.records.sweep_events import Ceilings, Cell, SweepDevice, SweepStarted
from kvproof.harness.records.sweep_results import CellKey, case_key, ceilings, latest
from kvproof.harness.sweep.device_worker import DeviceSlot, DeviceWorker, SweepProcess
from kvproof.harness.sweep.messages import (
    Answer,
    Check,
    Fault,
    Judged,
    Limits,
    Measure,
    MeasureCeilings,
    Rest,
)
from kvproof.harness.sweep.plan import Plan, SweepOptions, make_plan
from kvproof.harness.sweep.verdict import Planned, conclude

_CEILINGS = 180.0
"""Seconds that the limits of a device may take."""

_MOST = {"cpu": 4, "cuda": 16}
"""Processes per device that check side by side; beyond that they wait for each other."""

_REST = 30.0
"""Seconds in which a worker gives memory back."""

_CHECKED = 1.3
"""Seconds of one of 16 processes for one cell on an H200; most of it is compilation: 3 of decode
and prefill, 0.3 to 0.7 of kernels that move bytes."""

_TIMED = 0.3
"""Seconds of one cell on the same card; 0.5 of decode, 0.2 of most."""

_CHECKING = 0.6
"""Share of a budget in which cells are checked; the rest is for their times."""

_GOLDEN = 0.618
"""Its multiples spread over 0 to 1: the first cells in this order are of all kinds."""

_AFFINITY = hasattr(os, "sched_getaffinity")
"""Not everywhere; it knows of the cores that this process may use."""

MakeProcess = Callable[[DeviceSlot, Path], DeviceWorker]
"""A worker for a slot, and the file that it logs to."""

Progress = Callable[[str, int, int], None]
"""Current work, cells done, cells planned."""


class _Task(NamedTuple):
    """A cell, and the result of its check, if it is to be timed."""

    planned: Planned
    checked: Cell | None = None
    again: bool = False

    @property
    def case(self) -> tuple[str, str]:
        """Key of the shared inputs."""
        return self.planned.kernel, case_key(self.planned.case)


class _Found(NamedTuple):
    task: _Task
    result: Cell | Fault
    crowded: bool = False
    """The memory was shared with others and did not suffice."""


def run_sweep(
    options: SweepOptions,
    *,
    write: Callable[[AnyEvent], None],
    progress: Progress,
    logs: Path,
    earlier: Sequence[AnyEvent] = (),
    make: MakeProcess = SweepProcess,
) -> dict[CellKey, Cell]:
    """Run all cells and write the events; the cells as they ended.

    `earlier` are events of the same sweep, interrupted: its cells do not run again. `logs` is a
    folder for the output of the workers. Raises UsageError if the options fit no cell, or no worker
    starts.
    """
    lead = make(DeviceSlot(options.device, options.devices[0]), logs / "lead-0.log")
    try:
        progress("starting", 0, 0)
        plan = make_plan(lead, options)
        return _Sweep(plan, lead, logs, write, progress, earlier, make).run()
    finally:
        lead.end()


class _Sweep:
    def __init__(
        self,
        plan: Plan,
        lead: DeviceWorker,
        logs: Path,
        write: Callable[[AnyEvent], None],
        progress: Progress,
        earlier: Sequence[AnyEvent],
        make: MakeProcess,
    ) -> None:
        self.make = make
        self.plan, self.options = plan, plan.options
        self.logs = logs
        self.leads = [lead]
        """One process of each device; it plans, and does alone what needs all of the memory."""
        self.crew: list[DeviceWorker] = []
        """All processes, those of `leads` first."""
        self.write, self.progress = write, progress
        self.cells = latest(earlier)
        self.limits = ceilings(earlier)
        self.timing = self.options.timing and plan.device == "cuda"
        self.faults: set[tuple[str, str]] = set()
        self.begun = time.monotonic()
        self.until = float("inf")
        """When no further cell begins."""

    def run(self) -> dict[CellKey, Cell]:
        """Check and time, conclude; a worker that does not start any more ends the sweep early."""
        try:
            self.leads += self._other_leads()
            self.crew = self._crew(self.leads)
            self._begin(self.leads)
            for part in self._parts():
                self._allot(_CHECKING if self.timing else 1.0)
                self._check(part)
                if self.timing:
                    self._allot(1.0)
                    self._time(part)
        except WorkerLost as lost:
            self._fault("starting a worker", str(lost), lost.log)
        except KeyboardInterrupt:
            self._conclude()
            raise
        finally:
            for process in self.crew or self.leads:
                process.end()
        self._conclude()
        return self.cells

    def _conclude(self) -> None:
        plan = self.plan
        self.write(conclude(plan.planned, self.cells, plan.providers, timed=self.timing))

    def _allot(self, share: float) -> None:
        """Let cells begin within a share of the budget."""
        if self.options.budget:
            self.until = self.begun + share * self.options.budget

    def _expected(self, workers: int) -> float:
        """Seconds that it takes on a card like an H200; 0: not known, as without timing."""
        if not self.timing:
            return 0.0
        planned = [each for each in self.plan.planned if each.key not in self.cells]
        timed = sum(each.timed for each in planned)
        return len(planned) * _CHECKED / workers + timed * _TIMED

    def _other_leads(self) -> list[DeviceWorker]:
        """One process on each further device, started for its facts."""
        rest = self.options.devices[1:] if self.plan.device == "cuda" else ()
        found = []
        for index in rest:
            process = self.make(DeviceSlot("cuda", index), self.logs / f"lead-{index}.log")
            found.append(process)
            process.start()
        return found

    def _begin(self, leads: Sequence[DeviceWorker]) -> None:
        plan = self.plan
        self.write(
            SweepStarted(
                device=plan.device,
                devices=[_device(process) for process in leads],
                versions=plan.versions,
                kernels=plan.kernels,
                providers=plan.providers,
                cells=list(plan.sets),
                seeds=list(self.plan.seeds),
                timing=self.timing,
                expected=round(self._expected(self._width(leads) * len(leads))),
                budget=self.options.budget,
            )
        )
        for event in plan.skipped:
            self.write(event)

    def _parts(self) -> list[list[Planned]]:
        """One kernel after the other if there is timing, so that a sweep cut short has times.

        A budget is for all kernels: the cells in the order of `_run` are spread over them.
        """
        if not self.timing or self.options.budget:
            return [self.plan.planned]
        return [list(same) for _, same in groupby(self.plan.planned, lambda each: each.kernel)]

    def _check(self, planned: Sequence[Planned]) -> None:
        tasks = [task for task in self._tasks(planned) if task.planned.key not in self.cells]
        crowded = self._run("checking", self.crew, tasks, self._checked)
        self._alone("checking alone", crowded, self._checked)

    def _tasks(self, planned: Sequence[Planned]) -> Iterator[_Task]:
        numbers: Counter[tuple[str, str]] = Counter()
        for each in planned:
            place = (each.kernel, each.provider)
            yield _Task(each, again=numbers[place] % self.plan.again == 0)
            numbers[place] += 1

    def _alone(
        self,
        doing: str,
        tasks: Sequence[_Task],
        work: Callable[[DeviceWorker, _Task], _Found],
    ) -> None:
        """Do what lacked memory, one process on a device; the others end."""
        for process in self.crew[len(self.leads) :] if tasks else ():
            process.end()
        self._run(doing, self.leads, tasks, work, alone=True)

    def _time(self, planned: Sequence[Planned]) -> None:
        for process in self.leads:
            if process.slot.index not in self.limits:
                self._limits(process)
        checked = ((each, self.cells.get(each.key)) for each in planned)
        tasks = [
            _Task(each, cell)
            for each, cell in checked
            if each.timed and cell is not None and cell.outcome == "ok" and not cell.samples
        ]
        crowded = self._run("timing", self.leads, tasks, self._timed)
        self._alone("timing alone", crowded, self._timed)

    def _crew(self, leads: Sequence[DeviceWorker]) -> list[DeviceWorker]:
        """Several processes on each device, side by side; those that plan and time among them."""
        more = [
            self.make(
                DeviceSlot(self.plan.device, process.slot.index),
                self.logs / f"check-{process.slot.index}-{number}.log",
            )
            for number in range(1, self._width(leads))
            for process in leads
        ]
        return [*leads, *more]

    def _width(self, leads: Sequence[DeviceWorker]) -> int:
        """Processes of a device."""
        cores = len(os.sched_getaffinity(0)) if _AFFINITY else os.cpu_count() or 1
        usual = min(_MOST[self.plan.device], cores // len(leads))
        return self.options.workers or max(1, usual)

    def _run(
        self,
        doing: str,
        workers: Sequence[DeviceWorker],
        tasks: Sequence[_Task],
        work: Callable[[DeviceWorker, _Task], _Found],
        *,
        alone: bool = False,
    ) -> list[_Task]:
        """Do the tasks and record their results; those without enough memory are left.

        All providers of a case come to one process, which makes its inputs only once.
        """
        crowded = []
        cases = [list(same) for _, same in groupby(tasks, lambda task: task.case)]
        if self.options.budget:
            order = sorted(range(len(cases)), key=lambda place: place * _GOLDEN % 1)
            cases = [cases[place] for place in order]

        def each(process: DeviceWorker, same: list[_Task]) -> Iterator[_Found]:
            return (work(process, task) for task in same if time.monotonic() < self.until)

        with closing(run_on_pool(workers[: len(cases)], cases, each, done=_rest)) as results:
            for done, found in enumerate(results, 1):
                self.progress(f"{doing} {found.task.planned.kernel}", done, len(tasks))
                if found.crowded and not alone:
                    crowded.append(found.task)
                else:
                    self._record(found.task.planned, found.result)
        return crowded

    def _record(self, planned: Planned, result: Cell | Fault) -> None:
        if isinstance(result, Fault):
            self._fault(planned.name, result.message, result.traceback)
        else:
            self.cells[planned.key] = result
            self.write(result)

    def _checked(self, process: DeviceWorker, task: _Task) -> _Found:
        kernel, provider, case, _ = task.planned
        request = Check(
            kernel=self.plan.kernel_specs[kernel],
            provider=self.plan.provider_specs[provider],
            case=dict(case),
            seeds=list(self.plan.seeds),
            again=task.again,
        )
        return self._judged(process, task, request)

    def _timed(self, process: DeviceWorker, task: _Task) -> _Found:
        kernel, provider, case, _ = task.planned
        request = Measure(
            kernel=self.plan.kernel_specs[kernel],
            provider=self.plan.provider_specs[provider],
            case=dict(case),
            seed=max(self.plan.seeds) + 1,
        )
        found = self._judged(process, task, request)
        if isinstance(found.result, Fault) or task.checked is None:
            return found
        return found._replace(result=_merged(task.checked, found.result))

    def _judged(self, process: DeviceWorker, task: _Task, request: Check | Measure) -> _Found:
        """Run a cell in the process; a death of the process is an outcome of the cell."""
        try:
            answer = process.ask(request, self.options.timeout)
        except WorkerLost as lost:
            if lost.kind == "start":
                raise
            return _Found(task, self._lost(process, task, lost))
        assert isinstance(answer, Fault | Judged)
        if answer.broken:
            process.end()
        if isinstance(answer, Fault):
            return _Found(task, answer)
        return _Found(task, self._owned(process, task, answer.cell), answer.crowded)

    def _lost(self, process: DeviceWorker, task: _Task, lost: WorkerLost) -> Cell:
        cell = Cell(
            kernel=task.planned.kernel,
            provider=task.planned.provider,
            case=dict(task.planned.case),
            outcome="timeout" if lost.kind == "timeout" else "crash",
            reason=str(lost),
            log=lost.log,
            seconds=self.options.timeout if lost.kind == "timeout" else 0.0,
        )
        return self._owned(process, task, cell)

    def _owned(self, process: DeviceWorker, task: _Task, cell: Cell) -> Cell:
        """Add the provider and the place, which the worker does not know."""
        provider = self.plan.provider(task.planned.provider)
        return replace(
            cell,
            provider=provider.name,
            provider_version=provider.version,
            peer=provider.peer,
            device=process.slot.index,
        )

    def _limits(self, process: DeviceWorker) -> None:
        index = process.slot.index
        self.progress(f"measuring the ceilings of device {index}", 0, 0)
        try:
            answer: Answer = process.ask(MeasureCeilings(), _CEILINGS)
        except WorkerLost as lost:
            answer = Fault(message=str(lost), traceback=lost.log)
        if isinstance(answer, Limits):
            self.limits[index] = answer.values
            self.write(Ceilings(device=index, values=answer.values))
        elif isinstance(answer, Fault):
            self._fault("measuring the ceilings", answer.message, answer.traceback)

    def _fault(self, where: str, message: str, traceback: str) -> None:
        """Record a fault of kvproof, or of a kernel's description, once and not for every cell."""
        kind = (where.partition(" ")[0], message.partition(":")[0])
        if kind not in self.faults:
            self.faults.add(kind)
            self.write(HarnessFault(where=f"sweep: {where}", message=message, traceback=traceback))


def _rest(process: DeviceWorker) -> None:
    """Keep a process for the next kernel, without its inputs."""
    with suppress(WorkerLost):  # the next cell starts another
        process.ask(Rest(), _REST)


def _device(process: DeviceWorker) -> SweepDevice:
    facts = {name: str(value) for name, value in process.facts.items()}
    return SweepDevice(index=process.slot.index, name=facts.pop("name", ""), facts=facts)


def _merged(checked: Cell, timed: Cell) -> Cell:
    """One cell from the results of its check and of its timing."""
    seconds = round(checked.seconds + timed.seconds, 3)
    if timed.outcome != "ok":
        reason = f"when it was timed: {timed.reason}"
        return replace(timed, reason=reason, seconds=seconds, errors=checked.errors)
    return replace(
        checked,
        samples=timed.samples,
        sets=timed.sets,
        clocks=timed.clocks,
        why_eager=timed.why_eager,
        cost=timed.cost,
        device=timed.device,
        seconds=seconds,
    )
