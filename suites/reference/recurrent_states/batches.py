"""Copies of rows and lines of a batch, compared with single copies (S3, S4, S10)."""

from __future__ import annotations

from array import array
from typing import TypeAlias

from kvproof.reference.states.batch_copies import StateBatch, merge_runs
from kvproof.suites.framework.coverage import Coverage

Line: TypeAlias = "tuple[array[int], array[int] | None, array[int] | None]"
"""(running, restore, save): rows of one request."""

_COPIES = "copies_are_sorted_disjoint_runs"


def check_runs(coverage: Coverage, pairs: list[list[int]], rows: int) -> object:
    """Merge pairs that may be unfit."""
    given = [(source, destination) for source, destination in pairs]
    written, read = [pair[1] for pair in given], {pair[0] for pair in given}
    twice = len(set(written)) < len(written)
    both = not read.isdisjoint(written)
    outside = not {*read, *written} <= {*range(1, rows)}
    coverage.event("a destination is written twice", twice)
    coverage.event("a row is both read and written", both)
    coverage.event("a row is out of range", outside)
    fits = not (twice or both or outside)
    try:
        runs = merge_runs(given, rows=rows)
    except ValueError:
        coverage.check(_COPIES, not fits, lambda: f"{given} of {rows} rows are refused")
        return "refused"
    coverage.check(_COPIES, fits, lambda: f"{given} of {rows} rows are not refused: {runs}")
    single = [(run.source + i, run.destination + i) for run in runs for i in range(run.size)]
    coverage.check(
        _COPIES,
        sorted(single) == sorted(given) and runs == sorted(runs),
        lambda: f"runs {runs} do not copy {sorted(given)}",
    )
    needed = sum((s - 1, d - 1) not in given for s, d in given)
    coverage.check(_COPIES, len(runs) == needed, lambda: f"{runs} could be {needed} runs")
    coverage.event("copies merge into a run", len(runs) < len(given))
    return len(runs)


def check_batch(
    coverage: Coverage, lines: list[Line], order: list[int], cut: int, rows: int
) -> object:
    """Re-order `lines`, shrink them to some, merge those with the rest; rows must follow."""
    if not lines:
        return None
    batch = StateBatch.of(lines)
    wanted = list(dict.fromkeys(index % len(lines) for index in order)) or [0]
    shrunk = batch.take(wanted)
    _check_lines(coverage, shrunk, [lines[index] for index in wanted])
    coverage.event("a batch is re-ordered", wanted != sorted(wanted))
    coverage.event("a batch is shrunk", len(wanted) < len(lines))
    cut %= len(lines) + 1
    back = batch.take(range(cut, len(lines))).merge(batch.take(range(cut)))
    _check_lines(coverage, back, lines[cut:] + lines[:cut])
    coverage.event("batches are merged", 0 < cut < len(lines))
    _check_copies(coverage, batch, lines, rows)
    return wanted


def _check_lines(coverage: Coverage, batch: StateBatch, lines: list[Line]) -> None:
    null = [0] * len(lines[0][0])
    expected = [[null if ids is None else list(ids) for ids in line] for line in lines]
    found = [[offsets[i].tolist() for offsets in batch] for i in range(len(batch.running))]
    coverage.equal("rows_follow_their_requests", found, expected, "the batch has")


def _check_copies(coverage: Coverage, batch: StateBatch, lines: list[Line], rows: int) -> None:
    copies = batch.copies(rows=rows)
    restores = [p for running, old, _ in lines if old for p in zip(old, running, strict=True)]
    saves = [p for running, _, new in lines if new for p in zip(running, new, strict=True)]
    found = [
        sorted((r.source + i, r.destination + i) for r in runs for i in range(r.size))
        for runs in copies
    ]
    due = [sorted(restores), sorted(saves)]
    coverage.equal("restores_come_before_saves", found, due, "copies before and after a forward:")
    coverage.event("a step restores and saves", restores and saves)
