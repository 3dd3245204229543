"""A run as tables: on the terminal, in Markdown, in JSON, and as one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from kvproof.eval.divergence.judge import ALLOWED, Figures, Judgement, Row, judge
from kvproof.eval.divergence.records import DivergenceRun, Lost, Measured, Options, Served
from kvproof.eval.verdict.page import (
    Table,
    escaped,
    html_page,
    markdown_table,
    print_table,
    print_verdict,
    write_files,
)
from kvproof.harness.errors import Exit
from kvproof.reports.render.console import Screen
from kvproof.reports.values.text import MARKS, clean, one_line, percent, plural

VERDICTS = {"pass": Exit.PASS, "inconclusive": Exit.INCONCLUSIVE, "fail": Exit.FAILURE}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands, complete or not."""

    directory: str
    options: Options
    servers: tuple[Served, ...]
    judgement: Judgement
    lost: tuple[Lost, ...]
    versions: dict[str, str]

    @property
    def died(self) -> bool:
        """Whether a started server ended before it was stopped."""
        return any(each.died for each in self.lost)

    @property
    def verdict(self) -> str:
        """The verdict as a word."""
        return "fail" if self.died else self.judgement.verdict

    @property
    def exit(self) -> Exit:
        """Exit code of the run."""
        return VERDICTS[self.verdict]


def summarise(run: DivergenceRun) -> Summary:
    """Judge all records of a run."""
    return Summary(
        directory=str(run.directory),
        options=run.options,
        servers=tuple(each for each in run.records if isinstance(each, Served)),
        judgement=judge(run.options, run.records),
        lost=tuple(each for each in run.records if isinstance(each, Lost)),
        versions=run.manifest.versions,
    )


def render(run: DivergenceRun) -> Summary:
    """Write divergence.json, report.md and report.html. Raises UsageError."""
    summary = summarise(run)
    write_files(run.directory, "divergence.json", summary, markdown(summary), html(summary))
    return summary


def print_summary(summary: Summary, console: Console) -> None:
    """Tables, findings and verdict."""
    screen = Screen(console)
    for line in sentences(summary):
        screen.line(line)
    for table in (_brief(summary), *tables(summary)[1:]):
        print_table(table, screen)
    screen.line()
    for finding in findings(summary):
        screen.line(finding)
    for death in summary.lost:
        if death.log:
            screen.line(clean(death.log[-2000:]), "dim", indent=2)
    print_verdict(summary.verdict, verdict_sentence(summary), screen)
    screen.line(f"Report:  {Path(summary.directory) / 'report.html'}")
    screen.line(f"Records: {summary.directory}")


def sentences(summary: Summary) -> list[str]:
    """What was measured: servers, models, size, error rate."""
    options = summary.options
    found = [
        f"{plural(options.documents, 'document')}, prompts of up to {options.most_tokens} tokens, "
        f"{plural(options.tokens, 'token')} of each answer, seed {options.seed}; a correct run "
        f"fails with probability {options.alpha:g} at most"
        + ("; the engine promises equal bits" if options.exact else "")
    ]
    found += [clean(_server(each)) for each in summary.servers]
    return found


def _server(served: Served) -> str:
    engine = f"{served.engine}, " if served.engine else ""
    return f"{served.configuration} ({served.role}): {engine}{served.model}, {_gives(served)}"


def _gives(served: Served) -> str:
    able = served.abilities
    top = "no log-probabilities" if able.top is None else f"the {able.top} likeliest tokens"
    return f"{top}, {'token ids' if able.token_ids else 'texts'}"


def findings(summary: Summary) -> Iterator[str]:
    """One line per obstacle to a pass."""
    for each in summary.lost:
        if each.died:
            yield one_line(clean(f"{each.configuration}: {each.message}"))
    for doubt in summary.judgement.doubts:
        yield clean(doubt)
    for row in summary.judgement.rows:
        yield from (clean(f"{row.configuration}: {reason}") for reason in row.reasons)


def verdict_sentence(summary: Summary) -> str:
    """The verdict and its confidence."""
    rows = summary.judgement.rows
    if summary.died:
        return "a server died"
    if summary.verdict == "fail":
        names = [row.configuration for row in rows if row.verdict == "fail"]
        return f"{' and '.join(map(clean, names))}: not what is recomputed"
    if summary.verdict == "inconclusive":
        return "the run does not show what it is meant to show"
    least = max(row.at_most for row in rows)
    limit = max(row.limit for row in rows)
    return (
        f"hits answer like recomputed requests: no token is off by {limit:.2g} nats; with 95 % "
        f"confidence fewer than {percent(least)} of hits are"
        if limit
        else f"hits answer exactly like recomputed requests; with 95 % confidence fewer than "
        f"{percent(least)} do not"
    )


def tables(summary: Summary) -> list[Table]:
    """Verdicts, the floor, groups, and the worst answers."""
    found = [_rows(summary), _floor(summary)]
    for row in summary.judgement.rows:
        found += [
            _figures(f"{row.configuration}, by {by}", groups) for by, groups in row.by.items()
        ]
        if row.worst:
            found.append(_worst(row))
    return [each for each in found if each.rows]


def _measured(summary: Summary) -> Table:
    head = ("server", "role", "engine", "model", "SHA-256 of the weights", "gives", "started as")
    rows = tuple(
        tuple(one_line(clean(cell)) for cell in (
            each.configuration, each.role, each.engine or "not reported", each.model,
            each.weights or "not on this machine", _gives(each),
            shlex.join(each.command) or each.url,
        ))
        for each in summary.servers
    )  # fmt: skip
    return Table("What was measured", head, rows, len(head))


def _rows(summary: Summary) -> Table:
    head = ("hits of", "answers", "hits", "tokens", "largest", "p99.9", "mean KL", "limit",
            "beyond", "p many", "wrong at most", "verdict")  # fmt: skip
    rows = tuple(
        (
            clean(row.configuration), *_cells(row.whole)[1:4], *_cells(row.whole)[5:],
            _nats(row.limit), str(row.whole.beyond), f"{row.p_many:.2g}", percent(row.at_most),
            MARKS[row.verdict].word,
        )
        for row in summary.judgement.rows
    )  # fmt: skip
    note = (
        "Differences per token against the recomputed answer, teacher-forced: largest, 99.9th "
        "percentile (log-probability, nats), mean Kullback-Leibler divergence. Limit: largest "
        "difference of a correct run. Beyond: answers over it. P many: whether most documents "
        "differ more than recomputed ones (sign test)."
    )
    return Table("Hits against recomputed answers", head, rows, 1, note)


def _brief(summary: Summary) -> Table:
    """Return the first table for a terminal of 80 columns."""
    return _rows(summary).columns((0, 2, 3, 4, 5, 7, 8, 11), words=1)


_HEAD = ("", "answers", "hits", "tokens", "flips", "largest", "p99.9", "mean KL")


def _floor(summary: Summary) -> Table:
    rows = tuple(_cells(each) for each in summary.judgement.floor)
    note = (
        "Recomputed once more: again alone, together with other requests, and by other correct "
        f"servers. Differences up to {ALLOWED:g} nats count as rounding unless --exact is given."
    )
    return Table("Floor: recomputed against recomputed", ("floor", *_HEAD[1:]), rows, 1, note)


def _figures(title: str, found: Sequence[Figures]) -> Table:
    rows = tuple((*_cells(each), str(each.beyond)) for each in found)
    return Table(title, (*_HEAD, "beyond"), rows, 1)


def _cells(each: Figures) -> tuple[str, ...]:
    return (
        clean(each.name), str(each.answers), str(each.hits), f"{each.places:,}", str(each.flips),
        _nats(each.largest), _nats(each.p999), _nats(each.mean_kl),
    )  # fmt: skip


def _nats(value: float) -> str:
    return "0" if not value else f"{value:.2g}"


def _worst(row: Row) -> Table:
    head = ("document", "pass", "prompt", "cached", "first place", "at", "largest")
    rows = tuple(_answer(each, row.limit) for each in row.worst)
    note = "First place: the first token of the answer beyond the limit; at: the largest."
    return Table(f"{clean(row.configuration)}, answers beyond the limit", head, rows, 2, note)


def _answer(each: Measured, limit: float) -> tuple[str, ...]:
    first = next(at for at, v in zip(each.places, each.largest, strict=True) if v > limit)
    worst = max(range(len(each.places)), key=lambda index: each.largest[index])
    return (
        str(each.number), each.phase, str(each.prompt_tokens), str(each.cached_tokens),
        str(first), str(each.places[worst]), _nats(each.largest[worst]),
    )  # fmt: skip


def markdown(summary: Summary) -> str:
    """The report as Markdown."""
    lines = ["# Divergence per token", ""]
    lines += [f"**{summary.verdict}**: {escaped(verdict_sentence(summary))}", ""]
    lines += [f"- {escaped(finding)}" for finding in findings(summary)]
    lines += ["", *(f"- {escaped(each)}" for each in sentences(summary))]
    for table in (*tables(summary), _measured(summary)):
        lines += markdown_table(table)
    return "\n".join([*lines, ""])


def html(summary: Summary) -> str:
    """The report as one page."""
    return html_page(
        "divergence.html.j2",
        summary=summary,
        verdict=verdict_sentence(summary),
        findings=list(findings(summary)),
        sentences=sentences(summary),
        tables=[*tables(summary), _measured(summary)],
        logs=[(each.configuration, clean(each.log)) for each in summary.lost if each.log],
    )
