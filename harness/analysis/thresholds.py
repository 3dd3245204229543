"""Checks of bench figures: fixed limits, and samples of an earlier gate.

Limits that do not depend on the machine, such as `ratio`, belong into `kvproof.toml`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from kvproof.harness.analysis.baseline import Baseline, regressions
from kvproof.harness.records.events import BenchSample, BenchSummary, Skipped, Threshold
from kvproof.harness.settings import GateSettings, Limit


class Judgement(NamedTuple):
    """Results of the gate's thresholds."""

    thresholds: list[Threshold]
    skipped: list[Skipped]
    """Comparisons that this run cannot make, with the reason; they do not change its verdict."""


def judge_thresholds(
    summaries: Sequence[BenchSummary],
    settings: GateSettings,
    baseline: Baseline | None,
    *,
    hardware: Mapping[str, str],
    targets: Sequence[str] = (),
    samples: Sequence[BenchSample] = (),
) -> Judgement:
    """Check the limits of the settings, then every figure of the baseline.

    `targets` are those of the bench, dead ones included: a limit on one of them without a figure is
    inconclusive, a limit on any other target is skipped. `samples` are the repetitions of the
    summaries, for the comparison with the baseline.
    """
    asked = {*targets, *(each.target for each in summaries)}
    events: list[Threshold | Skipped] = []
    for limit in settings.threshold:
        events += _limit(limit, summaries, asked)
    if baseline is not None:
        events += regressions(summaries, samples, baseline, settings.max_regression, hardware)
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
    """Whether a settings file's `vllm` or `vllm==0.33.0` means this target."""
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
            reason=_unmeasured(measured),
        )


def _unmeasured(measured: float | None) -> str:
    if measured is None:
        return "it was not measured in this run"
    return "" if math.isfinite(measured) else f"it is {measured}, no number"


def _side(
    measured: float | None, sign: str, bound: float
) -> Literal["pass", "fail", "inconclusive"]:
    if measured is None or not math.isfinite(measured):
        return "inconclusive"
    return "pass" if (measured >= bound if sign == ">=" else measured <= bound) else "fail"
