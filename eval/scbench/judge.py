"""Verdict over pairs: the same messages answered from a cache and recomputed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import gt
from typing import Any

import msgspec
from msgspec.structs import replace

from kvproof.eval.run.config import Configuration, Judge
from kvproof.eval.run.records import SampleRecord, ServerDied, most_at_once
from kvproof.eval.scbench.protocol import LEVELS
from kvproof.eval.scbench.records import Options
from kvproof.eval.verdict.compare import PROMISED
from kvproof.eval.verdict.evaluated import Verdict
from kvproof.harness.statistics import at_least, clopper_pearson, holm, mcnemar, net_loss_bound
from kvproof.reports.values.text import percent, plural


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One load of one configuration, over all tasks and modes."""

    configuration: str
    level: str
    reached: int
    """Requests that ran at the same time, at most."""
    pairs: int
    missing: int
    """Answers without a recomputed one, or without an answer on one side."""
    hits: int
    """Later turns and requests of which the cache held at least the share `min_cached`."""
    contexts: int
    """Contexts with a hit: the prompts of one share its blocks, so that each counts once."""
    later: int
    cached: float
    """Share of all their tokens."""
    texts: int
    noise: int
    """Texts of the same prompts that differ between base and control."""
    before: float
    """Mean score, recomputed."""
    after: float
    lost: int
    """Scores that fell; `won`: that rose."""
    won: int
    p_score: float
    p_texts: float
    bound: float
    """Upper bound (95 % confidence) of the lost share of contexts: right answers to hits, or texts
    of hits by that rule."""
    beyond: float
    """The same bound of changed texts, less those that the control changes."""
    reasons: tuple[str, ...] = ()
    verdict: Verdict = "pass"

    @property
    def label(self) -> str:
        """The load, and how much of it was reached."""
        asked = next(each.concurrency for each in LEVELS if each.name == self.level)
        return self.level if self.reached == asked else f"{self.level} ({self.reached} reached)"


class TaskScore(msgspec.Struct, frozen=True, kw_only=True):
    """Mean score of a task at one turn, over all loads."""

    configuration: str
    mode: str
    task: str
    turn: int
    answers: int
    before: float
    after: float


Recomputed = dict[str, SampleRecord]
"""Prompt -> its recomputed answer."""


def judge(
    options: Options, answers: Sequence[SampleRecord], lost: Sequence[ServerDied]
) -> list[Row]:
    """Judge every load of every judged configuration."""
    config = options.config
    base = _of(answers, config.baseline.name)
    control = _of(answers, config.control.name)
    rows = [
        _row(options, one, level.name, found, base, control)
        for one in config.others
        for level in LEVELS
        if (found := _at(answers, one.name, level.name))
        or one.name in {e.configuration for e in lost}
    ]
    adjusted = holm([row.p_score for row in rows] + [row.p_texts for row in rows])
    scores, texts = adjusted[: len(rows)], adjusted[len(rows) :]
    return [
        _verdict(replace(row, p_score=s, p_texts=t), options)
        for row, s, t in zip(rows, scores, texts, strict=True)
    ]


def score_of(answer: SampleRecord) -> float:
    """Score of an answer, 0 to 1; 0 without one."""
    return float(answer.answer or 0)


def _of(answers: Sequence[SampleRecord], name: str) -> Recomputed:
    return {each.prompt_sha256: each for each in answers if each.configuration == name}


def _at(answers: Sequence[SampleRecord], name: str, level: str) -> list[SampleRecord]:
    return [each for each in answers if (each.configuration, each.phase) == (name, level)]


def _row(
    options: Options,
    one: Configuration,
    level: str,
    found: Sequence[SampleRecord],
    base: Recomputed,
    control: Recomputed,
) -> Row:
    both = [(base[e.prompt_sha256], e) for e in found if e.prompt_sha256 in base]
    pairs = [(a, b) for a, b in both if a.outcome == b.outcome == "answered"]
    flips = [a.text != b.text for a, b in pairs]
    noise = [(c := control.get(a.prompt_sha256)) is not None and c.text != a.text for a, _ in pairs]
    here = sum(f and not n for f, n in zip(flips, noise, strict=True))
    there = sum(n and not f for f, n in zip(flips, noise, strict=True))
    before, after = ([score_of(pair[side]) for pair in pairs] for side in (0, 1))
    fell, rose = (sum(map(gt, *sides)) for sides in ((before, after), (after, before)))
    later = [each for each in found if each.turn]
    tokens = sum(each.usage.prompt_tokens or 0 for each in later)
    judged = options.config.judge
    return Row(
        configuration=one.name,
        level=level,
        reached=most_at_once(found),
        pairs=len(pairs),
        missing=len(found) - len(pairs),
        hits=_hits(later, judged),
        later=len(later),
        cached=sum(each.usage.cached_tokens or 0 for each in later) / tokens if tokens else 0.0,
        texts=sum(flips),
        noise=sum(noise),
        before=_mean(before),
        after=_mean(after),
        lost=fell,
        won=rose,
        p_score=mcnemar(fell, rose),
        p_texts=at_least(here, here + there) if judged.rule != "accuracy" else 1.0,
        **_bounds(judged, pairs, control),
        reasons=tuple(_doubts(judged, one, level, later, base, found)),
    )


def _bounds(
    limits: Judge, pairs: Sequence[tuple[SampleRecord, SampleRecord]], control: Recomputed
) -> dict[str, Any]:
    """Bound the contexts whose hits are wrong; each counts once."""
    whole, lost, changed, noisy = set(), set(), set(), set()
    right = set()
    for a, b in pairs:
        if (b.cached_share or 0.0) < limits.min_cached:
            continue
        context = (b.domain, b.sub_domain, b.id)
        whole.add(context)
        again = control.get(a.prompt_sha256, a)
        right |= {context} if score_of(a) else set()
        lost |= {context} if score_of(b) < score_of(a) else set()
        changed |= {context} if a.text != b.text else set()
        noisy |= {context} if a.text != again.text else set()
    count = len(whole)
    here, there = len(changed - noisy), len(noisy - changed)
    wrong, of = (len(changed), count) if limits.rule == "texts" else (len(lost), len(right))
    return {
        "contexts": count,
        "bound": clopper_pearson(wrong, of) if of else 1.0,
        "beyond": net_loss_bound(here, there, right=count, total=2 * count),
    }


def _hits(later: Sequence[SampleRecord], limits: Judge) -> int:
    """Prompts of which the cache held so much that it was not a common first line."""
    return sum((each.cached_share or 0.0) >= limits.min_cached for each in later)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _doubts(
    limits: Judge,
    one: Configuration,
    level: str,
    later: Sequence[SampleRecord],
    base: Recomputed,
    found: Sequence[SampleRecord],
) -> Iterator[str]:
    """Why the pairs are no evidence."""
    hits = _hits(later, limits)
    wanted = limits.min_hits if level == LEVELS[0].name else 0.0
    if not found:
        yield f"{one.name} gave no answer"
    elif not hits or hits < wanted * len(later):
        yield f"only {hits} of {plural(len(later), 'later prompt')} hit the cache"
    recomputed = [base[each.prompt_sha256] for each in found if each.prompt_sha256 in base]
    if wrong := sum(bool(each.usage.cached_tokens) for each in recomputed):
        yield f"{plural(wrong, 'recomputed prompt')} hit a cache that is said to be off"


def _verdict(row: Row, options: Options) -> Row:
    alpha, reasons = options.config.judge.alpha, list(row.reasons)
    failed = []
    if row.p_score <= alpha and row.lost > row.won:
        failed.append(f"{plural(row.lost, 'score')} fell, {row.won} rose, p = {row.p_score:.2g}")
    if row.p_texts <= alpha:
        failed.append(
            f"{plural(row.texts, 'text')} changed, more than between two recomputed runs, "
            f"p = {row.p_texts:.2g}"
        )
    if options.config.judge.exact and row.texts and not row.noise:
        failed.append(f"{plural(row.texts, 'text')} changed, and {PROMISED}")
    if options.config.judge.exact and row.noise:
        reasons.append(f"{plural(row.noise, 'text')} changed in the control, although {PROMISED}")
    if row.missing:
        reasons.append(f"{plural(row.missing, 'pair')} without an answer on one side")
    if row.bound > options.margin:
        reasons.append(
            f"up to {percent(row.bound)} may be lost, and the margin is {percent(options.margin)}"
        )
    elif options.config.judge.rule == "answers" and row.beyond > options.margin:
        reasons.append(
            f"texts of up to {percent(row.beyond)} of contexts change beyond those of the control, "
            f"and the margin is {percent(options.margin)}"
        )
    verdict: Verdict = "fail" if failed else "inconclusive" if reasons else "pass"
    return replace(row, reasons=(*failed, *reasons), verdict=verdict)


def task_scores(options: Options, answers: Sequence[SampleRecord]) -> list[TaskScore]:
    """Mean scores by mode, task and turn, from a hit and recomputed."""
    base = _of(answers, options.config.baseline.name)
    by: dict[tuple[str, str, str, int], list[tuple[float, float]]] = {}
    for each in answers:
        if each.phase != "recomputed" and each.prompt_sha256 in base:
            key = (each.configuration, each.sub_domain, each.domain, each.turn)
            by.setdefault(key, []).append((score_of(base[each.prompt_sha256]), score_of(each)))
    return [
        TaskScore(
            configuration=name,
            mode=mode,
            task=task,
            turn=turn,
            answers=len(pairs),
            before=_mean([a for a, _ in pairs]),
            after=_mean([b for _, b in pairs]),
        )
        for (name, mode, task, turn), pairs in by.items()
    ]
