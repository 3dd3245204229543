"""A sweep that ends: how long it takes, what its budget leaves out, what an interruption does."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

pytest.importorskip("torch", reason="the extra gpu is not installed")
pytest.importorskip("triton", reason="the extra gpu is not installed")

from kvproof.harness.records.events import AnyEvent
from kvproof.harness.records.sweep_events import Cell, SweepConcluded, SweepStarted
from kvproof.harness.records.sweep_results import latest
from kvproof.harness.sweep import plan, runner, worker_main
from kvproof.harness.sweep.device_worker import DeviceSlot
from kvproof.harness.sweep.messages import (
    Answer,
    Check,
    DeviceKind,
    Fault,
    Judged,
    Limits,
    Measure,
    MeasureCeilings,
    Request,
)
from kvproof.harness.sweep.plan import SweepOptions
from kvproof.harness.sweep.runner import Progress, run_sweep
from kvproof.harness.sweep.worker_main import SweepWorker
from kvproof.kernels.spec import Provider
from kvproof.reports.render.live import describe
from kvproof.suites.tests.sweep import sweep_toys

TOYS = "kvproof.suites.tests.sweep.sweep_toys"


NAME = "torch"
PLAIN = f"{__name__}:torch"


def torch() -> Provider:
    return sweep_toys.provider(sweep_toys.right, name=NAME)


class Clock:
    """Seconds pass only while a worker works."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


class Here:
    """A worker in this process, which takes a second for a cell and invents times of a GPU."""

    device: DeviceKind = "cuda"

    def __init__(self, slot: DeviceSlot, log: Path, clock: Clock) -> None:
        self.slot, self.clock, self.worker = slot, clock, SweepWorker("cpu")
        self.facts: dict[str, str | int | float | bool] = {}

    def ask(self, request: Request, timeout: float) -> Answer:
        if isinstance(request, MeasureCeilings):
            return Limits(values={})
        if not isinstance(request, Check | Measure):
            return self.worker.answer(request)
        self.clock.now += 1
        if isinstance(request, Check):
            return self.worker.answer(request)
        cell = Cell(kernel="toy", provider="", case=request.case, outcome="ok")
        return Judged(cell=replace(cell, samples=[1e-6] * 3))

    def start(self) -> None:
        pass

    def end(self) -> None:
        pass

    def kill(self) -> None:
        pass


def swept(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    events: list[AnyEvent] | None = None,
    progress: Progress = lambda *_: None,
    **options: object,
) -> list[AnyEvent]:
    """The events of a sweep of toys with times."""
    found: list[AnyEvent] = [] if events is None else events
    clock = Clock()
    monkeypatch.setattr(runner, "time", clock)
    worker_main.provider_of.cache_clear()
    chosen = {"kernels": (f"{TOYS}:KERNEL",), "providers": (f"{TOYS}:good", PLAIN), "workers": 1}
    run_sweep(
        SweepOptions(**{**chosen, **options}),
        write=found.append,
        progress=progress,
        logs=folder,
        make=lambda slot, log: Here(slot, log, clock),
    )
    assert not [event for event in found if isinstance(event, Fault)]
    return found


def verdict(events: list[AnyEvent]) -> SweepConcluded:
    return next(event for event in events if isinstance(event, SweepConcluded))


def timed(events: list[AnyEvent], provider: str) -> list[Cell]:
    cells = latest(events).values()
    return [cell for cell in cells if cell.provider == provider and cell.samples]


def test_the_baseline_is_timed_in_one_cell_of_a_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = swept(tmp_path, monkeypatch)
    assert (len(timed(events, "good")), len(timed(events, "torch"))) == (6, 1)
    assert verdict(events).missing == []
    assert verdict(events).verdict == "pass"


def test_alone_or_as_a_peer_the_baseline_is_timed_in_every_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(timed(swept(tmp_path, monkeypatch, providers=(PLAIN,)), "torch")) == 6
    monkeypatch.setattr(plan, "BASELINE", PLAIN)
    monkeypatch.setattr(f"{__name__}.NAME", PLAIN)
    compared = swept(tmp_path, monkeypatch, providers=(f"{TOYS}:good",), peers=(PLAIN,))
    assert len(timed(compared, PLAIN)) == 6


def test_a_budget_ends_the_sweep_which_names_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 8 s the first 4.8 are for checks: five begin, and three of these cells are timed."""
    found = verdict(swept(tmp_path, monkeypatch, budget=8.0, providers=(f"{TOYS}:good",)))
    assert found.verdict == "inconclusive"
    assert "1 of 6 cells did not run (toy 1)" in found.reason
    assert "2 of 6 cells were not timed (toy 2)" in found.reason


def test_within_a_budget_cells_of_all_kinds_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"providers": (f"{TOYS}:good",), "timing": False}
    some = latest(swept(tmp_path, monkeypatch, budget=3.0, **options)).values()
    assert len(some) == 3
    assert {cell.case["page"] for cell in some} == {2, 4}
    assert {cell.case["rows"] for cell in some} == {1, 3, 8}


def test_the_kernels_share_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = (f"{TOYS}:KERNEL", f"{__name__}:OTHER")
    events = swept(tmp_path, monkeypatch, kernels=kernels, providers=(f"{__name__}:both",),
                   budget=8.0)  # fmt: skip
    seen = {cell.kernel for cell in latest(events).values()}
    assert seen == {"toy", "other"}


def test_an_interrupted_sweep_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[AnyEvent] = []

    def progress(doing: str, done: int, _: int) -> None:
        if doing.startswith("checking") and done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(tmp_path, monkeypatch, events=events, progress=progress)
    found = verdict(events)
    assert len(found.missing) == 8 + 2
    assert "8 of 12 cells did not run (toy 8)" in found.reason


@pytest.mark.parametrize(
    ("budget", "words"), [(0.0, ": about "), (2.0, "the budget of 2.00 s ends it")]
)
def test_it_says_at_the_start_how_long_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float, words: str
) -> None:
    events = swept(tmp_path, monkeypatch, budget=budget)
    begun = next(event for event in events if isinstance(event, SweepStarted))
    assert begun.expected > 0
    assert words in describe(begun)[1]


OTHER = sweep_toys.replace(sweep_toys.KERNEL, name="other")


def both() -> Provider:
    entry = torch().kernels["toy"]
    return Provider(name="both", version="1", kernels={"toy": entry, "other": entry})
