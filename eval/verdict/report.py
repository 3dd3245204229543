"""A run as tables: on the terminal, in Markdown, and as one HTML page that opens offline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from kvproof.eval.run.records import EvalRun
from kvproof.eval.verdict.page import (
    escaped,
    html_page,
    markdown_table,
    print_table,
    print_verdict,
    write_files,
)
from kvproof.eval.verdict.pairs import Row
from kvproof.eval.verdict.summary import Summary, summarise
from kvproof.eval.verdict.tables import brief_comparison, brief_scores, tables
from kvproof.harness.errors import Exit
from kvproof.reports.render.console import Screen
from kvproof.reports.values.text import clean, one_line, percent, plural

_MOST_FLIPS = 12
"""Of one row on the terminal; files hold them all."""

_MOST_LOG = 2000


def render(run: EvalRun) -> Summary:
    """Write comparison.json, report.md and report.html into the run's directory."""
    summary = summarise(run)
    write_reports(summary, run.directory)
    return summary


def write_reports(summary: Summary, directory: Path) -> None:
    """Write all formats. Raises UsageError."""
    write_files(directory, "comparison.json", summary, markdown(summary), html(summary))


def findings(summary: Summary) -> Iterator[str]:
    """One line per obstacle to a pass."""
    for death in summary.deaths:
        yield f"{death.configuration}: {one_line(clean(death.message))}"
    lines = (_finding(row, reason) for row in summary.comparison.rows for reason in row.reasons)
    yield from dict.fromkeys(lines)


def _finding(row: Row, reason: str) -> str:
    """A finding about one side appears once for all rows of that side."""
    alone = reason.startswith((f"{row.before}: ", f"{row.after}: "))
    return clean(f"{row.title}, {reason}" if alone else f"{row.after}, {row.title}: {reason}")


def flips(summary: Summary, most: int | None = None) -> Iterator[tuple[str, str]]:
    """Title and ids of all flips, for each row of the comparison."""
    for row in summary.comparison.rows:
        if row.phase == "hits":
            continue  # those of both passes
        for kind in ("lost", "won", "answer", "text"):
            found = [each for each in row.flips if each.kind == kind]
            if not found:
                continue
            shown = [
                clean(each.id) + ("" if kind == "text" else f" {each.before}->{each.after}")
                for each in found[:most]
            ]
            if len(shown) < len(found):
                shown.append(f"and {len(found) - len(shown)} more")
            title = {"answer": "other wrong answer", "text": "only the text"}.get(kind, kind)
            yield f"{row.after}, {row.title}, {title}", ", ".join(shown)


def sentence(summary: Summary) -> str:
    """Size of the run in one line."""
    asked = summary.conditions
    data = f"{plural(asked.data.samples, 'sample')} of {clean(asked.data.name)}"
    prompt = f"prompt {clean(asked.prompt)} ({asked.prompt_sha256[:12]})"
    sampling = f"temperature {asked.temperature:g}, at most {asked.max_tokens} tokens"
    order = f"order {asked.order}, {asked.concurrency} at once, {plural(asked.repeats, 'repeat')}"
    cut_by = "" if asked.truncation == "none" else f"; {clean(asked.truncation)}"
    by = "" if asked.runner == "kvproof" else f"; asked by {clean(asked.runner)}"
    subject = f"{_subject(summary)}; " if summary.measured else ""
    return f"{subject}{data} ({asked.data.sha256[:12]}); {prompt}; {sampling}; {order}{cut_by}{by}"


def _subject(summary: Summary) -> str:
    """Model, weights and engines."""
    weights = summary.conditions.weights
    models = dict.fromkeys(each.model for each in summary.measured if each.model)
    engines = dict.fromkeys(f"{e.engine} {e.version}".strip() for e in summary.measured)
    named = ", ".join(models) or "model without a name"
    known = f"weights {weights[:12]}" if weights else "weights not known"
    return clean(f"{named} ({known}) on {', '.join(filter(None, engines)) or 'an engine'}")


def print_summary(summary: Summary, console: Console) -> None:
    """Tables, flips and verdict."""
    screen = Screen(console)
    screen.line(sentence(summary))
    for note in summary.conditions.data.notes:
        screen.line(f"Note: {clean(note)}", "dim")
    for table in (brief_scores(summary), brief_comparison(summary)):
        print_table(table, screen)
    for title, ids in flips(summary, _MOST_FLIPS):
        screen.line(f"{title}: {ids}")
    for death in summary.deaths:
        screen.line()
        screen.line(clean(death.log[-_MOST_LOG:]), "dim", indent=2)
    _print_verdict(summary, screen)


def _print_verdict(summary: Summary, screen: Screen) -> None:
    screen.line()
    for finding in findings(summary):
        screen.line(finding)
    print_verdict(summary.verdict, verdict_sentence(summary), screen)
    if summary.directory:
        screen.line(f"Report:  {Path(summary.directory) / 'report.html'}")
        screen.line(f"Records: {summary.directory}")


def verdict_sentence(summary: Summary) -> str:
    """The verdict and its confidence in one sentence."""
    judged = [row for row in summary.comparison.rows if not row.control]
    if summary.exit is Exit.PASS:
        bound = max(row.bound for row in judged)
        if all(row.right_before for row in judged):
            sure = f"; with 95 % confidence fewer than {percent(bound)} of right answers are lost"
        else:
            texts = max(row.flipped for row in judged)
            sure = f"; with 95 % confidence fewer than {percent(texts)} of texts change"
        return f"no difference beyond the control pair{sure}"
    if summary.exit is Exit.INCONCLUSIVE:
        return "the comparison does not show what it is meant to show"
    failed = list(dict.fromkeys(row.after for row in judged if row.verdict == "fail"))
    if not failed:
        return f"the server of {', '.join(each.configuration for each in summary.deaths)} died"
    return f"{' and '.join(failed)} {_DOES[len(failed) > 1]} not answer like {judged[0].before}"


_DOES = ("does", "do")


def markdown(summary: Summary) -> str:
    """The report as Markdown."""
    lines = [
        f"# {_heading(summary)}",
        "",
        f"**{summary.verdict}**: {verdict_sentence(summary)}",
        "",
    ]
    lines += [f"- {escaped(finding)}" for finding in findings(summary)]
    lines += ["", escaped(sentence(summary)), ""]
    lines += [f"- {escaped(clean(note))}" for note in summary.conditions.data.notes]
    for table in tables(summary):
        lines += markdown_table(table)
    found = [f"- {escaped(title)}: {escaped(ids)}" for title, ids in flips(summary)]
    return "\n".join([*lines, *(["", "## Flips", "", *found] if found else []), ""])


def _heading(summary: Summary) -> str:
    title = summary.conditions.data.title
    return title[0].upper() + title[1:]


def html(summary: Summary) -> str:
    """The report as one page."""
    return html_page(
        "eval.html.j2",
        summary=summary,
        sentence=sentence(summary),
        verdict=verdict_sentence(summary),
        findings=list(findings(summary)),
        notes=[clean(note) for note in summary.conditions.data.notes],
        tables=tables(summary),
        flips=list(flips(summary)),
        logs=[(each.configuration, clean(each.log)) for each in summary.deaths],
    )
