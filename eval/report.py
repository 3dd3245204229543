"""A run as tables: on the terminal, in Markdown, and as one HTML page that opens offline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jinja2
import msgspec
from rich.console import Console

from kvproof import reports
from kvproof.eval.compare import Row
from kvproof.eval.records import EvalRun
from kvproof.eval.score import Accuracy, Score
from kvproof.eval.summary import Summary, summarise
from kvproof.harness.errors import Exit
from kvproof.harness.records import store
from kvproof.reports.screen import TONES, Screen
from kvproof.reports.text import MARKS, clean, cut, duration, one_line, percent, plural, significant

_MOST_FLIPS = 12
"""Of one row on the terminal; files hold them all."""

_MOST_LOG = 2000


class Table(NamedTuple):
    """A heading, column names, and cells; the first `words` columns are text."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int
    note: str = ""


def render(run: EvalRun) -> Summary:
    """Write comparison.json, report.md and report.html into the run's directory."""
    summary = summarise(run)
    write_reports(summary, run.directory)
    return summary


def write_reports(summary: Summary, directory: Path) -> None:
    """Write all formats. Raises UsageError."""
    files: dict[str, bytes] = {
        "comparison.json": msgspec.json.format(msgspec.json.encode(summary)),
        "report.md": markdown(summary).encode(errors="replace"),
        "report.html": html(summary).encode(errors="replace"),
    }
    for name, data in files.items():
        store(directory / name, data)


def tables(summary: Summary) -> list[Table]:
    """Figures, groups and comparison, the same in every format."""
    return [_scores(summary), _groups(summary), _comparison(summary)]


def _scores(summary: Summary) -> Table:
    head = ("configuration", "pass", "right", "accuracy", "95 % interval", "invalid", "errors",
            "hits", "cached", "first token", "answer", "prompt tokens/s")  # fmt: skip
    rows = tuple(_score(each) for each in summary.scores)
    note = (
        "Invalid: answered, but by neither official rule. Errors: no answer after the last try. "
        "Both are wrong and stay in the denominator. Times are medians."
    )
    return Table("Accuracy", head, rows, 2, note)


def _score(each: Score) -> tuple[str, ...]:
    hits = f"{each.hits}/{each.told}" if each.told else "not told"
    return (
        each.configuration,
        each.phase,
        f"{each.overall.right}/{each.overall.total}",
        percent(each.overall.share),
        _interval(each.overall),
        str(each.invalid),
        ", ".join(f"{count} {kind}" for kind, count in each.errors.items()) or "0",
        hits,
        _or_dash(each.cached, percent),
        _or_dash(each.first_token, duration),
        _or_dash(each.seconds, duration),
        _or_dash(each.prompt_rate, significant),
    )


def _brief_scores(summary: Summary) -> Table:
    """What fits on a terminal of 80 columns."""
    head = ("configuration", "pass", "right", "%", "95 %", "invalid", "errors", "hits", "cached",
            "first")  # fmt: skip
    return Table("Accuracy", head, tuple(_brief_score(each) for each in summary.scores), 2)


def _brief_score(each: Score) -> tuple[str, ...]:
    low, high = each.overall.interval
    return (
        each.configuration,
        each.phase,
        f"{each.overall.right}/{each.overall.total}",
        f"{100 * each.overall.share:.1f}",
        f"{100 * low:.0f}-{100 * high:.0f}",
        str(each.invalid),
        str(sum(each.errors.values())),
        str(each.hits) if each.told else "?",
        _or_dash(each.cached, lambda share: f"{100 * share:.0f} %"),
        _or_dash(each.first_token, duration),
    )


def _brief_comparison(summary: Summary) -> Table:
    found = summary.comparison
    head = (f"{found.rows[0].before} and", "pass", "texts", "answers", "lost", "won", "p accuracy",
            "p flips", "verdict")  # fmt: skip
    rows = tuple(_brief_row(row) for row in found.rows)
    note = (
        "Pairs of the same sample: texts and answers that differ, right ones lost and won. p: "
        "exact McNemar test; whether more flips than in the control pair (-); Holm over "
        f"{plural(found.tests, 'test')}. A loss is noticed from {found.smallest_loss} answers on."
    )
    return Table("Comparison", head, rows, 2, note)


def _brief_row(row: Row) -> tuple[str, ...]:
    cells = _row(row)
    p = ("-", "-") if row.control else cells[7:9]
    return (*cells[:2], *cells[3:7], *p, cells[-1])


def _or_dash(value: float | None, form: Callable[[float], str]) -> str:
    return "-" if value is None else form(value)


def _interval(found: Accuracy) -> str:
    low, high = found.interval
    return f"{100 * low:.1f} to {100 * high:.1f}"


def _groups(summary: Summary) -> Table:
    names = list(dict.fromkeys(name for each in summary.scores for name in each.groups))
    rows = tuple(
        (each.configuration, each.phase, *(_group(each, name) for name in names))
        for each in summary.scores
    )
    return Table("By length, difficulty and domain", ("configuration", "pass", *names), rows, 2)


def _group(each: Score, name: str) -> str:
    found = each.groups.get(name)
    return f"{found.right}/{found.total}" if found else "-"


def _comparison(summary: Summary) -> Table:
    found = summary.comparison
    before = found.rows[0].before
    head = (f"{before} and", "pass", "pairs", "texts", "answers", "lost", "won", "p accuracy",
            "p flips", "lost at most", "log-prob.", "verdict")  # fmt: skip
    note = (
        "Pairs of the same sample: texts and answers that differ; right ones lost and won. p of "
        "the accuracy: exact McNemar test; p of the flips: more flips than in the control pair; "
        f"Holm over {plural(found.tests, 'test')}, one false alarm below {found.alpha:g}. "
        "Lost at most: 95 % bound of the share of right answers. Log-prob.: largest difference of "
        f"a token where texts agree. A loss is noticed from {found.smallest_loss} answers on."
    )
    return Table("Comparison", head, tuple(_row(row) for row in found.rows), 2, note)


def _row(row: Row) -> tuple[str, ...]:
    noise = "control" if row.control else ""
    return (
        row.after,
        row.phase,
        str(row.pairs),
        str(row.texts),
        str(row.answers),
        str(row.lost),
        str(row.won),
        noise or _p(row.adjusted_accuracy),
        noise or _p(row.adjusted_flips),
        percent(row.bound),
        _or_dash(row.logprob, lambda value: f"{value:.2g}"),
        MARKS[row.verdict].word,
    )


def _p(value: float) -> str:
    return "<0.0001" if value < 0.0001 else f"{value:.2g}"


def findings(summary: Summary) -> Iterator[str]:
    """One line for everything that keeps the run from passing."""
    for death in summary.deaths:
        yield f"{death.configuration}: {one_line(clean(death.message))}"
    lines = (_finding(row, reason) for row in summary.comparison.rows for reason in row.reasons)
    yield from dict.fromkeys(lines)


def _finding(row: Row, reason: str) -> str:
    """What is about one side alone is said once for all rows of that side."""
    alone = reason.startswith((f"{row.before}: ", f"{row.after}: "))
    return clean(f"{row.phase}, {reason}" if alone else f"{row.after}, {row.phase}: {reason}")


def flips(summary: Summary, most: int | None = None) -> Iterator[tuple[str, str]]:
    """Title and ids of all flips, a row of the comparison at a time."""
    for row in summary.comparison.rows:
        for kind in ("lost", "won", "answer", "text"):
            found = [each for each in row.flips if each.kind == kind]
            if not found:
                continue
            told = [
                clean(each.id) + ("" if kind == "text" else f" {each.before}->{each.after}")
                for each in found[:most]
            ]
            if len(told) < len(found):
                told.append(f"and {len(found) - len(told)} more")
            title = {"answer": "other wrong answer", "text": "only the text"}.get(kind, kind)
            yield f"{row.after}, {row.phase}, {title}", ", ".join(told)


def sentence(summary: Summary) -> str:
    """What was asked, in one line."""
    asked = summary.conditions
    data = f"{plural(asked.data.samples, 'sample')} of {clean(asked.data.name)}"
    prompt = f"prompt {clean(asked.prompt)} ({asked.prompt_sha256[:12]})"
    sampling = f"temperature {asked.temperature:g}, at most {asked.max_tokens} tokens"
    order = f"order {asked.order}, {asked.concurrency} at once, {plural(asked.repeats, 'repeat')}"
    cut_by = "" if asked.truncation == "none" else f"; {clean(asked.truncation)}"
    return f"{data} ({asked.data.sha256[:12]}); {prompt}; {sampling}; {order}{cut_by}"


def print_summary(summary: Summary, console: Console) -> None:
    """Tables, flips and verdict."""
    screen = Screen(console)
    screen.line(sentence(summary))
    for note in summary.conditions.data.notes:
        screen.line(f"Note: {clean(note)}", "dim")
    for table in (_brief_scores(summary), _brief_comparison(summary)):
        _print_table(table, screen)
    for title, ids in flips(summary, _MOST_FLIPS):
        screen.line(f"{title}: {ids}")
    for death in summary.deaths:
        screen.line()
        screen.line(clean(death.log[-_MOST_LOG:]), "dim", indent=2)
    _print_verdict(summary, screen)


def _print_table(table: Table, screen: Screen) -> None:
    screen.heading(table.title)
    drawn = screen.table(*table.head)
    for column in drawn.columns[table.words :]:
        column.justify = "right"
    for row in table.rows:
        drawn.add_row(*(screen.text(cell) for cell in row))
    screen.show(drawn)
    if table.note:
        screen.line(table.note, "dim")


def _print_verdict(summary: Summary, screen: Screen) -> None:
    screen.line()
    for finding in findings(summary):
        screen.line(finding)
    word = screen.text(f" {summary.verdict.upper()} ", TONES[summary.verdict])
    screen.write(word.append_text(screen.text(f" {verdict_sentence(summary)}", "bold")))
    if summary.directory:
        screen.line(f"Report:  {Path(summary.directory) / 'report.html'}")
        screen.line(f"Records: {summary.directory}")


def verdict_sentence(summary: Summary) -> str:
    """What the verdict says, and how sure it is."""
    judged = [row for row in summary.comparison.rows if not row.control]
    bound = max((row.bound for row in judged), default=1.0)
    if summary.exit is Exit.PASS:
        return f"no difference beyond the control pair; at most {percent(bound)} of answers lost"
    if summary.exit is Exit.INCONCLUSIVE:
        return "the comparison does not show what it is meant to show"
    failed = list(dict.fromkeys(row.after for row in judged if row.verdict == "fail"))
    if not failed:
        return f"the server of {', '.join(each.configuration for each in summary.deaths)} died"
    return f"{' and '.join(failed)} {_DOES[len(failed) > 1]} not answer like {judged[0].before}"


_DOES = ("does", "do")


def markdown(summary: Summary) -> str:
    """The report as Markdown."""
    lines = ["# LongBench v2", "", f"**{summary.verdict}**: {verdict_sentence(summary)}", ""]
    lines += [f"- {_escaped(finding)}" for finding in findings(summary)]
    lines += ["", _escaped(sentence(summary)), ""]
    lines += [f"- {_escaped(clean(note))}" for note in summary.conditions.data.notes]
    for table in tables(summary):
        lines += ["", f"## {table.title}", "", _line(table.head)]
        lines.append(_line(["---"] * table.words + ["--:"] * (len(table.head) - table.words)))
        lines += [_line(row) for row in table.rows]
        lines += ["", table.note] if table.note else []
    found = [f"- {_escaped(title)}: {_escaped(ids)}" for title, ids in flips(summary)]
    return "\n".join([*lines, *(["", "## Flips", "", *found] if found else []), ""])


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(_escaped(cell) for cell in cells)} |"


def _escaped(text: str) -> str:
    for sign in "\\`*_[]<>|":
        text = text.replace(sign, f"\\{sign}")
    return one_line(text)


def html(summary: Summary) -> str:
    """The report as one page."""
    return (
        _environment()
        .get_template("eval.html.j2")
        .render(
            summary=summary,
            sentence=sentence(summary),
            verdict=verdict_sentence(summary),
            findings=list(findings(summary)),
            notes=[clean(note) for note in summary.conditions.data.notes],
            tables=tables(summary),
            flips=list(flips(summary)),
            logs=[(each.configuration, clean(each.log)) for each in summary.deaths],
        )
    )


@cache
def _environment() -> jinja2.Environment:
    """Templates of this folder, with the style sheet of all reports."""
    folders = [Path(__file__).parent / "templates", Path(reports.__file__).parent / "templates"]
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["brief"] = lambda value: cut(value, 8000)
    return made
