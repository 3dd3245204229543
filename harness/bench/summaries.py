"""Medians of the samples of one case, and ratios of its sides. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np

from kvproof.harness.records.bench_events import BenchPair, TierSample
from kvproof.harness.records.events import BenchSample, BenchSummary
from kvproof.harness.statistics import Ratio, median_of_ratios

S = TypeVar("S", BenchSample, TierSample)


def tokens_per_second(samples: Sequence[BenchSample]) -> list[float]:
    """By CPU time, one per sample."""
    return [sample.tokens / sample.cpu_seconds for sample in samples]


def summarize(
    samples: Sequence[BenchSample],
    peers: Sequence[BenchSample],
    *,
    note: str = "",
    bytes_per_block: float | None = None,
    index_bytes_per_block: float | None = None,
) -> BenchSummary:
    """Medians over the repetitions of one target and case; ratios if `peers` is not empty."""
    first = samples[0]
    rates = tokens_per_second(samples)
    low, middle, high = np.percentile(rates, [10, 50, 90]).tolist()
    ratio = _ratio(samples, peers)
    return BenchSummary(
        target=first.target,
        workload=first.workload,
        block_size=first.block_size,
        num_blocks=first.num_blocks,
        case=first.case,
        groups=first.groups,
        repetitions=len(samples),
        tokens_per_second=middle,
        low=low,
        high=high,
        p50_us=_median([s.p50_us for s in samples]),
        p99_us=_median([s.p99_us for s in samples]),
        hit_rate=first.hit_tokens / first.tokens,
        harness_share=_median([s.harness_share for s in samples]),
        bytes_per_block=bytes_per_block,
        index_bytes_per_block=index_bytes_per_block,
        peer=peers[0].target if peers else "",
        ratio=ratio.middle if ratio else None,
        ratio_low=ratio.low if ratio else None,
        ratio_high=ratio.high if ratio else None,
        lacks=first.lacks,
        peer_lacks=peers[0].lacks if peers else "",
        note=note,
    )


def _ratio(samples: Sequence[BenchSample], peers: Sequence[BenchSample]) -> Ratio | None:
    """Of the repetitions that both sides have: one of them may have died in some."""
    both = shared(samples, peers)
    sides = [tokens_per_second(side) for side in zip(*both, strict=True)]
    return median_of_ratios(*sides) if sides else None


def shared(samples: Sequence[S], peers: Sequence[S]) -> list[tuple[S, S]]:
    """Return the samples of both sides, for each repetition that both have."""
    other = {each.repetition: each for each in peers}
    return [(each, other[each.repetition]) for each in samples if each.repetition in other]


def _median(values: list[float]) -> float:
    return float(np.median(values))


def pairs(
    samples: Sequence[BenchSample], sides: Sequence[Sequence[BenchSample]]
) -> Iterator[BenchPair]:
    """Compare one target with each other side of the same case."""
    first = samples[0]
    for peers in sides:
        if (found := _ratio(samples, peers)) is None:
            continue
        yield BenchPair(
            target=first.target,
            peer=peers[0].target,
            workload=first.workload,
            block_size=first.block_size,
            num_blocks=first.num_blocks,
            case=first.case,
            groups=first.groups,
            repetitions=len(shared(samples, peers)),
            ratio=found.middle,
            low=found.low,
            high=found.high,
            peer_lacks=peers[0].lacks,
        )
