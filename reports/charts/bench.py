"""Charts of a report: the title states the finding, and a table holds the numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

from kvproof.harness.records.bench_events import GrowthPoint
from kvproof.harness.records.events import BenchSummary
from kvproof.reports.charts.axes import WIDTH, Series, plot, series_table
from kvproof.reports.charts.rows import Part, Row, bars
from kvproof.reports.model.report import grouped
from kvproof.reports.values.svg import Box, Chart, Drawing, Label, Line, Scale, Shape, Table, fit
from kvproof.reports.values.text import (
    microseconds,
    percent,
    plural,
    scaled,
    scaled_range,
    significant,
    tick,
)
from kvproof.reports.values.types import BenchGroup, Coverage


def style_of(target: str, order: Sequence[str]) -> str:
    """CSS class of a target: the same colour in every chart."""
    return f"s{place_of(target, order) % 5}"


def place_of(target: str, order: Sequence[str]) -> int:
    """Return the index of a target in the report."""
    return list(order).index(target) if target in order else 0


def hit_lengths(coverage: Coverage) -> Chart:
    """Histogram of hit lengths over the admissions of one target."""
    buckets = sorted(coverage.hit_blocks.items(), key=lambda item: _bucket_order(item[0]))
    total = sum(coverage.hit_blocks.values())
    rows = [(name, f"{n:,}", percent(n / total if total else 0)) for name, n in buckets]
    zero = coverage.hit_blocks.get("0", 0)
    title = f"{coverage.target}: {percent((total - zero) / total if total else 0)} of "
    return Chart(
        title=title + f"{plural(total, 'admission')} reused cached blocks",
        subtitle="admissions by hit length, blocks",
        drawing=_histogram(rows, [n for _, n in buckets], title),
        table=Table(("hit length, blocks", "admissions", "share"), tuple(rows), words=1),
    )


def _bucket_order(label: str) -> tuple[float, str]:
    number = re.search(r"\d+", label)
    return (float(number.group()) if number else float("inf"), label)


def _histogram(rows: Sequence[tuple[str, str, str]], counts: list[int], label: str) -> Drawing:
    scale = Scale(0, max([1, *counts]), 0, WIDTH - 190)
    lines = [
        Row(name, [Part(0, max(1.0, scale(count)) if count else 0, "s0")], f"{shown}  ({share})")
        for (name, shown, share), count in zip(rows, counts, strict=True)
    ]
    return bars(lines, f"Histogram. {label}", left=90)


def throughput(group: BenchGroup, order: Sequence[str]) -> Chart:
    """Tokens per second of each target with interval, next to the named peer."""
    most = max(entry.high for entry in group.entries)
    scale = Scale(0, max(most, 1.0), 0, WIDTH - 4)
    drawn = [_bar(entry, index, scale, order) for index, entry in enumerate(group.entries)]
    title = _throughput_title(group)
    shapes = (*chain(*drawn), *_bar_axis(scale, len(drawn)))
    repetitions = plural(max(entry.repetitions for entry in group.entries), "repetition")
    return Chart(
        title=f"Block {group.block_size}, {case_words(group.case)}: {title}",
        subtitle=f"{plural(group.num_blocks, 'block')}; tokens/s by CPU time, "
        f"median and p10 to p90 of {repetitions}",
        drawing=Drawing(WIDTH, 40 * len(drawn) + 22, title, shapes),
        table=bench_table([group]),
    )


def case_words(case: str) -> str:
    """Format a case name: `no eviction` for `no_eviction`."""
    return case.replace("_", " ")


def _bar(entry: BenchSummary, index: int, scale: Scale, order: Sequence[str]) -> list[Shape]:
    y = index * 40
    middle = y + 25
    low, high = scale(entry.low), scale(entry.high)
    shown, *_ = scaled_range(entry.tokens_per_second, entry.low, entry.high)
    caption = f"{shown} tokens/s"
    room = WIDTH - len(caption + ratio_text(entry)) * 6.4 - 24
    return [
        Label(0, y + 13, fit(entry.target, room), "strong"),
        Label(WIDTH, y + 13, ", ".join(filter(None, (caption, ratio_text(entry)))), "", "end"),
        Box(0, y + 18, max(1.0, scale(entry.tokens_per_second)), 14, style_of(entry.target, order)),
        Line(((low, middle), (high, middle)), "whisker"),
        Line(((low, middle - 4), (low, middle + 4)), "whisker"),
        Line(((high, middle - 4), (high, middle + 4)), "whisker"),
    ]


def _bar_axis(scale: Scale, count: int) -> list[Shape]:
    y = 40 * count
    shapes: list[Shape] = [Line(((0, y), (WIDTH, y)), "rule")]
    for value in scale.ticks():
        x = scale(value)
        anchor = "start" if x < 20 else "end" if x > WIDTH - 20 else "middle"
        shapes.append(Label(x, y + 15, tick(value), "axis", anchor))
    return shapes


def ratio_text(entry: BenchSummary) -> str:
    """Format a ratio: `36.0 times vllm (35.1 to 37.2)`; empty without a peer."""
    if entry.ratio is None or not entry.peer:
        return ""
    low, high = entry.ratio_low, entry.ratio_high
    interval = (
        "" if low is None or high is None else f" ({significant(low)} to {significant(high)})"
    )
    return f"{bound(entry)}{significant(entry.ratio)} times {entry.peer}{interval}"


def bound(entry: BenchSummary) -> str:
    """Which bound a ratio is if one side alone does a part of the work only."""
    if bool(entry.lacks) == bool(entry.peer_lacks):
        return ""
    return "at most " if entry.lacks else "at least "


def _throughput_title(group: BenchGroup) -> str:
    beside = [entry for entry in group.entries if entry.ratio is not None and entry.peer]
    if beside:
        best = max(beside, key=lambda entry: entry.ratio or 0)
        return (
            f"{best.target} serves {significant(best.ratio or 0)} times the tokens of {best.peer}"
        )
    best = max(group.entries, key=lambda entry: entry.tokens_per_second)
    return f"{best.target} serves {scaled(best.tokens_per_second)} tokens/s"


def bench_table(groups: Sequence[BenchGroup]) -> Table:
    """All figures of the bench, one line per target and case."""
    return Table(
        ("target", "case", "work", "block", "blocks", "tokens/s", "p10 to p90",
         "against the peer, 95 % interval", "p50", "p99", "hit rate", "bytes per block",
         "index bytes per block", "harness share", "n"),
        tuple(_bench_row(entry) for group in groups for entry in group.entries),
        words=3,
    ).filled()  # fmt: skip


def work(lacks: str) -> str:
    """Mark a side that has less to do."""
    return f"part: without {lacks}" if lacks else "whole"


def _bench_row(entry: BenchSummary) -> tuple[str, ...]:
    shown, low, high = scaled_range(entry.tokens_per_second, entry.low, entry.high)
    memory = (entry.bytes_per_block, entry.index_bytes_per_block)
    return (
        entry.target, case_words(entry.case), work(entry.lacks), str(entry.block_size),
        f"{entry.num_blocks:,}",
        shown, f"{low} to {high}", ratio_text(entry), microseconds(entry.p50_us),
        microseconds(entry.p99_us), percent(entry.hit_rate),
        *("" if value is None else f"{value:,.0f}" for value in memory),
        percent(entry.harness_share), str(entry.repetitions),
    )  # fmt: skip


def growth(block_size: int, points: Sequence[GrowthPoint], order: Sequence[str]) -> Chart:
    """Cost per token over cached blocks, both axes logarithmic."""
    series = [
        _growth_series(target, found, order)
        for target, found in grouped(points, lambda point: point.target).items()
    ]
    ends = list(chain.from_iterable((p.low, p.high) for p in points))
    title = _growth_title(series)
    bounds = (max(min(ends) * 0.7, 1e-6), max(ends) * 1.4)
    return Chart(
        title=title,
        subtitle=f"block {block_size}; ns per token of a whole cycle, median and p10 to p90; "
        "both axes logarithmic",
        drawing=plot(series, title, "cached blocks", bounds, tick, log_y=True),
        table=series_table("cached blocks", series, lambda y: f"{significant(y)} ns"),
    )


def _growth_series(target: str, points: Sequence[GrowthPoint], order: Sequence[str]) -> Series:
    ordered = sorted(points, key=lambda point: point.cached_blocks)
    return Series(
        target,
        tuple((float(p.cached_blocks), p.nanoseconds_per_token) for p in ordered),
        style_of(target, order),
        place_of(target, order),
        intervals=tuple((p.low, p.high) for p in ordered),
    )


def _growth_title(series: Sequence[Series]) -> str:
    return f"Cost per token: {', '.join(_change(line) for line in series)}"


def _change(series: Series) -> str:
    (first, cost), (last, final) = series.points[0], series.points[-1]
    if first == last or not cost:
        return f"{significant(final)} ns at {tick(last)} cached blocks ({series.name})"
    change = f"{(final / cost - 1) * 100:+.0f} %"
    return f"{change} from {tick(first)} to {tick(last)} cached blocks ({series.name})"
