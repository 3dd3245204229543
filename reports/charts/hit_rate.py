"""Hit rate over capacity, with an infinite cache, Belady's MIN and LRU."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.harness.records.events import Optimum
from kvproof.reports.charts.axes import Series, plot, series_table
from kvproof.reports.charts.bench import place_of, style_of
from kvproof.reports.values.svg import Chart, Table
from kvproof.reports.values.text import percent, plural
from kvproof.reports.values.types import BenchGroup


def hit_rates(
    points: Sequence[Optimum], bench: Sequence[BenchGroup], order: Sequence[str]
) -> Chart | None:
    """Hit rate over capacity for one workload, block size and rule; None without a finite one.

    Block rates, as published, for the rule of traces; token rates, comparable with the targets'
    own, for the rule of engines.
    """
    first = points[0]
    tokens = first.rule == "engine_blocks" and first.infinite_tokens is not None
    part = "_tokens" if tokens else ""
    series = [
        _curve("infinite", points, f"infinite{part}", "limit"),
        _curve("Belady", points, f"belady{part}", "bound"),
        _curve("LRU", points, f"lru{part}", "policy"),
        *(_measured(first, bench, order) if tokens else ()),
    ]
    unit = "prompt tokens" if tokens else "blocks"
    where = f"{first.workload}, block {first.block_size}"
    shown = [line for line in series if line.points]
    return _hit_chart(shown, f"{where}; share of {unit} hit", where) if shown else None


def _curve(name: str, points: Sequence[Optimum], value: str, style: str) -> Series:
    found = {p.capacity: getattr(p, value) for p in points if p.capacity is not None}
    xy = sorted((float(x), y) for x, y in found.items() if y is not None)
    return Series(name, tuple(xy), style)


def _measured(first: Optimum, bench: Sequence[BenchGroup], order: Sequence[str]) -> list[Series]:
    """Rates of the targets that ran the whole workload; a case that skips requests has a note."""
    found: dict[str, dict[float, float]] = {}
    for group in bench:
        if (group.workload, group.block_size) == (first.workload, first.block_size):
            for entry in group.entries:
                if not entry.note:
                    found.setdefault(entry.target, {})[float(entry.num_blocks)] = entry.hit_rate
    return [
        Series(target, tuple(sorted(xy.items())), style_of(target, order), place_of(target, order))
        for target, xy in found.items()
    ]


def optimum_table(points: Sequence[Optimum]) -> Table:
    """All capacities, in both units."""
    return Table(
        ("workload", "unit", "block", "capacity", "references", "infinite", "Belady", "LRU",
         "infinite, tokens", "Belady, tokens", "LRU, tokens", "LRU root first, tokens"),
        tuple(_optimum_row(point) for point in points),
        words=2,
    )  # fmt: skip


def _optimum_row(point: Optimum) -> tuple[str, ...]:
    rates = (point.infinite, point.belady, point.lru, point.infinite_tokens, point.belady_tokens,
             point.lru_tokens, point.lru_root_first_tokens)  # fmt: skip
    capacity = "infinite" if point.capacity is None else f"{point.capacity:,}"
    return (
        point.workload,
        point.rule.replace("_", " "),
        str(point.block_size),
        capacity,
        f"{point.references:,}",
        *("" if rate is None else percent(rate, 2) for rate in rates),
    )


def _hit_chart(series: Sequence[Series], subtitle: str, where: str) -> Chart:
    shown = [line for line in series if line.points]
    top = max((y for line in shown for _, y in line.points), default=0.0)
    title = _hit_title(shown, where)
    return Chart(
        title=title,
        subtitle=subtitle,
        drawing=plot(shown, title, "capacity, blocks", (0.0, max(top * 1.08, 0.01)), percent_axis),
        table=series_table("capacity, blocks", shown, percent),
    )


def _hit_title(series: Sequence[Series], where: str) -> str:
    named = {line.name: line.points for line in series}
    if "LRU" not in named or "infinite" not in named:
        return f"Hit rate on {where}"
    most = named["infinite"][-1][1]
    enough = next((capacity for capacity, hit in named["LRU"] if hit >= 0.9 * most), None)
    if enough is None:
        capacity, reached = named["LRU"][-1]
        return (
            f"LRU with {plural(int(capacity), 'block')} hits {percent(reached)} of {percent(most)}"
        )
    return (
        f"LRU needs {plural(int(enough), 'block')} for nine tenths "
        f"of the hits of an infinite cache ({percent(most)})"
    )


def percent_axis(value: float) -> str:
    """Format a share as tick."""
    return f"{value * 100:.3g} %"
