"""A run of questions with one right answer each, as verdicts, figures and tables."""

from __future__ import annotations

from kvproof.eval.run.records import EvalRun
from kvproof.eval.verdict.evaluated import Evaluated, Judged
from kvproof.eval.verdict.pairs import Row
from kvproof.eval.verdict.score import Score
from kvproof.eval.verdict.summary import Summary, summarise
from kvproof.eval.verdict.tables import tables
from kvproof.harness.errors import Exit
from kvproof.harness.records.eval_events import EvalMetric
from kvproof.reports.values.text import percent, plural


def evaluated(run: EvalRun) -> Evaluated:
    """Judge the samples of a run. Raises UsageError."""
    return of_summary(summarise(run))


def of_summary(summary: Summary) -> Evaluated:
    """Put a comparison into the form of every evaluation."""
    title = summary.conditions.data.title
    return Evaluated(
        benchmark=summary.benchmark,
        title=title[0].upper() + title[1:],
        lines=(sentence(summary), *summary.power, *summary.conditions.data.notes),
        servers=summary.measured,
        deaths=summary.deaths,
        revived=summary.revived,
        rows=tuple(_judged(row, summary) for row in summary.comparison.rows),
        tables=tuple(tables(summary)),
        verdict=summary.verdict,
        sentence=verdict_sentence(summary),
        summary=summary,
    )


def _judged(row: Row, summary: Summary) -> Judged:
    claim = (
        f"the same configuration twice answers alike: {row.before} and {row.after}"
        if row.control
        else f"no answer is lost against {row.before}"
    )
    score = next(
        (e for e in summary.scores if (e.configuration, e.phase) == (row.after, row.phase)), None
    )
    return Judged(
        target=row.after,
        part=row.title,
        sentence=claim,
        verdict=row.verdict,
        reasons=row.reasons,
        pairs=row.pairs,
        figures=_figures(score) if score else {},
    )


def _figures(score: Score) -> dict[EvalMetric, float]:
    found: dict[EvalMetric, float] = {"wrong_answers": 1 - score.overall.share}
    return found if score.cached is None else {**found, "recomputed_tokens": 1 - score.cached}


def sentence(summary: Summary) -> str:
    """Size of the run in one line."""
    asked = summary.conditions
    data = f"{plural(asked.data.samples, 'sample')} of {asked.data.name}"
    prompt = f"prompt {asked.prompt} ({asked.prompt_sha256[:12]})"
    sampling = f"temperature {asked.temperature:g}, at most {asked.max_tokens} tokens"
    reached = max((each.at_once for each in summary.scores), default=0)
    order = f"order {asked.order}, {reached} at once, {plural(asked.repeats, 'repeat')}"
    cut_by = "" if asked.truncation == "none" else f"; {asked.truncation}"
    by = "" if asked.runner == "kvproof" else f"; asked by {asked.runner}"
    subject = f"{_subject(summary)}; " if summary.measured else ""
    return f"{subject}{data} ({asked.data.sha256[:12]}); {prompt}; {sampling}; {order}{cut_by}{by}"


def _subject(summary: Summary) -> str:
    """Model, weights and engines."""
    weights = summary.conditions.weights
    models = dict.fromkeys(each.model for each in summary.measured if each.model)
    engines = dict.fromkeys(f"{e.engine} {e.version}".strip() for e in summary.measured)
    named = ", ".join(models) or "model without a name"
    known = f"weights {weights[:12]}" if weights else "weights not known"
    return f"{named} ({known}) on {', '.join(filter(None, engines)) or 'an engine'}"


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
