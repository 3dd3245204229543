"""Whether the figures of a bench are good enough: fixed limits, and medians of an earlier gate.

A baseline holds for the hardware it was measured on. Elsewhere its lines are skipped and say so;
limits that do not depend on the machine, such as `ratio`, belong into `kvproof.toml`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from kvproof.harness.errors import UsageError
from kvproof.harness.events import BenchSummary, Skipped, Threshold
from kvproof.harness.records import write_atomically
from kvproof.harness.settings import GateSettings, Limit

FORMAT = 1


class BaselineRow(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of one target and case."""

    target: str
    workload: str
    case: str
    block_size: int
    num_blocks: int
    tokens_per_second: float
    bytes_per_block: float | None = None


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """A stored baseline file."""

    format: int = FORMAT
    hardware: dict[str, str]
    versions: dict[str, str]
    rows: list[BaselineRow]


class Judgement(NamedTuple):
    """What the gate's figures came to."""

    thresholds: list[Threshold]
    skipped: list[Skipped]
    """Comparisons that this run cannot make, with the reason; they do not change its verdict."""


def load_baseline(path: Path) -> Baseline | None:
    """Read a baseline; None if there is no such file. Raises UsageError for a broken one."""
    again = "delete it, or write it again with kvproof gate --save-baseline"
    try:
        baseline = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"cannot read baseline {str(path)!r}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{str(path)!r} is not a baseline: {error}", again) from error
    if baseline.format > FORMAT:
        raise UsageError(f"{str(path)!r} was written by a newer kvproof", again)
    return baseline


def save_baseline(
    path: Path,
    summaries: Sequence[BenchSummary],
    *,
    hardware: Mapping[str, str],
    versions: Mapping[str, str],
) -> Baseline:
    """Store the medians of a bench. Raises UsageError if the file cannot be written."""
    rows = [
        BaselineRow(**{name: getattr(each, name) for name in BaselineRow.__struct_fields__})
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


def judge_thresholds(
    summaries: Sequence[BenchSummary],
    settings: GateSettings,
    baseline: Baseline | None,
    *,
    hardware: Mapping[str, str],
    targets: Sequence[str] = (),
) -> Judgement:
    """Judge the limits of the settings, then every figure that the baseline has.

    `targets` are those that the bench was asked for, also if they died: a limit on one of them
    without a figure is inconclusive, a limit on any other target is skipped.
    """
    asked = {*targets, *(each.target for each in summaries)}
    events: list[Threshold | Skipped] = []
    for limit in settings.threshold:
        events += _limit(limit, summaries, asked)
    if baseline is not None:
        events += _regressions(summaries, baseline, settings.max_regression, hardware)
    return Judgement(
        [event for event in events if isinstance(event, Threshold)],
        [event for event in events if isinstance(event, Skipped)],
    )


def _limit(
    limit: Limit, summaries: Sequence[BenchSummary], asked: set[str]
) -> Iterator[Threshold | Skipped]:
    meant = sorted(name for name in asked if _names(limit.target, name))
    if not meant:
        yield Skipped(
            part=f"threshold {_name(limit.target, limit)}",
            reason=f"{limit.target} is not a target of this run",
        )
    for target in meant:
        found = next((s for s in summaries if _is_meant(s, target, limit)), None)
        if found and limit.metric == "ratio" and not _right_peer(limit, found):
            yield Skipped(
                part=f"threshold {_name(target, limit)}",
                reason=f"the bench has no peer {limit.peer}".rstrip(),
            )
        else:
            yield from _bounds(target, limit, found)


def _names(wanted: str, target: str) -> bool:
    """Tell whether a settings file's `vllm` or `vllm==0.33.0` means this target."""
    return wanted in (target, target.partition("==")[0])


def _right_peer(limit: Limit, summary: BenchSummary) -> bool:
    return bool(summary.peer) and (not limit.peer or _names(limit.peer, summary.peer))


def _is_meant(summary: BenchSummary, target: str, limit: Limit) -> bool:
    wanted = (target, limit.case, limit.block_size)
    return (summary.target, summary.case, summary.block_size) == wanted


def _name(target: str, limit: Limit) -> str:
    return f"{target} {limit.case} block {limit.block_size}: {limit.metric}"


def _bounds(target: str, limit: Limit, found: BenchSummary | None) -> Iterator[Threshold]:
    measured: float | None = getattr(found, limit.metric) if found else None
    for sign, bound in ((">=", limit.min), ("<=", limit.max)):
        if bound is None:
            continue
        yield Threshold(
            name=f"{_name(target, limit)} {sign} {bound:g}",
            measured=measured,
            limit=bound,
            verdict=_side(measured, sign, bound),
            reason="" if measured is not None else "it was not measured in this run",
        )


def _side(
    measured: float | None, sign: str, bound: float
) -> Literal["pass", "fail", "inconclusive"]:
    if measured is None:
        return "inconclusive"
    return "pass" if (measured >= bound if sign == ">=" else measured <= bound) else "fail"


def _regressions(
    summaries: Sequence[BenchSummary],
    baseline: Baseline,
    tolerated: float,
    hardware: Mapping[str, str],
) -> Iterator[Threshold | Skipped]:
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
    for summary in summaries:
        if row := rows.get(_key(summary)):
            yield from _against(summary, row, tolerated)
        else:
            yield Skipped(
                part=f"baseline of {_title(summary)}",
                reason="the baseline has no such measurement",
                command="kvproof gate --save-baseline",
            )


def _key(row: BaselineRow | BenchSummary) -> tuple[str, str, str, int, int]:
    return row.target, row.workload, row.case, row.block_size, row.num_blocks


def _title(summary: BenchSummary) -> str:
    return f"{summary.target} {summary.case} block {summary.block_size}"


def _against(summary: BenchSummary, row: BaselineRow, tolerated: float) -> Iterator[Threshold]:
    """Speed by its interval, because it is noisy; memory by its single value."""
    least = row.tokens_per_second * (1 - tolerated)
    slow = summary.tokens_per_second < least
    noisy = slow and summary.high >= least
    yield Threshold(
        name=f"{_title(summary)}: tokens_per_second against the baseline",
        measured=summary.tokens_per_second,
        limit=least,
        baseline=row.tokens_per_second,
        verdict="inconclusive" if noisy else "fail" if slow else "pass",
        reason="the limit lies between median and p90: repeat on a quiet machine" if noisy else "",
    )
    if summary.bytes_per_block is not None and row.bytes_per_block is not None:
        most = row.bytes_per_block * (1 + tolerated)
        yield Threshold(
            name=f"{_title(summary)}: bytes_per_block against the baseline",
            measured=summary.bytes_per_block,
            limit=most,
            baseline=row.bytes_per_block,
            verdict="pass" if summary.bytes_per_block <= most else "fail",
        )
