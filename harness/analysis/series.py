"""The figures of runs as comparable costs: measured and counted ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias

from kvproof.harness.records.bench_events import GrowthPoint
from kvproof.harness.records.eval_events import EvalFigure
from kvproof.harness.records.events import AnyEvent, BenchSample, BenchSummary
from kvproof.harness.records.resume import once
from kvproof.harness.records.run_directory import Run
from kvproof.harness.records.sweep_events import Cell
from kvproof.harness.records.sweep_results import case_name, latest

Metric: TypeAlias = Literal[
    "cpu_per_token", "p50", "p99", "growth", "kernel", "bytes_per_block", "misses",
    "wrong_answers", "recomputed_tokens", "largest_difference",
]  # fmt: skip
"""Costs: less is better. `misses` is the share of tokens that the cache did not have."""

UNITS: Mapping[Metric, str] = {
    "cpu_per_token": "ns",
    "p50": "us",
    "p99": "us",
    "growth": "ns",
    "kernel": "us",
    "bytes_per_block": "B",
    "misses": "",
    "wrong_answers": "",
    "recomputed_tokens": "",
    "largest_difference": "nats",
}
"""Metric -> unit of its values."""

COUNTED: tuple[Metric, ...] = ("bytes_per_block", "misses")
"""Figures without noise: a change beyond the threshold is one."""


SHOWN: tuple[Metric, ...] = ("wrong_answers", "recomputed_tokens", "largest_difference")
"""Figures of evaluations: a history shows them. Their verdicts, which rest on pairs of answers, are
what `compare` compares."""


class Key(NamedTuple):
    """Identity of a figure in every run."""

    subject: str
    """Target or kernel provider; the engine without its version where a run has only one."""
    metric: Metric
    detail: str
    """Workload, case and sizes, or kernel and case."""


class Series(NamedTuple):
    """One figure over the runs of one side."""

    key: Key
    runs: list[list[float]]
    """Samples of each run that has some."""
    times: list[float]
    """When the last sample of each run was recorded, in seconds of Unix time."""
    clocks: list[float]
    """SM clocks of a GPU in MHz, where they were recorded."""
    peer: bool
    """Shown, but no part of the verdict."""


def one_run(key: Key, samples: Sequence[float], *, clock: float | None = None) -> Series:
    """A figure of a single run."""
    return Series(key, [list(samples)], [0.0], [] if clock is None else [clock], peer=False)


class _Found(NamedTuple):
    key: Key
    values: list[float]
    at: float
    clock: float | None = None
    peer: bool = False


def series_of(runs: Sequence[Run]) -> dict[Key, Series]:
    """All figures of one side. Raises nothing; a run without figures adds none."""
    found: dict[Key, Series] = {}
    engines = engines_of(runs)
    for run in runs:
        began = datetime.fromisoformat(run.manifest.started).timestamp()
        own: dict[Key, list[float]] = {}
        last: dict[Key, float] = {}
        for each in _samples(once(run.events), engines):
            series = found.setdefault(each.key, Series(each.key, [], [], [], each.peer))
            own.setdefault(each.key, []).extend(each.values)
            last[each.key] = began + each.at
            if each.clock is not None:
                series.clocks.append(each.clock)
        for key, values in own.items():
            found[key].runs.append(values)
            found[key].times.append(last[key])
    return {key: _in_order(series) for key, series in found.items()}


def _in_order(series: Series) -> Series:
    order = sorted(range(len(series.times)), key=series.times.__getitem__)
    return series._replace(
        runs=[series.runs[at] for at in order], times=[series.times[at] for at in order]
    )


def engines_of(runs: Sequence[Run]) -> Mapping[str, str]:
    """`vllm==0.33.0` -> `vllm`, where no other version of it is on this side."""
    names = {name for run in runs for event in run.events if (name := getattr(event, "target", ""))}
    versions = Counter(name.partition("==")[0] for name in names)
    return {n: n.partition("==")[0] if versions[n.partition("==")[0]] == 1 else n for n in names}


def _samples(events: Sequence[AnyEvent], engines: Mapping[str, str]) -> Iterator[_Found]:
    for event in events:
        if isinstance(event, BenchSample):
            yield from _bench(event, engines[event.target])
        elif isinstance(event, BenchSummary) and event.bytes_per_block is not None:
            key = Key(engines[event.target], "bytes_per_block", _work(event))
            yield _Found(key, [event.bytes_per_block], event.at)
        elif isinstance(event, GrowthPoint):
            detail = f"block {event.block_size}, {event.cached_blocks:,} cached blocks"
            key = Key(engines[event.target], "growth", detail)
            yield _Found(key, [event.nanoseconds_per_token], event.at)
        elif isinstance(event, EvalFigure):
            key = Key(engines[event.target], event.metric, event.property)
            yield _Found(key, [event.value], event.at)
    for cell in latest(events).values():
        if cell.outcome == "ok" and cell.samples:
            yield _Found(
                cell_key(cell),
                [sample * 1e6 for sample in cell.samples],
                cell.at,
                clock_of(cell),
                cell.peer,
            )


def cell_key(cell: Cell) -> Key:
    """Identity of the time of a kernel's cell."""
    return Key(
        cell.provider, "kernel", f"{cell.kernel} {case_name(dict(sorted(cell.case.items())))}"
    )


def clock_of(cell: Cell) -> float | None:
    """SM clock in MHz that the GPU ran at."""
    clock = cell.clocks.get("sm_mhz")
    return float(clock) if clock else None


def _bench(sample: BenchSample, subject: str) -> Iterator[_Found]:
    values: dict[Metric, float] = {
        "cpu_per_token": sample.cpu_seconds / sample.tokens * 1e9,
        "p50": sample.p50_us,
        "p99": sample.p99_us,
        "misses": 1 - sample.hit_tokens / sample.tokens,
    }
    for metric, value in values.items():
        yield _Found(Key(subject, metric, _work(sample)), [value], sample.at)


def _work(event: BenchSample | BenchSummary) -> str:
    groups = f", groups {event.groups}" if event.groups else ""
    case = event.case.replace("_", " ")
    return (
        f"{event.workload}, {case}, block {event.block_size}, {event.num_blocks:,} blocks{groups}"
    )


def rounds(base: Series, head: Series) -> int:
    """How often the two sides took turns, in the order in which the runs were recorded."""
    return sum(left != right for left, right in pairwise(_sides(base, head)))


def paired(base: Series, head: Series) -> bool:
    """Whether run i of one side stands next to run i of the other, as in A B B A A B."""
    sides = _sides(base, head)
    even = len(base.times) == len(head.times)
    return even and all(a != b for a, b in zip(sides[::2], sides[1::2], strict=True))


def _sides(base: Series, head: Series) -> list[int]:
    marks = sorted([(at, 0) for at in base.times] + [(at, 1) for at in head.times])
    return [side for _, side in marks]
