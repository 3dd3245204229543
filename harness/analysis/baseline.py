"""Samples of an earlier gate on this machine, and the comparison with them.

A baseline holds for the hardware it was measured on. Elsewhere its lines are skipped with that
reason.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from kvproof.harness.analysis.compare import Row, judge
from kvproof.harness.analysis.series import Key, Metric, Series, one_run
from kvproof.harness.decoding import Cost, Positive, decode, read_file
from kvproof.harness.errors import UsageError
from kvproof.harness.records.events import BenchSample, BenchSummary, Skipped, Threshold
from kvproof.harness.records.run_directory import UNREADABLE, write_atomically

FORMAT = 2

ALPHA = 0.05
"""Probability that a gate of equal code finds any figure worse than its baseline."""


class BaselineRow(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one target and case."""

    target: str
    workload: str
    case: str
    block_size: Positive
    num_blocks: Positive
    tokens_per_second: Cost
    bytes_per_block: Cost | None = None
    samples: list[Cost] = []
    """CPU time per token of each repetition, in ns."""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A stored baseline file."""

    format: int = FORMAT
    hardware: dict[str, str]
    versions: dict[str, str]
    rows: list[BaselineRow]


_STORED = tuple(name for name in BaselineRow.__struct_fields__ if name != "samples")


def load_baseline(path: Path) -> Baseline | None:
    """Read a baseline; None if there is no such file. Raises UsageError for a broken one."""
    if not os.path.lexists(path):
        return None
    again = "delete it, or write it again with kvproof gate --save-baseline"
    try:
        baseline = decode(read_file(path, what="baseline", hint=again), Baseline)
    except UNREADABLE as error:
        raise UsageError(f"{str(path)!r} is not a baseline: {error}", again) from error
    if baseline.format != FORMAT:
        other = "a newer" if baseline.format > FORMAT else "an older"
        raise UsageError(f"{str(path)!r} was written by {other} kvproof", again)
    return baseline


def save_baseline(
    path: Path,
    summaries: Sequence[BenchSummary],
    samples: Sequence[BenchSample],
    *,
    hardware: Mapping[str, str],
    versions: Mapping[str, str],
) -> Baseline:
    """Store the figures of a bench. Raises UsageError if the file cannot be written."""
    costs = _costs(samples)
    rows = [
        BaselineRow(
            **{name: getattr(each, name) for name in _STORED}, samples=costs.get(_key(each), [])
        )
        for each in summaries
    ]
    baseline = Baseline(hardware=dict(hardware), versions=dict(versions), rows=rows)
    try:
        write_atomically(path, msgspec.json.format(msgspec.json.encode(baseline)) + b"\n")
    except OSError as error:
        raise UsageError(
            f"cannot write baseline {str(path)!r}: {error.strerror}",
            "set gate.baseline in kvproof.toml to a writable place",
        ) from error
    return baseline


def regressions(
    summaries: Sequence[BenchSummary],
    samples: Sequence[BenchSample],
    baseline: Baseline,
    tolerated: float,
    hardware: Mapping[str, str],
) -> Iterator[Threshold | Skipped]:
    """Every figure that the baseline has, `tolerated` being the largest loss as a fraction."""
    differing = sorted(
        key
        for key in {*baseline.hardware, *hardware}
        if baseline.hardware.get(key) != hardware.get(key)
    )
    if differing and summaries:
        key, there = differing[0], baseline.hardware.get(differing[0])
        yield Skipped(
            part="comparison with the baseline",
            reason=f"measured on other hardware: {key} {there!r} there, {hardware.get(key)!r} here",
            command="kvproof gate --save-baseline",
        )
        return
    rows = {_key(row): row for row in baseline.rows}
    both = [(each, rows[_key(each)]) for each in summaries if _key(each) in rows]
    yield from _against(both, _costs(samples), tolerated)
    for summary in summaries:
        if _key(summary) not in rows:
            yield Skipped(
                part=f"baseline of {_title(summary)}",
                reason="the baseline has no such measurement",
                command="kvproof gate --save-baseline",
            )


_Key: TypeAlias = tuple[str, str, str, int, int]


def _key(row: BaselineRow | BenchSummary | BenchSample) -> _Key:
    return row.target, row.workload, row.case, row.block_size, row.num_blocks


def _costs(samples: Sequence[BenchSample]) -> dict[_Key, list[float]]:
    found: dict[_Key, list[float]] = {}
    for each in samples:
        found.setdefault(_key(each), []).append(each.cpu_seconds / each.tokens * 1e9)
    return found


def _title(summary: BenchSummary) -> str:
    return f"{summary.target} {summary.case} block {summary.block_size}"


def _against(
    both: Sequence[tuple[BenchSummary, BaselineRow]],
    costs: Mapping[_Key, list[float]],
    tolerated: float,
) -> Iterator[Threshold]:
    """By the rule of `compare`, as one table of speed and memory."""
    pairs = [
        *((_series(row, "cpu_per_token", row.samples), _series(row, "cpu_per_token", mine))
          for now, row in both if row.samples and (mine := costs.get(_key(now), []))),
        *((_series(row, "bytes_per_block", [row.bytes_per_block]),
           _series(row, "bytes_per_block", [now.bytes_per_block]))
          for now, row in both if row.bytes_per_block is not None
          and now.bytes_per_block is not None),
    ]  # fmt: skip
    judged = {row.key: row for row in judge(pairs, [tolerated] * len(pairs), alpha=ALPHA)}
    for now, before in both:
        if row := judged.get(_figure(before, "cpu_per_token")):
            yield _speed(now, before, row, tolerated)
        if row := judged.get(_figure(before, "bytes_per_block")):
            yield Threshold(
                name=f"{_title(now)}: bytes_per_block against the baseline",
                measured=row.head,
                limit=row.base * (1 + tolerated),
                baseline=row.base,
                verdict=_memory(row),
            )


def _memory(row: Row) -> Literal["pass", "fail", "inconclusive"]:
    """A comparison with NaN is no pass."""
    if not (math.isfinite(row.head) and math.isfinite(row.base)):
        return "inconclusive"
    return "fail" if row.change == "worse" else "pass"


def _figure(row: BaselineRow, metric: Metric) -> Key:
    return Key(row.target, metric, "/".join(map(str, _key(row))))


def _series(row: BaselineRow, metric: Metric, values: Sequence[float]) -> Series:
    return one_run(_figure(row, metric), values)


def _speed(now: BenchSummary, before: BaselineRow, row: Row, tolerated: float) -> Threshold:
    """A pass if it is certainly not slower; that it is faster need not be certain."""
    assert row.found is not None
    verdict: Literal["pass", "fail", "inconclusive"] = "inconclusive"
    if row.change == "slower":
        verdict = "fail"
    elif row.found.high <= 1 + tolerated:
        verdict = "pass"
    return Threshold(
        name=f"{_title(now)}: tokens_per_second against the baseline",
        measured=now.tokens_per_second,
        limit=before.tokens_per_second / (1 + tolerated),
        baseline=before.tokens_per_second,
        verdict=verdict,
        reason=row.reason if verdict == "inconclusive" else "",
    )
