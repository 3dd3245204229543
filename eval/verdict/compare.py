"""Compares two configurations on the same samples: flips, and their significance.

The first configuration runs twice; the difference of its two runs is the engine's own noise. Every
other configuration is compared with the first, pass by pass, on pairs of the same sample: does
accuracy fall (exact McNemar test, one-sided), and do more answers, or texts, flip than in the
control pair and than near ties explain? The warm and the shared pass are judged together too, by
sample. Holm's method keeps the probability of one false alarm in the whole table below alpha.

A row without a finding passes only if its hits exclude a loss beyond the margin with 95 %
confidence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from kvproof.eval.run.config import Configuration, EvalConfig, Judge
from kvproof.eval.run.records import Conditions, Phase, SampleRecord
from kvproof.eval.verdict.evaluated import Verdict, worst_verdict
from kvproof.eval.verdict.pairs import (
    Row,
    RowPhase,
    Sides,
    make_row,
    more_flips,
    one_each,
    together,
)
from kvproof.eval.verdict.power import count_tests
from kvproof.harness.errors import UsageError
from kvproof.harness.statistics import holm, smallest_loss
from kvproof.reports.values.text import plural

PROMISED = "the engine promises equal bits (exact = true)"


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The whole table."""

    rows: tuple[Row, ...]
    alpha: float
    tests: int
    smallest_loss: int
    """The fewest lost answers, with none won, that are significant."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict."""
        return worst_verdict(row.verdict for row in self.rows)


By = dict[tuple[str, Phase], list[SampleRecord]]


def compare(config: EvalConfig, samples: Sequence[SampleRecord], expected: int) -> Comparison:
    """Compare every configuration with the first; every pass has `expected` samples."""
    by: By = {}
    for each in samples:
        by.setdefault((each.configuration, each.phase), []).append(each)
    made = list(_rows(config, by, expected * config.protocol.repeats))
    judged = [row for row in made if not row.control]
    tests = count_tests(config)
    alpha = config.judge.alpha
    loss = smallest_loss(tests, alpha)
    adjusted = {id(row): new for row, new in zip(judged, _adjusted(judged, config), strict=True)}
    rows = [adjusted.get(id(row), row) for row in made]
    noise = sum(row.texts for row in rows if row.control)
    final = tuple(_judged(row, config, by, loss, noise=noise) for row in rows)
    return Comparison(rows=final, alpha=alpha, tests=tests, smallest_loss=loss)


def _rows(config: EvalConfig, by: By, expected: int) -> Iterator[Row]:
    base = config.baseline.name
    for one in [config.control, *config.others]:
        made: dict[Phase, Sides] = {}
        missing: dict[Phase, int] = {}
        for phase in config.protocol.phases:
            names = (base, one.name, config.control.name)
            first, second, again = (by.get((name, phase), []) for name in names)
            sides = Sides(one_each(first), one_each(second), one_each(again))
            made[phase] = sides
            missing[phase] = expected - min(len(first), len(second))
            yield replace(_row(config, one, phase, sides), missing=missing[phase])
        if "shared" in made and "warm" in made and not one.control:
            row = _row(config, one, "hits", together(made["warm"], made["shared"]))
            yield replace(row, missing=max(missing["warm"], missing["shared"]))


def _row(config: EvalConfig, one: Configuration, phase: RowPhase, sides: Sides) -> Row:
    judge = config.judge
    row = make_row(sides, one, phase, config.baseline.name, judge)
    if one.control:
        return row
    passes = 2 if phase == "hits" else 1
    noise, margin = (1 - (1 - share) ** passes for share in (judge.noise, judge.margin))
    answers = more_flips(sides, texts=False, noise=noise)
    if judge.rule == "accuracy":
        return replace(row, p_flips=answers)
    if judge.rule == "texts":
        texts = more_flips(sides, texts=True, noise=noise)
        return replace(row, p_flips=texts, flipping="texts")
    texts = more_flips(sides, texts=True, noise=margin)
    least = min((answers, _ANSWERS), (texts, _TEXTS))
    return replace(row, p_flips=min(1.0, 2 * least[0]), flipping=least[1])


_ANSWERS: Literal["answers"] = "answers"
_TEXTS: Literal["texts"] = "texts"


def _adjusted(rows: Sequence[Row], config: EvalConfig) -> list[Row]:
    """Holm's correction over the whole table; flips are tests only if they can fail a row."""
    flips = config.judge.rule != "accuracy"
    values = [row.p_accuracy for row in rows] + [row.p_flips for row in rows if flips]
    found = holm(values)
    accuracy, rest = found[: len(rows)], found[len(rows) :] or [row.p_flips for row in rows]
    return [
        replace(row, adjusted_accuracy=a, adjusted_flips=f)
        for row, a, f in zip(rows, accuracy, rest, strict=True)
    ]


def _judged(row: Row, config: EvalConfig, by: By, loss: int, *, noise: int) -> Row:
    """`noise`: texts that change between the two runs of the first configuration."""
    failures = () if row.control else tuple(_failures(row, config.judge))
    if config.judge.exact and row.texts and not row.control and not noise:
        failures = (f"{plural(row.texts, 'text')} changed, and {PROMISED}", *failures)
    doubts = tuple(_doubts(row, config, by, loss))
    if config.judge.exact and noise:
        doubts = (f"{plural(noise, 'text')} changed in the control, although {PROMISED}", *doubts)
    verdict: Verdict = "fail" if failures else "inconclusive" if doubts else "pass"
    return replace(row, verdict=verdict, reasons=failures + doubts)


def _failures(row: Row, judge: Judge) -> Iterator[str]:
    if row.adjusted_accuracy <= judge.alpha and row.lost > row.won:
        yield (
            f"accuracy fell: {row.lost} answers lost, {row.won} won, "
            f"p = {row.adjusted_accuracy:.2g} over the table"
        )
    if judge.rule != "accuracy" and row.adjusted_flips <= judge.alpha:
        count = row.texts if row.flipping == "texts" else row.answers
        yield (
            f"{count} {row.flipping} flipped, more than in the control pair and by near ties, "
            f"p = {row.adjusted_flips:.2g} over the table"
        )


def _doubts(row: Row, config: EvalConfig, by: By, loss: int) -> Iterator[str]:
    judge = config.judge
    if row.missing:
        yield f"{plural(row.missing, 'sample')} missing on one side"
    if row.control:
        if row.p_accuracy <= judge.alpha:
            yield f"the same configuration twice differs: {row.lost} lost, {row.won} won"
    else:
        yield from _open(row, judge, loss)
    names = {each.name: each for each in config.configuration}
    for name in (row.before, row.after):
        side = by.get((name, row.phase), []) if row.phase != "hits" else []
        if row.phase != "hits" and side:
            yield from side_doubts(names[name], row.phase, side, judge)


def _open(row: Row, judge: Judge, loss: int) -> Iterator[str]:
    """Why no finding is no evidence for a correct cache."""
    if row.constant_text if judge.rule == "texts" else row.constant:
        yield f"{row.before} always answers the same, so that nothing depends on the cache"
    if not row.hits:
        if row.phase == "hits":
            yield "no sample hit the cache"
        return
    if judge.rule == "texts":
        if row.flipped > judge.margin:
            yield (
                f"up to {row.flipped:.1%} of texts may flip, and the margin is {judge.margin:.1%}"
            )
        return
    if not row.right_before:
        yield "no right answer before, so that none can be lost"
    elif row.right_before < loss:
        yield f"{row.right_before} right answers before, and a loss is noticed from {loss} on"
    elif row.bound > judge.margin:
        yield (
            f"up to {row.bound:.1%} of right answers may be lost, and the margin is "
            f"{judge.margin:.1%}"
        )
    elif judge.rule == "answers" and row.phase != "hits" and row.beyond > judge.margin:
        yield (
            f"up to {row.beyond:.1%} of texts change beyond those of the control, and the margin "
            f"is {judge.margin:.1%}"
        )


def side_doubts(
    one: Configuration, phase: Phase, samples: Sequence[SampleRecord], judge: Judge
) -> Iterator[str]:
    """Why the samples of one side are no valid evidence."""
    lost = [each for each in samples if each.outcome != "answered"]
    if len(lost) > judge.max_errors * len(samples):
        why = next((f", for example: {each.faults[-1]:.160}" for each in lost if each.faults), "")
        yield f"{one.name}: {len(lost)} of {len(samples)} samples without an answer{why}"
    shares = [share for each in samples if (share := each.cached_share) is not None]
    hits = sum(share >= judge.min_cached for share in shares)
    if not one.prefix_cache:
        if hits:
            yield f"{one.name}: {plural(hits, 'sample')} hit a cache that is said to be off"
    elif phase == "cold":
        if hits > (1 - judge.min_hits) * len(samples):
            yield f"{one.name}: {hits} of {len(samples)} samples hit in the cold pass"
    elif not shares:
        yield f"{one.name}: the server does not tell how many tokens were cached"
    elif hits < max(1, judge.min_hits * len(samples)):
        yield f"{one.name}: only {hits} of {len(samples)} samples hit the cache"


def check_comparable(first: Conditions, second: Conditions) -> None:
    """Refuse runs with different requests. Raises UsageError with both values."""
    one, other = (_flat(msgspec.to_builtins(each)) for each in (first, second))
    known = bool(first.weights and second.weights)
    if known and first.weights != second.weights:
        raise UsageError(
            f"the runs have other weights: {first.weights} of {first.model!r} and "
            f"{second.weights} of {second.model!r}",
            "a cache is judged on equal weights; run both on one model folder",
        )
    for name in sorted(one.keys() | other.keys()):
        if name.startswith(_DESCRIPTIONS) or (known and name == "model"):
            continue
        if one.get(name) != other.get(name):
            raise UsageError(
                f"the runs differ in {name}: {one.get(name)!r} and {other.get(name)!r}",
                "only runs with the same data, prompts, sampling and truncation can be compared",
            )


_DESCRIPTIONS = ("data.name", "data.kind", "data.notes", "data.heading", "runner", "weights")
"""Conditions that may differ in two comparable runs; weights are compared before."""


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return dict(sorted(found.items()))
