"""Benchmarks of stores that engines share: what is measured, and what fails."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from kvproof.harness.adapters.reference import target as reference
from kvproof.harness.bench import tier_job
from kvproof.harness.bench import tiers as bench_tiers
from kvproof.harness.bench.tiers import measure_tiers
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.worker_main import load
from kvproof.harness.records.bench_events import TIER_COPIES, TierSample, TierSummary
from kvproof.harness.records.events import AnyEvent, Skipped
from kvproof.reports.charts import tiers
from kvproof.reports.render.html import render_html
from kvproof.reports.render.markdown import render_markdown
from kvproof.suites.tests.bench.bench_kit import REFERENCE
from kvproof.suites.tests.reports.report_kit import recorded_run, with_events

SIZE = 1 << 16
SUMMARY = TierSummary(
    target="a", operation="store", object_bytes=1 << 20, clients=4, repetitions=5,
    copies=1, objects_per_second=1000, low=900, high=1100, wall_objects_per_second=800,
    of_memcpy=0.8, of_memcpy_low=0.7, of_memcpy_high=0.9,
    of_shared_memcpy=0.95, of_shared_memcpy_low=0.9, of_shared_memcpy_high=0.99,
    peer="b", ratio=2.0, ratio_low=1.5, ratio_high=2.5,
)  # fmt: skip


class Here:
    """Runs jobs in this process; `spoiled` changes the answers of turns."""

    def __init__(self, name: str, factory: str, spoiled: dict[str, Any] | None = None) -> None:
        self.name, self.factory, self._spoiled = name, factory, spoiled or {}

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        assert timeout > 0
        answer: dict[str, Any] = load(job)(arguments)
        return {**answer, **self._spoiled} if job.endswith(":turn") else answer


def measured(
    *runners: Here, clients: tuple[int, ...] = (1, 2), earlier: Sequence[TierSample] = ()
) -> tuple[list[AnyEvent], list[str]]:
    events: list[AnyEvent] = []
    lost: list[str] = []

    def gone(runner: Here, error: TargetDied) -> None:
        lost.append(f"{runner.name}: {error}")

    measure_tiers(
        runners, repetitions=2, peer="", reference="reference", write=events.append,
        progress=lambda text: None, lost=gone, sizes=(SIZE,), clients=clients, batch=2 * SIZE,
        earlier=earlier,
    )  # fmt: skip
    return events, lost


@pytest.fixture(autouse=True)
def _one_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis is not on every machine."""
    monkeypatch.setattr(reference, "TIERS", {"": reference.TIERS[""]})


def test_a_store_whose_program_is_missing_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    redis = "kvproof.harness.adapters.reference.tier_redis"
    monkeypatch.setattr(reference, "TIERS", {**reference.TIERS, "redis": redis})
    monkeypatch.setenv("PATH", "")
    events, lost = measured(Here("reference", REFERENCE), clients=(1,))
    assert not lost
    (skipped,) = [e for e in events if isinstance(e, Skipped)]
    assert skipped.part == "bench tiers of reference redis"
    assert skipped.reason == "neither valkey-server nor redis-server is on the PATH"
    assert {e.target for e in events if isinstance(e, TierSummary)} == {"reference"}


def test_each_operation_is_measured_beside_a_plain_copy() -> None:
    other = "kvproof.harness.adapters.transformers.target:make_target"
    events, lost = measured(Here("reference", REFERENCE), Here("other", other))
    assert not lost
    assert [e.part for e in events if isinstance(e, Skipped)] == ["bench tiers of other"]
    samples = [e for e in events if isinstance(e, TierSample)]
    assert {e.operation for e in samples} == set(tier_job.OPERATIONS)
    assert all(e.cpu_seconds > 0 and e.objects == 2 * e.clients for e in samples)
    found = [e for e in events if isinstance(e, TierSummary)]
    assert len(found) == 2 * len(tier_job.OPERATIONS)
    assert {e.operation for e in found if e.of_memcpy} == {"store", "retrieve"}
    _its_copy_is_paired(samples, found)
    assert {e.operation: e.copies for e in found if e.copies} == {"store": 1, "retrieve": 1}
    assert not tier_job._RUNNING


def _its_copy_is_paired(samples: Sequence[TierSample], found: Sequence[TierSummary]) -> None:
    seconds = {(e.operation, e.clients, e.repetition): e.cpu_seconds for e in samples}
    shown = {(e.operation, e.clients): e.of_shared_memcpy for e in found if e.of_shared_memcpy}
    assert shown.keys() == {(name, n) for name in ("store", "retrieve") for n in (1, 2)}
    for (name, count), ratio in shown.items():
        copy = {"store": "copy_in", "retrieve": "copy_out"}[name]
        of_turn = [seconds[copy, count, i] / seconds[name, count, i] for i in range(2)]
        assert min(of_turn) <= ratio <= max(of_turn)


def test_shared_memory_is_the_yardstick_of_stores_that_lie_there() -> None:
    through_a_socket = SimpleNamespace(copies={"store": 3, "retrieve": 5})
    in_memory = SimpleNamespace(copies={"store": 1, "retrieve": 1})
    operations = tier_job._Tier.operations.fget
    assert operations is not None
    assert operations(through_a_socket) == ["memcpy", "store", "lookup", "retrieve"]
    assert operations(in_memory) == list(tier_job.OPERATIONS)


def test_a_cell_without_room_in_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_tiers, "_available", lambda: bench_tiers._RESERVE + 10 * SIZE)
    events, lost = measured(Here("reference", REFERENCE), clients=(1, 4))
    assert not lost
    (skipped,) = [e for e in events if isinstance(e, Skipped)]
    assert skipped.part == "bench tiers of 64 KiB with 4 engines"
    assert {e.clients for e in events if isinstance(e, TierSummary)} == {1}


def test_cells_of_an_interrupted_run_are_not_measured_again() -> None:
    events, _ = measured(Here("reference", REFERENCE), clients=(1,))
    kept = [e for e in events if isinstance(e, TierSample)]
    again, _ = measured(Here("reference", REFERENCE), clients=(1,), earlier=kept)
    assert not any(isinstance(e, TierSample) for e in again)
    assert again == [e for e in events if isinstance(e, TierSummary)]


@pytest.mark.parametrize("operation", ["store", "retrieve"])
def test_an_engine_that_moves_less_is_no_winner(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    timed = tier_job._Tier.timed

    def fewer(tier: Any, count: int, name: str) -> dict[str, Any]:
        answer = timed(tier, count, name)
        return {**answer, "objects": answer["objects"] - (name == operation)}

    monkeypatch.setattr(tier_job._Tier, "timed", fewer)
    events, lost = measured(Here("reference", REFERENCE), clients=(1,))
    assert lost == [f"reference: {operation}: fewer than the 2 objects"]
    assert not any(isinstance(e, TierSummary) for e in events)
    assert not tier_job._RUNNING


def test_a_row_states_bytes_of_copies_and_objects_of_lookups() -> None:
    cells = tiers.row(SUMMARY)
    assert cells[2:5] == ("1 MiB", "4", "1.05 GB/s")
    assert cells[7] == "1"
    assert cells[8:10] == ("0.800 (0.700 to 0.900)", "0.950 (0.900 to 0.990)")
    assert cells[10] == "2.00 times b (1.50 to 2.50)"
    lookup = replace(SUMMARY, operation="lookup", of_memcpy=None)
    assert tiers.row(lookup)[4] == "1.00 k objects/s"
    assert tiers.measured([SUMMARY, *(replace(SUMMARY, operation=e) for e in TIER_COPIES)]) == [
        SUMMARY
    ]


def test_all_reports_show_the_figures() -> None:
    run = recorded_run()
    shown = with_events(run, [*run.events, SUMMARY])
    for text in (render_html(shown), render_markdown(shown)):
        assert tiers.TITLE in text
        assert "2.00 times b (1.50 to 2.50)" in text
