"""A run of SCBench as verdicts, figures and tables."""

from __future__ import annotations

import msgspec

from kvproof.eval.run.files import read_options
from kvproof.eval.run.records import EvalRun, ServerDied
from kvproof.eval.scbench.judge import Row, TaskScore, judge, task_scores
from kvproof.eval.scbench.records import KEY, Options
from kvproof.eval.verdict.evaluated import Evaluated, Judged, Table, Verdict, worst_verdict
from kvproof.eval.verdict.measured import Measured, measured
from kvproof.eval.verdict.power import POWER
from kvproof.eval.verdict.tables import servers
from kvproof.harness.statistics import clopper_pearson, detectable, smallest_loss
from kvproof.reports.values.text import MARKS, percent, plural


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands."""

    options: Options
    rows: list[Row]
    scores: list[TaskScore]
    measured: tuple[Measured, ...]
    lost: list[ServerDied]

    @property
    def verdict(self) -> Verdict:
        """The verdict as a word."""
        least: Verdict = "fail" if self.lost else "pass"
        return worst_verdict((row.verdict for row in self.rows), least=least)


def evaluated(run: EvalRun) -> Evaluated:
    """Judge the answers of a run. Raises UsageError."""
    options = read_options(run.manifest, KEY, Options)
    lost = [each for each in run.records if isinstance(each, ServerDied)]
    found = Summary(
        options=options,
        rows=judge(options, run.samples, lost),
        scores=task_scores(options, run.samples),
        measured=measured(options.config, run.records),
        lost=lost,
    )
    return Evaluated(
        benchmark=KEY,
        title=title(options),
        lines=(sentence(found), *_power(found)),
        servers=found.measured,
        deaths=tuple(lost),
        rows=tuple(map(_judged, found.rows)),
        tables=(_loads(found), _scores(found), servers(found.measured)),
        verdict=found.verdict,
        sentence=verdict_sentence(found),
        summary=found,
    )


def _judged(row: Row) -> Judged:
    return Judged(
        target=row.configuration,
        part=row.level,
        sentence=f"answers to later turns and requests are those that are recomputed, {row.label}",
        verdict=row.verdict,
        reasons=row.reasons,
        pairs=row.pairs,
        figures={"wrong_answers": 1 - row.after, "recomputed_tokens": 1 - row.cached},
    )


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
    if summary.verdict == "pass":
        return f"at most {percent(max(row.bound for row in summary.rows))} lost at any load"
    return "the comparison does not show what it is meant to show"


def sentence(summary: Summary) -> str:
    """Size and conditions of the run."""
    asked, protocol = summary.options, summary.options.config.protocol
    weights = f"weights {asked.weights}" if asked.weights else "weights not known"
    return (
        f"{plural(asked.sessions, 'session')} each of {', '.join(asked.tasks)} "
        f"({asked.data or 'generated'}); {' and '.join(asked.modes)}; own answers fed back; "
        f"temperature {protocol.temperature:g}; {weights}"
    )


def _power(summary: Summary) -> list[str]:
    """Describe the smallest effects that the load with the fewest hits can show."""
    rows = [row for row in summary.rows if row.contexts]
    if not rows:
        return ["no hit, so that nothing can show"]
    least = min(rows, key=lambda row: row.contexts)
    config = summary.options.config
    needed = 1 if config.judge.exact else smallest_loss(2 * len(summary.rows), config.judge.alpha)
    share = detectable(least.contexts, needed, POWER)
    return [
        f"{plural(least.contexts, 'context')} with hits at {least.label}: "
        f"{plural(needed, 'wrong one')} fail, and a share of {percent(share)} does in 8 of 10 runs",
        f"without any, one over {percent(clopper_pearson(0, least.contexts))} is excluded; a pass "
        f"needs {percent(summary.options.margin)} (margin)",
    ]


def _loads(summary: Summary) -> Table:
    head = ("configuration", "load", "pairs", "hits", "contexts", "cached", "texts", "noise",
            "lost", "won", "p scores", "p texts", "at most", "verdict")  # fmt: skip
    note = (
        "Pairs: the same messages answered by the configuration and recomputed. Hits: later turns "
        "and requests of which most was cached; contexts: with hits, each of "
        "which counts once; cached: share of their tokens. Texts: pairs that "
        "differ; noise: recomputed one and eight at a time. Lost, won: scores that fell and "
        "rose. p: exact McNemar test, and more texts than noise; Holm over the table. At most: "
        "95 % bound of the contexts whose hits are wrong. Eviction: the next turn of a session "
        "comes after those of all others."
    )
    rows = tuple(_load(row) for row in summary.rows)
    return Table("Loads", head, rows, 2, note, narrow=(0, 1, 2, 3, 4, 6, 7, 8, 9, 12, 13))


def _load(row: Row) -> tuple[str, ...]:
    return (
        row.configuration, row.label, str(row.pairs), f"{row.hits}/{row.later}",
        str(row.contexts), percent(row.cached), str(row.texts), str(row.noise), str(row.lost),
        str(row.won),
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
