"""A run as tables: on the terminal, in Markdown, as one HTML page, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console

from kvproof.eval.run.records import ServerRecord
from kvproof.eval.scbench.judge import Row, TaskScore, judge, task_scores
from kvproof.eval.scbench.records import Lost, Options, ScbenchRun
from kvproof.eval.verdict.measured import Measured, measured, server_rows
from kvproof.eval.verdict.page import (
    Table,
    escaped,
    html_page,
    markdown_table,
    print_table,
    print_verdict,
    write_files,
)
from kvproof.harness.errors import Exit, worst
from kvproof.reports.render.console import Screen
from kvproof.reports.values.text import MARKS, clean, one_line, percent, plural

_EXITS = {"pass": Exit.PASS, "inconclusive": Exit.INCONCLUSIVE, "fail": Exit.FAILURE}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands."""

    directory: str
    options: Options
    rows: list[Row]
    scores: list[TaskScore]
    measured: tuple[Measured, ...]
    lost: list[Lost]

    @property
    def exit(self) -> Exit:
        """Exit code of the run."""
        codes = [_EXITS[row.verdict] for row in self.rows] or [Exit.INCONCLUSIVE]
        return worst([*codes, *(Exit.FAILURE for _ in self.lost)])

    @property
    def verdict(self) -> str:
        """The verdict as a word."""
        return next(word for word, code in _EXITS.items() if code == self.exit)


def summarise(run: ScbenchRun) -> Summary:
    """Judge all records of a run."""
    lost = [each for each in run.records if isinstance(each, Lost)]
    servers = [each for each in run.records if isinstance(each, ServerRecord)]
    return Summary(
        directory=str(run.directory),
        options=run.options,
        rows=judge(run.options, run.answers, lost),
        scores=task_scores(run.options, run.answers),
        measured=measured(run.options.config, servers),
        lost=lost,
    )


def render(run: ScbenchRun) -> Summary:
    """Write comparison.json, report.md and report.html into the run's directory."""
    summary = summarise(run)
    write_files(run.directory, "comparison.json", summary, markdown(summary), html(summary))
    return summary


def title(options: Options) -> str:
    """Name of the benchmark; only public files carry it alone."""
    return "SCBench files" if options.data else "Synthetic miniature of SCBench"


def verdict_sentence(summary: Summary) -> str:
    """The verdict in one sentence."""
    failed = dict.fromkeys(row.configuration for row in summary.rows if row.verdict == "fail")
    if failed:
        return f"{' and '.join(failed)}: answers from the cache are not the recomputed ones"
    if summary.lost:
        return f"the server of {summary.lost[0].configuration} died"
    if summary.exit is Exit.PASS:
        return f"at most {percent(max(row.bound for row in summary.rows))} lost at any load"
    return "the comparison does not show what it is meant to show"


def findings(summary: Summary) -> Iterator[str]:
    """One line per obstacle to a pass."""
    yield from (f"{each.configuration}: {one_line(clean(each.message))}" for each in summary.lost)
    for row in summary.rows:
        yield from (f"{row.configuration}, {row.level}: {clean(each)}" for each in row.reasons)


def sentence(summary: Summary) -> str:
    """Size and conditions of the run."""
    asked, protocol = summary.options, summary.options.config.protocol
    weights = f"weights {asked.weights}" if asked.weights else "weights not known"
    return (
        f"{plural(asked.sessions, 'session')} each of {', '.join(asked.tasks)} "
        f"({asked.data or 'generated'}); {' and '.join(asked.modes)}; own answers fed back; "
        f"temperature {protocol.temperature:g}; {weights}"
    )


def tables(summary: Summary) -> list[Table]:
    """Loads, scores and servers."""
    return [_loads(summary), _scores(summary), _servers(summary)]


def _loads(summary: Summary) -> Table:
    head = ("configuration", "load", "pairs", "hits", "cached", "texts", "noise", "lost", "won",
            "p scores", "p texts", "at most", "verdict")  # fmt: skip
    note = (
        "Pairs: the same messages answered by the configuration and recomputed. Hits: later turns "
        "and requests of which most was cached; cached: share of their tokens. Texts: pairs that "
        "differ; noise: recomputed one and eight at a time. Lost, won: scores that fell and "
        "rose. p: exact McNemar test, and more texts than noise; Holm over the table. At most: "
        "95 % bound of what is lost. Eviction: the next turn of a session comes after those of "
        "all others."
    )
    return Table("Loads", head, tuple(_load(row) for row in summary.rows), 2, note)


def _load(row: Row) -> tuple[str, ...]:
    return (
        row.configuration, row.level, str(row.pairs), f"{row.hits}/{row.later}",
        percent(row.cached), str(row.texts), str(row.noise), str(row.lost), str(row.won),
        f"{row.p_score:.2g}", f"{row.p_texts:.2g}", percent(row.bound), MARKS[row.verdict].word,
    )  # fmt: skip


def _scores(summary: Summary) -> Table:
    head = ("configuration", "mode", "task", "turn", "answers", "recomputed", "from the cache")
    rows = tuple(
        (e.configuration, e.mode, e.task, str(e.turn + 1), str(e.answers),
         percent(e.before), percent(e.after))
        for e in summary.scores
    )  # fmt: skip
    return Table("Scores by turn", head, rows, 3, "Over all loads. Prompts are our own wording.")


def _servers(summary: Summary) -> Table:
    head = ("configuration", "engine", "version", "prefix cache", "model", "command or address")
    return Table("Servers", head, server_rows(summary.measured), len(head))


def print_summary(summary: Summary, console: Console) -> None:
    """Sentence, loads and verdict."""
    screen = Screen(console)
    screen.line(f"{title(summary.options)}: {sentence(summary)}")
    loads = _loads(summary)
    print_table(loads.columns((0, 1, 2, 3, 5, 6, 7, 8, 11, 12), loads.words), screen)
    screen.line()
    for finding in findings(summary):
        screen.line(finding)
    print_verdict(summary.verdict, verdict_sentence(summary), screen)
    screen.line(f"Report:  {Path(summary.directory) / 'report.html'}")


def markdown(summary: Summary) -> str:
    """The report as Markdown."""
    lines = [f"# {title(summary.options)}", ""]
    lines += [f"**{summary.verdict}**: {escaped(verdict_sentence(summary))}", ""]
    lines += [f"- {escaped(each)}" for each in (*findings(summary), sentence(summary))]
    for table in tables(summary):
        lines += markdown_table(table)
    return "\n".join([*lines, ""])


def html(summary: Summary) -> str:
    """The report as one page."""
    return html_page(
        "scbench.html.j2",
        summary=summary,
        title=title(summary.options),
        verdict=verdict_sentence(summary),
        lines=[*findings(summary), sentence(summary)],
        tables=tables(summary),
        logs=[(each.configuration, clean(each.log)) for each in summary.lost if each.log],
    )
