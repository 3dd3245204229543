"""A comparison of runs as sentences and tables; the renderers only lay it out."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.harness.analysis.compare import LEAST_ROUNDS, LOSSES, Comparison, Row
from kvproof.harness.analysis.environment import Difference
from kvproof.harness.analysis.series import UNITS
from kvproof.harness.analysis.verdicts import VerdictChange
from kvproof.harness.errors import Exit
from kvproof.harness.records.run_directory import Run
from kvproof.reports.values.svg import Table
from kvproof.reports.values.text import clean, cut, listed, one_line, percent, plural, significant

METRICS = {
    "cpu_per_token": "CPU time per token",
    "p50": "median latency",
    "p99": "p99 latency",
    "growth": "time per token with a full cache",
    "kernel": "kernel time",
    "bytes_per_block": "memory per block",
    "misses": "tokens not in the cache",
    "wrong_answers": "share of wrong answers",
    "recomputed_tokens": "share of prompt tokens not from the cache",
    "largest_difference": "largest difference of a token",
}

TONES = {
    Exit.PASS: "pass",
    Exit.FAILURE: "fail",
    Exit.REGRESSION: "fail",
    Exit.INCONCLUSIVE: "inconclusive",
}
"""Code -> colour."""

_WORDS = {
    Exit.PASS: "NOTHING WORSE",
    Exit.FAILURE: "FAIL",
    Exit.REGRESSION: "SLOWER",
    Exit.INCONCLUSIVE: "INCONCLUSIVE",
}

_MOST_REASON = 200


def word(found: Comparison) -> str:
    """The verdict in capitals."""
    return _WORDS[found.code]


def sentence(found: Comparison) -> str:
    """Changes in one sentence; unchanged figures are counted."""
    counts, short = found.counts, len(found.unfinished)
    worse = sum(each.trend == "worse" for each in found.verdicts)
    better = sum(each.trend == "better" for each in found.verdicts)
    parts = [
        f"{plural(short, 'run')} of the head cut short" if short else "",
        f"{plural(worse, 'verdict')} worse" if worse else "",
        f"{plural(better, 'verdict')} better" if better else "",
        *(f"{counts[name]} {name}" for name in (*LOSSES, "faster", "better") if counts[name]),
        f"{counts['same']} of {plural(len(found.rows), 'figure')} the same" if found.rows else "",
        f"{counts['inconclusive']} inconclusive" if counts["inconclusive"] else "",
        f"{found.judged - len(found.verdicts)} of {plural(found.judged, 'verdict')} unchanged"
        if found.judged
        else "",
        f"{plural(len(found.refused), 'comparison')} refused" if found.refused else "",
    ]
    return ", ".join(filter(None, parts))


def claims(found: Comparison) -> str:
    """Error rates of the verdicts in one sentence."""
    measured = [row for row in found.rows if row.found is not None]
    if not measured:
        return ""
    apart = sum(row.turns < LEAST_ROUNDS for row in measured)
    drift = (
        f" {plural(apart, 'row')} measured one after the other may have met another machine: "
        "their threshold is doubled."
        if apart
        else ""
    )
    return (
        f"The chance that any of {plural(len(measured), 'measured figure')} is called slower or "
        f"faster and lies within its threshold is at most {percent(found.settings.alpha, 0)} "
        "(Mann-Whitney, of paired runs Wilcoxon, against the threshold; Holm over the table). "
        f"The same: its 95 % interval lies within the threshold.{drift}"
    )


def side_words(runs: Sequence[Run]) -> str:
    """Commit, time and place of a side."""
    commits = sorted({(run.manifest.commit or "")[:12] for run in runs} - {""})
    first = runs[0]
    where = first.directory if len(runs) == 1 else first.directory.parent
    killed = sum(run.ended is None for run in runs)
    parts = [
        f"{plural(len(runs), 'run')} of {first.manifest.verb}",
        f"commit {listed(commits)}" if commits else "",
        first.manifest.started,
        f"{killed} without an end" if killed else "",
    ]
    return clean(f"{where} ({', '.join(filter(None, parts))})")


def difference_table(found: Sequence[Difference]) -> Table:
    """One line per differing fact."""
    rows = [(d.what, d.base, d.head, d.forbids) for d in found]
    return Table(("what", "base", "head", "so"), tuple(tuple(map(_cell, row)) for row in rows), 4)


def verdict_table(found: Sequence[VerdictChange]) -> Table:
    """One line per changed verdict, the worst first."""
    rows = [
        (each.trend, f"{each.subject.target}", each.subject.name, each.base.verdict,
         each.head.verdict, each.head.reason)
        for each in found
    ]  # fmt: skip
    head = ("", "target", "property, cell, check or op log", "base", "head", "why")
    return Table(head, tuple(tuple(map(_cell, row)) for row in rows), 6)


def row_table(found: Sequence[Row]) -> Table:
    """One line per figure, with its interval and p-value."""
    head = ("", "subject", "figure", "of", "base", "head", "ratio", "95 % interval", "p",
            "threshold", "n")  # fmt: skip
    return Table(head, tuple(tuple(map(_cell, _figures(row))) for row in found), 4)


def undecided_table(found: Sequence[Row]) -> Table:
    """One line per figure that cannot be judged, with the reason."""
    rows = [(row.key.subject, METRICS[row.key.metric], row.key.detail, row.reason) for row in found]
    return Table(("subject", "figure", "of", "why"), tuple(tuple(map(_cell, r)) for r in rows), 4)


def _figures(row: Row) -> tuple[str, ...]:
    unit = UNITS[row.key.metric]
    seen = row.found
    return (
        row.change + (" (peer)" if row.peer else ""),
        row.key.subject,
        METRICS[row.key.metric],
        row.key.detail,
        f"{significant(row.base)} {unit}".strip(),
        f"{significant(row.head)} {unit}".strip(),
        f"{row.ratio:.3f}",
        f"{seen.low:.3f} to {seen.high:.3f}" if seen else "counted",
        "" if row.p is None else f"{row.p:.1g}",
        percent(row.threshold, 0),
        f"{seen.base_n} + {seen.head_n}" if seen else "",
    )


def _cell(value: str) -> str:
    return cut(one_line(clean(value)), _MOST_REASON)
