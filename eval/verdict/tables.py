"""Figures of a run as tables of text: accuracy, groups, comparison."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvproof.eval.long_context.grade import EXTRACTION
from kvproof.eval.run.records import Scored
from kvproof.eval.verdict.evaluated import Table
from kvproof.eval.verdict.measured import Measured, condition_rows, server_rows
from kvproof.eval.verdict.pairs import Row
from kvproof.eval.verdict.score import Accuracy, Score
from kvproof.eval.verdict.summary import Summary
from kvproof.reports.values.text import MARKS, duration, percent, plural, significant


def tables(summary: Summary) -> list[Table]:
    """Figures, groups and comparison, the same in every format."""
    found = [_scores(summary), _groups(summary), _comparison(summary)]
    second = [_opencompass(summary)] if summary.scored else []
    return [*found, *second, _flips(summary), _conditions(summary), servers(summary.measured)]


def servers(found: Sequence[Measured]) -> Table:
    """Engines, and how they were started."""
    head = ("configuration", "engine", "version", "prefix cache", "model", "command or address")
    return Table("Servers", head, server_rows(found), len(head))


def _flips(summary: Summary) -> Table:
    head = ("configuration", "pass", "flip", "sample", "before", "after")
    rows = tuple(
        (row.after, row.title, _KINDS.get(each.kind, each.kind), each.id, each.before, each.after)
        for row in summary.comparison.rows
        if row.phase != "hits"  # those of both passes
        for each in row.flips
    )
    return Table("Flips", head, rows, len(head))


_KINDS = {"answer": "other wrong answer", "text": "only the text"}


def _conditions(summary: Summary) -> Table:
    rows = condition_rows(summary.conditions)
    return Table("What was measured", ("condition", "value"), rows, 2)


_BESIDE = "OpenCompass's evaluator beside ours"


def _opencompass(summary: Summary) -> Table:
    if any(each.score is not None for each in summary.scored):
        return _graded(summary)
    head = ("configuration", "data set", "strict rule", "OpenCompass",
            *(name.removeprefix("accuracy_") for name in _METRICS), "prompts changed")  # fmt: skip
    rows = tuple(
        (
            each.configuration,
            each.data,
            f"{100 * each.right / each.total:.1f}" if each.total else "-",
            *(_metric(each, name) for name in ("accuracy", *_METRICS)),
            str(each.edited),
        )
        for each in summary.scored
    )
    note = (
        "Right answers in percent. Strict rule: ours, the official one, which decides. "
        "OpenCompass: its own evaluator on the same texts, which takes the first capital letter "
        "A to D where no rule matches; its tables are in opencompass/ of the run. Prompts "
        "changed: its template replaced text of a document that looks like a field."
    )
    return Table(_BESIDE, head, rows, 2, note)


def _graded(summary: Summary) -> Table:
    head = ("configuration", "data set", "right", "mean score", "OpenCompass")
    rows = tuple(
        (e.configuration, e.data, f"{e.right}/{e.total}", f"{e.score or 0:.2f}", _second(e))
        for e in summary.scored
    )
    note = (
        "Mean scores in percent, ours and that of OpenCompass's evaluator over the same texts; "
        "its tables are in opencompass/ of the run. Right: the full score, or for a text to "
        "repeat a likeness of 95 %. A run stops where both scores differ."
    )
    return Table(_BESIDE, head, rows, 2, note)


def _second(each: Scored) -> str:
    return f"{each.metrics['score']:.2f}" if "score" in each.metrics else "-"


_METRICS = ("accuracy_easy", "accuracy_hard", "accuracy_short", "accuracy_medium", "accuracy_long")


def _metric(each: Scored, name: str) -> str:
    return f"{each.metrics[name]:.1f}" if name in each.metrics else "-"


def _scores(summary: Summary) -> Table:
    head = ("configuration", "pass", "right", "accuracy", "95 % interval", "invalid", "errors",
            "hits", "cached", "at once", "first token", "answer", "prompt tokens/s")  # fmt: skip
    rows = tuple(_score(each) for each in summary.scores)
    note = (
        f"Invalid: answered, but {_invalid(summary)}. Errors: no answer after the last try. "
        "Both are wrong and stay in the denominator. At once: requests that ran at the same time, "
        "at most. Times are medians."
    )
    return Table("Accuracy", head, rows, 2, note, narrow=(0, 1, 2, 3, 5, 6, 7, 8))


def _invalid(summary: Summary) -> str:
    return "without the prefix" if _is_graded(summary) else "by neither official rule"


def _score(each: Score) -> tuple[str, ...]:
    hits = f"{each.hits}/{each.reported}" if each.reported else "not reported"
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
        str(each.at_once),
        _or_dash(each.first_token, duration),
        _or_dash(each.seconds, duration),
        _or_dash(each.prompt_rate, significant),
    )


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
    title = "By data set" if _is_graded(summary) else "By length, difficulty and domain"
    return Table(title, ("configuration", "pass", *names), rows, 2)


def _is_graded(summary: Summary) -> bool:
    """Answers have grades, not letters."""
    return summary.conditions.extraction == EXTRACTION


def _group(each: Score, name: str) -> str:
    found = each.groups.get(name)
    return f"{found.right}/{found.total}" if found else "-"


def _comparison(summary: Summary) -> Table:
    found = summary.comparison
    before = found.rows[0].before
    head = (f"{before} and", "pass", "pairs", "hits", "texts", "answers", "lost", "won",
            "p accuracy", "p flips", "lost at most", "log-prob.", "verdict")  # fmt: skip
    note = (
        "Pairs of the same sample, and hits among them: texts and answers that differ; right ones "
        "lost and won. Both: the warm and the shared pass together, by sample. p of the accuracy: "
        "exact McNemar test, one-sided; p of the flips: more flips than in the "
        f"control pair; Holm over {plural(found.tests, 'test')}, one false alarm below "
        f"{found.alpha:g}. Lost at most: 95 % bound of the share of right answers to "
        "hits, less those won. Log-prob.: largest difference of a token where texts agree. A loss "
        f"is noticed from {found.smallest_loss} answers on."
    )
    rows = tuple(_row(row) for row in found.rows)
    return Table("Comparison", head, rows, 2, note, narrow=(0, 1, 3, 4, 5, 6, 7, 8, 9, 12))


def _row(row: Row) -> tuple[str, ...]:
    noise = "control" if row.control else ""
    return (
        row.after,
        row.title,
        str(row.pairs),
        str(row.hits),
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
