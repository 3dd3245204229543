"""Benchmarks of schedulers around a model that is not there: what is measured, and what fails."""

from __future__ import annotations

import gc
import itertools
import time
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from kvproof.harness.adapters.reference.loop import SchedulerLoop, make_loop
from kvproof.harness.bench.cases import APART, LARGE_GROWTH, BenchOptions
from kvproof.harness.bench.scheduler_process import Bench, Cell, measured
from kvproof.harness.bench.schedulers import measure_schedulers
from kvproof.harness.cli.actions.bench import growth_sizes
from kvproof.harness.errors import TargetDied
from kvproof.harness.isolation.worker_main import load
from kvproof.harness.records.bench_events import SchedulerPoint
from kvproof.harness.records.events import AnyEvent, Skipped
from kvproof.reports.charts import schedulers
from kvproof.reports.render.html import render_html
from kvproof.reports.render.markdown import render_markdown
from kvproof.suites.tests.bench.bench_kit import REFERENCE
from kvproof.suites.tests.reports.report_kit import recorded_run, with_events

CELL = Cell(4, 64, 16, 0.02, 20)
POINT = SchedulerPoint(
    target="a", requests=4096, prompt_tokens=1024, block_size=16, num_blocks=9, step_seconds=0.02,
    steps=300, finished=5, simulated_seconds=6.5, share=0.25, p50_us=3000, p99_us=9000,
    longest_us=9500, drift=1.01, bytes_per_waiting=16_000,
)  # fmt: skip


class Here:
    """Runs jobs in this process."""

    def __init__(self, name: str, factory: str) -> None:
        self.name, self.factory = name, factory

    def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
        assert timeout > 0
        if self.factory == "dies":
            raise TargetDied("crash", "it is gone")
        answer: dict[str, Any] = load(job)(arguments)
        return answer


def test_a_cell_runs_in_a_process_and_others_are_skipped_or_lost() -> None:
    events: list[AnyEvent] = []
    lost: list[str] = []
    other = Here("other", "kvproof.harness.adapters.transformers.target:make_target")
    measure_schedulers(
        [Here("reference", REFERENCE), other, Here("third", "dies")],
        write=events.append,
        progress=lambda text: None,
        lost=lambda runner, error: lost.append(runner.name),
        cells=(CELL, CELL._replace(requests=2)),
    )
    assert lost == ["third"]
    assert [e.part for e in events if isinstance(e, Skipped)] == ["bench scheduler of other"]
    points = [e for e in events if isinstance(e, SchedulerPoint)]
    assert [e.requests for e in points] == [4, 2]
    assert all(0 < e.share < 1 and e.steps >= 20 and e.finished >= e.requests for e in points)
    assert all(0 < e.p50_us <= e.p99_us <= e.longest_us for e in points)
    assert all(0 < (e.longest_call_us or 0) < e.longest_us and not e.cut for e in points)
    assert all(e.p9999_us is None and e.bytes_per_waiting > 64 * 8 for e in points)


def test_the_turn_in_the_middle_is_kept() -> None:
    class Turns(Here):
        steps: ClassVar = iter([(30.0, 7), (10.0, 8), (20.0, 9), (5.0, 10)])

        def run_job(self, job: str, arguments: dict[str, Any], *, timeout: float) -> dict[str, Any]:
            p50, finished = next(self.steps)
            answer = super().run_job(job, arguments, timeout=timeout)
            return {**answer, "p50_us": p50, "finished": finished}

    events: list[AnyEvent] = []
    measure_schedulers(
        [Turns("reference", REFERENCE)], write=events.append, progress=len, lost=lambda *_: None,
        cells=(CELL, CELL._replace(requests=2, seconds=0.5)),
    )  # fmt: skip
    one, hour = [e for e in events if isinstance(e, SchedulerPoint)]
    assert (one.p50_us, one.finished, one.repetitions) == (20.0, 9, 3)
    assert (one.p50_low_us, one.p50_high_us) == (10.0, 30.0)
    assert schedulers.row(one)[-2:] == ("10.0 µs to 30.0 µs", "3")
    assert (hour.p50_us, hour.p50_high_us, hour.repetitions) == (5.0, 5.0, 1)


def test_requests_share_prefixes_and_the_pool_evicts() -> None:
    loop = make_loop(CELL.loop)
    bench = Bench(loop, CELL)
    while bench.finished < 60:
        bench.step()
    hits = loop._cache.statistics
    assert 0 < hits.cumulative.rate < 0.5
    assert CELL.loop.num_blocks < 60 * 64 // 16  # more than the pool has room for


def test_simulated_time_goes_on_until_the_cell_has_enough() -> None:
    cell = CELL._replace(steps=1, seconds=3.0)
    found = measured(make_loop(cell.loop), cell)
    assert 3.0 <= found["simulated_seconds"] < 3.1
    assert found["steps"] <= 150
    share = 1 - found["steps"] * cell.step_seconds / found["simulated_seconds"]
    assert found["share"] == pytest.approx(share)


def test_pauses_of_the_collector_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that each look at it moves on."""
    ticks = itertools.count(step=1000)
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(ticks))

    class Littering(SchedulerLoop):
        def schedule(self) -> Any:
            gc.collect()
            return super().schedule()

    thresholds = gc.get_threshold()
    gc.set_threshold(0)  # no other collections
    try:
        found = measured(Littering(CELL.loop), CELL)
    finally:
        gc.set_threshold(*thresholds)
    assert 0 < found["collector_share"] < 1
    assert (found["collector_us"], found["longest_call_us"]) == (1.0, 2.0)
    assert found["longest_us"] > 3.0


def test_a_cell_that_takes_too_long_is_cut_short() -> None:
    def cut(seconds: float) -> str:
        cell = CELL._replace(steps=10**9, most_cpu_seconds=seconds)
        return str(measured(make_loop(cell.loop), cell)["cut"])

    assert cut(0) == "first turn: 0 of 4 requests in 0 s of CPU time"
    assert cut(1) == "after 1 s of CPU time"


def test_cells_of_an_interrupted_run_are_not_measured_again() -> None:
    events: list[AnyEvent] = []
    measure_schedulers(
        [Here("reference", REFERENCE)], write=events.append, progress=len, lost=lambda *_: None,
        cells=(CELL,), done={("reference", CELL.requests, CELL.prompt_tokens)},
    )  # fmt: skip
    assert not events


def test_a_scheduler_that_runs_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SchedulerLoop, "schedule", lambda self: None)
    with pytest.raises(RuntimeError, match="4 requests are under way and nothing can run"):
        Bench(make_loop(CELL.loop), CELL).step()


def test_all_reports_show_the_figures() -> None:
    run = recorded_run()
    hour = replace(POINT, target="b", p9999_us=12_000.0)
    shown = with_events(run, [*run.events, POINT, hour])
    for text in (render_html(shown), render_markdown(shown)):
        assert schedulers.TITLE in text
        assert "4,096 of 1,024" in text
        assert "25.0 % of 20 ms" in text
    assert schedulers.row(POINT)[5] == ""
    assert schedulers.row(hour)[5] == "12.0 ms"


@pytest.mark.parametrize(
    ("cases", "wanted", "sizes"),
    [
        (("growth",), False, LARGE_GROWTH),
        (APART[:2], True, ()),
        (("match",), True, BenchOptions().growth_sizes),
        (("match",), False, ()),
    ],
)
def test_the_case_growth_goes_further(
    cases: tuple[str, ...],
    wanted: bool,  # noqa: FBT001 - a parameter
    sizes: tuple[int, ...],
) -> None:
    assert growth_sizes(cases, wanted=wanted) == sizes
