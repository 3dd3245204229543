"""Causes of lost hits, summed over a run (V3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvproof.harness.records.events import Explained
from kvproof.reports.charts.axes import WIDTH
from kvproof.reports.charts.rows import Part, Row, bars
from kvproof.reports.model.report import Report, grouped
from kvproof.reports.values.svg import Chart, Scale, Table
from kvproof.reports.values.text import percent, plural

CAUSES = {
    "alignment": "alignment to whole units",
    "span": "media spans",
    "draft": "draft layers",
    "eviction": "eviction",
    "window": "windows",
    "chunk": "chunks",
    "no_checkpoint": "no state saved there",
    "no_row": "no room to save a state",
    "checkpoint_evicted": "evicted checkpoints",
    "experts": "missing expert rows",
    "own_pins": "pins of the hit itself",
    "access": "requests that may not read",
}
"""Limit -> its name in a table, in the order in which limits are applied."""

_LABEL, _FIGURE = 190, 120


class Sums(NamedTuple):
    """Hits of one target on one workload; tokens."""

    title: str
    requests: int
    prompt: int
    optimum: int
    hit: int
    lost: dict[str, int]
    """Cause -> tokens; the sum is `optimum` minus `hit`."""

    @property
    def sentence(self) -> str:
        """Tokens reused, and the largest loss."""
        reused = f"{self.hit:,} of {plural(self.optimum, 'reusable token')} hit"
        loss = sum(self.lost.values())
        if loss <= 0:
            return reused
        worst = max(self.lost, key=lambda cause: self.lost[cause])
        share = _share(self.lost[worst], loss)
        return f"{reused} ({_share(self.hit, self.optimum)}); {share} of the loss: {worst}"


def sums(explained: Sequence[Explained]) -> list[Sums]:
    """Sum by target, workload, block size and pool, in order of appearance."""
    groups = grouped(explained, lambda e: (e.target, e.workload, e.block_size, e.num_blocks))
    return [_summed(events) for events in groups.values()]


def _summed(events: Sequence[Explained]) -> Sums:
    first = events[0]
    lost: Counter[str] = Counter()
    for event in events:
        lost.update(event.lost)
    order = [*CAUSES, *sorted(set(lost) - set(CAUSES))]  # newer code may know more limits
    return Sums(
        title=f"{first.target} on {first.workload}, block {first.block_size}, "
        f"{plural(first.num_blocks, 'block')}",
        requests=len(events),
        prompt=sum(event.prompt for event in events),
        optimum=sum(event.optimum for event in events),
        hit=sum(event.hit for event in events),
        lost={CAUSES.get(name, name): lost[name] for name in order if lost[name]},
    )


def cause_table(found: Sums) -> Table:
    """Hit and causes: tokens and share of the optimum."""
    rows = [("hit", found.hit), *found.lost.items()]
    return Table(
        ("reusable tokens", "tokens", "share"),
        tuple((name, f"{count:,}", _share(count, found.optimum)) for name, count in rows),
        words=1,
    )


def _share(count: int, whole: int) -> str:
    return percent(count / whole if whole else 0)


def cause_chart(found: Sums) -> Chart:
    """Hit tokens and the loss by each cause, as bars on one scale."""
    scale = Scale(0, max(found.optimum, 1), 0, WIDTH - _LABEL - _FIGURE)
    counts = [found.hit, *found.lost.values()]
    rows = [
        Row(name, [Part(0, max(1.0, scale(count)), style)], f"{shown}  ({share})")
        for (name, shown, share), count, style in zip(
            cause_table(found).rows, counts, ("s0", *("s1" for _ in found.lost)), strict=True
        )
    ]
    return Chart(
        title=found.sentence,
        subtitle=f"{found.title}; {plural(found.requests, 'request')} of {found.prompt:,} tokens "
        "in all, under the shadow memory",
        drawing=bars(rows, found.sentence, left=_LABEL),
        table=cause_table(found),
    )


def cause_charts(report: Report) -> list[Chart]:
    """One chart per explained target, workload and size."""
    return [cause_chart(found) for found in sums(report.of(Explained))]
