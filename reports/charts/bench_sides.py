"""Sides of a bench: the work that each is given, and the ratios of pairs, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.harness.contract.target import PARTS
from kvproof.harness.records.bench_events import BenchGiven, BenchPair
from kvproof.reports.charts.bench import case_words, work
from kvproof.reports.values.svg import Table
from kvproof.reports.values.text import significant

GIVEN = "Work of each side"
PART = "(part)"
"""Mark of a side that has less to do."""
PAIRS = "Tokens/s over those of each other side, by CPU time in paired repetitions"


def given(found: Sequence[BenchGiven]) -> Table:
    """One line for each side, and one more where it does less."""
    heads = ("target", "version", "work", *PARTS)
    return Table(heads, tuple(map(_given, found)), words=len(heads))


def _given(found: BenchGiven) -> tuple[str, ...]:
    parts = (found.parts.get(part, "") for part in PARTS)
    return found.target, found.version, work(found.lacks), *parts


def pairs(found: Sequence[BenchPair]) -> Table:
    """One line for each case and other side; a ratio to a side with less to do is a bound."""
    heads = ("case", "groups", "block", "target", "over", "work of that side", "times", "95 %", "n")
    return Table(heads, tuple(map(_pair, found)), words=6)


def narrow_pairs(found: Sequence[BenchPair]) -> Table:
    """The same for a terminal of 80 columns."""
    heads, rows = ("case", "block", "over", "times", "95 %", "n"), []
    for pair in found:
        case, _, block, _, over, _, *figures = _pair(pair)
        rows.append((case, block, f"{over} {PART}" if pair.peer_lacks else over, *figures))
    return Table(heads, tuple(rows), words=3)


def _pair(found: BenchPair) -> tuple[str, ...]:
    bound = "at least " if found.peer_lacks else ""
    return (
        case_words(found.case), found.groups or "full", str(found.block_size), found.target,
        found.peer, work(found.peer_lacks), f"{bound}{significant(found.ratio)}",
        f"{significant(found.low)} to {significant(found.high)}", str(found.repetitions),
    )  # fmt: skip
