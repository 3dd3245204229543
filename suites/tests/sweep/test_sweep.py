"""Every way in which a kernel can fail has its outcome, and none takes the sweep along."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("torch", reason="the extra gpu is not installed")
pytest.importorskip("triton", reason="the extra gpu is not installed")

from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import AnyEvent, HarnessFault, Skipped
from kvproof.harness.records.sweep_events import Cell, SweepConcluded
from kvproof.harness.records.sweep_results import latest, started
from kvproof.harness.sweep import worker_main
from kvproof.harness.sweep.device_worker import DeviceSlot, SweepProcess
from kvproof.harness.sweep.messages import Answer, Check, Fault, Judged, Request
from kvproof.harness.sweep.plan import SweepOptions
from kvproof.harness.sweep.runner import MakeProcess, run_sweep
from kvproof.suites.tests.sweep import sweep_toys

TOYS = "kvproof.suites.tests.sweep.sweep_toys"
KERNEL = f"{TOYS}:KERNEL"


class Swept(NamedTuple):
    events: list[AnyEvent]

    @property
    def verdict(self) -> SweepConcluded:
        (found,) = (event for event in self.events if isinstance(event, SweepConcluded))
        return found

    def cells(self, provider: str) -> list[Cell]:
        return [cell for cell in latest(self.events).values() if cell.provider == provider]


def swept(
    folder: Path, *providers: str, make: MakeProcess = SweepProcess, **options: object
) -> Swept:
    events: list[AnyEvent] = []
    chosen = {"kernels": (KERNEL,), "device": "cpu", "workers": 2, "seeds": (0, 1), "timeout": 20.0}
    chosen |= options
    earlier = chosen.pop("earlier", ())
    run_sweep(
        SweepOptions(providers=tuple(f"{TOYS}:{name}" for name in providers), **chosen),
        write=events.append,
        progress=lambda *_: None,
        logs=folder,
        earlier=earlier,
        make=make,
    )
    return Swept(events)


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    planted = [f"planted_{name}" for name in sweep_toys.FAULTS]
    return swept(tmp_path_factory.mktemp("logs"), "good", *planted, timeout=10.0)


EXPECTED = {
    "wrong_page": ("wrong", "out: relative error"),
    "writes_outside": ("wrong", "4 bytes were written outside of the tensors"),
    "reads_unrelated": ("wrong", "values are NaN, the first at [0, 0]"),
    "changes_inputs": ("wrong", "the input table was changed"),
    "leaves_unwritten": ("wrong", "are NaN, the first at [0, 0] is nan, expected"),
    "forgets": ("wrong", "when launched again: out: relative error 2.00e+00"),
    "exits": ("crash", "the worker exited with code 7"),
    "hangs": ("timeout", "no answer within 10 s"),
    "raises": ("crash", "RuntimeError: no kernel image is available"),
    "leaves_the_table": ("crash", "IndexError: index 10"),
    "out_of_resources": ("out_of_resources", "shared memory: 274,432 asked for, 232,448 there"),
    "wavers": ("ok", ""),
}


@pytest.mark.nightly(reason="half a minute of kernels; outcomes are judged fast")
@pytest.mark.slow(reason="runs kernels in Triton's interpreter")
@pytest.mark.parametrize("fault", EXPECTED)
def test_a_planted_fault_has_its_outcome_and_only_there(faults: Swept, fault: str) -> None:
    outcome, reason = EXPECTED[fault]
    cells = faults.cells(fault)
    assert len(cells) == len(sweep_toys.cases())
    for cell in cells:
        if cell.case["rows"] == 3:
            assert (cell.outcome, reason in cell.reason) == (outcome, True), cell
        else:
            assert (cell.outcome, cell.reason) == ("ok", ""), cell


def test_every_planted_fault_is_expected_to_do_something() -> None:
    assert set(EXPECTED) == set(sweep_toys.FAULTS)


def test_nothing_is_missing_although_workers_died(faults: Swept) -> None:
    assert faults.verdict.missing == []
    assert faults.verdict.planned == 6 * (1 + len(EXPECTED))
    assert faults.verdict.verdict == "fail"
    assert {cell.outcome for cell in faults.cells("good")} == {"ok"}
    bad = 2 * (len(EXPECTED) - 1)
    assert faults.verdict.reason.startswith(f"{bad} of {faults.verdict.planned} cells")


def test_resources_come_with_their_numbers(faults: Swept) -> None:
    found = [c for c in faults.cells("out_of_resources") if c.resources]
    assert [(c.resources.name, c.resources.required, c.resources.limit) for c in found] == [
        ("shared memory", 274432, 232448)
    ] * 2


def test_repeatability_is_told_and_does_not_count(faults: Swept) -> None:
    reported = {cell.case["rows"]: cell.repeatable for cell in faults.cells("wavers")}
    assert reported == {1: True, 3: False, 8: True}


def test_a_crash_that_raised_has_its_traceback(faults: Swept) -> None:
    crashed = [cell for cell in faults.cells("raises") if cell.outcome == "crash"]
    assert all("in raises" in cell.log for cell in crashed)
    assert len(crashed) == 2


def test_errors_and_seeds_are_recorded(faults: Swept) -> None:
    for cell in faults.cells("good"):
        assert cell.seeds == [0, 1]
        assert cell.errors["out"].relative == 0.0
        assert cell.cost is not None
        assert cell.cost.read == 4 * cell.case["rows"] * cell.case["page"]
    assert {tuple(c.seeds) for c in faults.cells("wrong_page")} == {(0,), (0, 1)}


def test_peers_are_shown_and_do_not_count(tmp_path: Path) -> None:
    found = swept(tmp_path, "good", peers=(f"{TOYS}:planted_raises", f"{TOYS}:not_installed"))
    assert found.verdict.verdict == "pass"
    assert found.verdict.outcomes == {"good": {"ok": 6}, "raises": {"ok": 4, "crash": 2}}
    assert all(cell.peer for cell in found.cells("raises"))
    (skipped,) = (event for event in found.events if isinstance(event, Skipped))
    assert "the engine is not installed; pip install engine" in skipped.reason


@pytest.mark.nightly(reason="a sweep of its own; another one is in every run")
@pytest.mark.slow(reason="starts processes and waits for them")
def test_a_baseline_without_memory_fails_no_run_in_which_another_is_right(tmp_path: Path) -> None:
    found = swept(tmp_path, "good", "crowded_baseline")
    assert (found.verdict.verdict, found.verdict.reason) == ("pass", "")
    assert found.verdict.outcomes["torch"] == {"ok": 4, "out_of_resources": 2}
    for others in ((), ("planted_wrong_page",)):
        assert swept(tmp_path, "crowded_baseline", *others).verdict.verdict == "fail"


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="starts processes and waits for them")
def test_a_provider_that_ends_the_process_is_its_own_problem(tmp_path: Path) -> None:
    found = swept(tmp_path, "good", peers=(f"{TOYS}:ends_its_process",))
    assert found.verdict.verdict == "pass"
    (skipped,) = (event for event in found.events if isinstance(event, Skipped))
    assert skipped.part.endswith("ends_its_process")
    assert skipped.reason == "when it is imported: the worker exited with code 5"
    with pytest.raises(UsageError, match=r"ends_its_process' cannot be used: .* code 5"):
        swept(tmp_path, "ends_its_process")


def test_a_provider_under_judgement_must_be_installed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the engine is not installed; pip install engine"):
        swept(tmp_path, "not_installed")


@pytest.mark.nightly(reason="others of its kind run before each merge")
@pytest.mark.slow(reason="starts processes and waits for them")
def test_unsupported_is_no_failure_but_nothing_supported_is_no_pass(tmp_path: Path) -> None:
    seldom = swept(tmp_path, "seldom")
    assert seldom.verdict.verdict == "pass"
    assert seldom.verdict.outcomes == {"seldom": {"ok": 2, "unsupported": 4}}
    assert {c.reason for c in seldom.cells("seldom")} == {"", "more than one row"}
    never = swept(tmp_path, "never")
    assert never.verdict.verdict == "inconclusive"
    assert never.verdict.reason == "never supports no cell of toy: not on this machine"


@pytest.mark.nightly(reason="a sweep of its own; another one is in every run")
@pytest.mark.slow(reason="starts processes and waits for them")
def test_what_an_earlier_part_has_judged_does_not_run_again(tmp_path: Path) -> None:
    first = swept(tmp_path, "planted_wrong_page", where="rows=1,3")
    kept = [event for event in first.events if not isinstance(event, SweepConcluded)]
    second = swept(tmp_path, "planted_wrong_page", earlier=kept)
    again = [event.case["rows"] for event in second.events if isinstance(event, Cell)]
    assert again == [8, 8]
    assert second.verdict.outcomes == {"wrong_page": {"ok": 4, "wrong": 2}}
    assert second.verdict.verdict == "fail"


class LosesItsDevice(SweepProcess):
    """A worker whose first cell costs it the device; until it is replaced it must not be asked."""

    def __init__(self, slot: DeviceSlot, log: Path, *, answer: Answer) -> None:
        super().__init__(slot, log)
        self.answer, self.checked, self.lost, end = answer, 0, False, self.end

        def replaced() -> None:
            self.lost = False
            end()

        self.end = replaced

    def ask(self, request: Request, timeout: float) -> Answer:
        assert not self.lost
        if isinstance(request, Check):
            self.checked += 1
            if self.checked == 1:
                self.lost = True
                return self.answer
        return super().ask(request, timeout)


CRASH = Cell(
    kernel="toy", provider="good", case=dict(sweep_toys.cases()[0]), outcome="crash", reason="lost"
)


@pytest.mark.slow(reason="starts processes and waits for them")
@pytest.mark.parametrize(
    "answer",
    [Judged(cell=CRASH, broken=True), Fault(message="lost", traceback="", broken=True)],
    ids=["while the kernel runs", "while its answer is checked"],
)
def test_a_lost_device_costs_one_cell(tmp_path: Path, answer: Answer) -> None:
    found = swept(tmp_path, "good", make=partial(LosesItsDevice, answer=answer), workers=1)
    outcomes = [cell.outcome for cell in found.cells("good")]
    assert outcomes.count("ok") == len(sweep_toys.cases()) - 1
    assert found.verdict.verdict == ("fail" if isinstance(answer, Judged) else "inconclusive")


def test_a_worker_says_that_it_lost_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_main, "_usable", lambda: False)
    case = dict(sweep_toys.cases()[0])
    check = Check(kernel=KERNEL, provider=f"{TOYS}:broken", case=case, seeds=[0], again=False)
    for device, lost in (("cpu", False), ("cuda", True)):
        answer = worker_main.SweepWorker(device).answer(check)
        assert isinstance(answer, Fault)
        assert answer.broken == lost


def test_a_broken_reference_is_nobodys_fault_and_no_pass(tmp_path: Path) -> None:
    found = swept(tmp_path, "good", kernels=(f"{TOYS}:BROKEN",))
    (fault,) = (event for event in found.events if isinstance(event, HarnessFault))
    assert (
        fault.message == "ValueError: the reference of toy gives ['other'], its outputs are ['out']"
    )
    assert found.verdict.verdict == "inconclusive"
    assert len(found.verdict.missing) == 6


def test_where_there_is_no_gpu_triton_interprets_although_nobody_said_so(tmp_path: Path) -> None:
    events: list[AnyEvent] = []
    run_sweep(
        SweepOptions(
            kernels=("kv_fill",),
            providers=("kvproof",),
            cells=("cpu",),
            where="page=16 heads=2 cache=int8 dtype=bf16 layout=NHD to=slots batch=ragged",
            timing=False,
        ),
        write=events.append,
        progress=lambda *_: None,
        logs=tmp_path,
    )
    assert Swept(events).verdict.verdict == "pass"
    assert Swept(events).verdict.planned > 0


def test_what_is_started_is_described(tmp_path: Path) -> None:
    found = swept(tmp_path, "good", where="page=2", cells=("cpu", "published"))
    begun = started(found.events)
    assert begun is not None
    (kernel,) = begun.kernels
    assert (kernel.name, kernel.cells, kernel.axes["rows"]) == ("toy", 3, [1, 3, 8])
    assert [(p.name, p.version, p.peer) for p in begun.providers] == [("good", "1.0", False)]
    assert (begun.device, begun.cells, begun.timing) == ("cpu", ["cpu", "published"], False)
    assert begun.versions["torch"]
    assert found.verdict.planned == 3


@pytest.mark.slow(reason="starts processes and waits for them")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "pages=2"}, "'pages' is not an axis"),
        ({"where": "page=7"}, "page = '7' is the value of no cell"),
        ({"cells": ("cpus",)}, "'cpus' is no set of cells"),
        ({"cells": ("random:x",)}, "'random:x' is no set of cells"),
        ({"kernels": ("no_such",)}, "kernel 'no_such' cannot be used"),
        ({"kernels": (f"{TOYS}:MISTYPED",)}, "kind = 'evn', legal: even, odd"),
        ({"device": "cuda", "devices": (99,)}, "no worker starts"),
        ({"kernels": (KERNEL, f"{TOYS}:BROKEN")}, "two kernels are called 'toy'"),
        ({"providers": (f"{TOYS}:good", f"{TOYS}:good_too")}, "two providers are called 'good'"),
        ({"providers": (f"{TOYS}:nobody",)}, "'kvproof.suites.tests.sweep.sweep_toys:nobody'"),
    ],
)
def test_what_cannot_be_swept_is_said_before_anything_runs(
    tmp_path: Path, options: dict[str, object], message: str
) -> None:
    events: list[AnyEvent] = []
    whole = {"kernels": (KERNEL,), "providers": (f"{TOYS}:good",), "device": "cpu", **options}
    with pytest.raises(UsageError, match=message):
        run_sweep(
            SweepOptions(**whole), write=events.append, progress=lambda *_: None, logs=tmp_path
        )
    assert events == []
