"""When hits differ from recomputed answers by more than recomputed answers differ.

Three rules; the last two share the error rate, which holds for any noise:

- `exact` engines: one difference in any place fails. Where recomputed answers differ, too, bits
  decide nothing: the run is at most inconclusive, and the other rules apply.
- *Far off*, in documents of all hits or of one situation: see `counts`. Bonferroni's correction
  keeps the error rate over situations and thresholds.
- *Many places* somewhat off. By document: hits differ by over FACTOR times as much in the mean as
  a control, in more documents than the other way round (exact sign test), for every control. It
  fails a run only if a control computes in other chunks, as a hit does. Else it is inconclusive.

A single answer beyond all that was recomputed proves nothing: it makes the run inconclusive, with
the number of requests that would decide. A run that finds nothing passes only if it could have
found something: enough hits, a floor that was measured, and one below `VISIBLE`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from kvproof.eval.divergence.counts import (
    LEAST,
    MOST,
    VISIBLE,
    Answers,
    Counts,
    counts,
    thresholds,
    times,
)
from kvproof.eval.divergence.figures import Figures, by_key, figures, groups
from kvproof.eval.divergence.records import Evidence, Options, Pair, Served
from kvproof.eval.divergence.signs import ALLOWED, FACTOR, late, p_many
from kvproof.eval.run.records import Lost, ServerDied, Unequal
from kvproof.eval.verdict.evaluated import Verdict, worst_verdict
from kvproof.harness.served.situations import SITUATIONS, doable, required, unseen
from kvproof.harness.statistics import clopper_pearson
from kvproof.reports.values.text import plural

TAIL = 2.0
"""Fall of the tail by which an answer counts as beyond all recomputed ones. No run fails by it."""

_SURE = 0.95


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """A situation as far as it occurred."""

    situation: str
    answers: int
    hits: int
    documents: int
    off: int
    """Documents with an answer that is far off."""
    p: float
    """Probability of so many by chance, at most; 1 with too few documents to be judged."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One judged server."""

    configuration: str
    whole: Figures
    limit: float
    """Difference beyond which no recomputed answer would be expected; nats."""
    p_off: float
    """Probability of so many documents with answers that are far off, by chance and at most."""
    p_many: float
    at_most: float
    """Upper bound, with 95 % confidence, of the share of hits beyond the limit."""
    by: dict[str, tuple[Figures, ...]]
    """Name of a grouping -> its groups."""
    seen: tuple[Seen, ...] = ()
    """Situations that occurred."""
    unseen: tuple[str, ...] = ()
    """Situations that did not."""
    unaskable: tuple[str, ...] = ()
    """Those of them that no request brings about on this server."""
    counted: bool = True
    """Hits by the server's report; else all by construction."""
    worst: tuple[Pair, ...] = ()
    verdict: Verdict = "pass"
    reasons: tuple[str, ...] = ()


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """All judged servers, with the floor."""

    floor: tuple[Figures, ...]
    rows: tuple[Row, ...]
    doubts: tuple[str, ...]
    """Doubts about the whole run."""

    @property
    def verdict(self) -> Verdict:
        """The worst verdict."""
        least: Verdict = "inconclusive" if self.doubts else "pass"
        return worst_verdict((row.verdict for row in self.rows), least=least)


def judge(options: Options, records: Sequence[Evidence]) -> Judgement:
    """Judge the records of a run, complete or not."""
    answers = [each for each in records if isinstance(each, Pair)]
    controls = [each for each in answers if each.control and each.phase != "recomputed"]
    noise = by_key(controls, lambda each: f"{each.configuration}, {each.phase}")
    servers = {each.configuration: each for each in records if isinstance(each, Served)}
    judged = [name for name, each in servers.items() if each.role == "judged"]
    told = {each.number: each.worst for each in answers if each.phase == "recomputed"}
    case = _Case(options, noise, max(1, len(judged)), servers, told, Answers(controls))
    rows = [_row(case, n, [e for e in answers if e.configuration == n], records) for n in judged]
    return Judgement(
        floor=tuple(figures(name, found) for name, found in noise.items()),
        rows=tuple(rows),
        doubts=tuple(_doubts(options, records, controls)),
    )


class _Case(NamedTuple):
    options: Options
    noise: dict[str, list[Pair]]
    judged: int
    """Servers that share the error rate."""
    servers: dict[str, Served]
    told_apart: dict[int, float]
    """Document -> difference of its recomputed answers under two identities, which must differ."""
    recomputed: Answers
    """All controls."""

    @property
    def alike(self) -> set[int]:
        """Documents whose answers are the same under both."""
        return {number for number, worst in self.told_apart.items() if not worst}

    @property
    def controls(self) -> list[Pair]:
        return [each for found in self.noise.values() for each in found]

    @property
    def floor(self) -> float:
        """Largest difference between recomputed answers."""
        return float(self.recomputed.worst.max(initial=0.0))

    @property
    def exact(self) -> bool:
        """Whether bits decide."""
        return self.options.exact and not self.floor

    @property
    def alpha(self) -> float:
        """Of one rule for one server."""
        return self.options.alpha / self.judged / 2

    @property
    def other_chunks(self) -> bool:
        """Whether a control computes in other chunks than the base, as hits do."""
        base = next((each for each in self.servers.values() if each.role == "base"), None)
        controls = [each for each in self.servers.values() if each.role == "control"]
        return base is not None and any(
            each.settings != base.settings or (not each.command and each.url != base.url)
            for each in controls
        )

    def limit(self, hits: int) -> float:
        """Largest difference of so many correct answers, by the tail of recomputed ones."""
        if self.exact:
            return 0.0
        return max(ALLOWED, self.floor * reach(hits, len(self.recomputed), self.alpha))


def reach(hits: int, controls: int, alpha: float, tail: float = TAIL) -> float:
    """How many times the largest of `controls` values one of `hits` more may be."""
    if not hits or not controls:
        return 1.0
    return max(1.0, math.pow((1 / alpha - 1) * hits / controls, 1 / tail))


def _row(case: _Case, name: str, found: Sequence[Pair], records: Sequence[Evidence]) -> Row:
    hits = [each for each in found if each.phase != "cold"]
    limit = case.limit(len(found))
    beyond = [each for each in found if each.worst > limit]
    wrong, real = sum(each.hit for each in beyond), sum(each.hit for each in found)
    seen = tuple(_seen(found, case.recomputed))
    never = unseen(SITUATIONS, {each.situation: each.answers for each in seen})
    able = case.servers[name].abilities.means
    row = Row(
        configuration=name,
        whole=figures("all", found, limit),
        limit=limit,
        p_off=_far_off(Answers(found), case.recomputed)[0].p,
        p_many=max((p_many(hits, each) for each in case.noise.values()), default=1.0),
        at_most=clopper_pearson(wrong, real, _SURE) if real else 1.0,
        by=groups(found, limit),
        seen=seen,
        unseen=never,
        unaskable=tuple(each for each in never if each not in doable(able)),
        counted=all(each.cached_tokens is not None for each in hits),
        worst=tuple(sorted(beyond, key=lambda each: each.worst, reverse=True)[:8]),
    )
    failures = tuple(_failures(case, row, found, beyond))
    doubts = tuple(_row_doubts(case, row, hits, found, records, failed=bool(failures)))
    verdict: Verdict = "fail" if failures else "inconclusive" if doubts else "pass"
    return msgspec.structs.replace(row, verdict=verdict, reasons=failures + doubts)


def _far_off(hits: Answers, controls: Answers) -> tuple[Counts, float]:
    """Return the threshold that shows most, and its counts; p is for all thresholds together."""
    tried = [(counts(hits, controls, least), least) for least in thresholds(hits, controls)]
    best, least = min(tried, key=lambda each: each[0].p)
    return best._replace(p=min(1.0, best.p * len(tried))), least


def _seen(found: Sequence[Pair], controls: Answers) -> Iterator[Seen]:
    """Every situation by itself; p is for all situations together."""
    by = {name: [e for e in found if name in e.situations] for name in SITUATIONS}
    judged = sum(len({e.number for e in each}) >= LEAST for each in by.values())
    for name, answers in by.items():
        if not answers:
            continue
        far, _ = _far_off(Answers(answers), controls)
        enough = far.documents >= LEAST
        yield Seen(
            situation=name,
            answers=len(answers),
            hits=sum(each.any_hit for each in answers),
            documents=far.documents,
            off=far.off,
            p=min(1.0, far.p * judged) if enough else 1.0,
        )


def _confused(case: _Case, found: Sequence[Pair]) -> int:
    """Count documents that were answered as under another identity, from its entries."""
    count = len({each.number for each in found if each.contradiction} & case.alike)
    return count if count >= LEAST else 0


def _across_salts(case: _Case, server: Served) -> int:
    """Count documents found under a new `cache_salt` on a server that knows the field."""
    base = {name for name, each in case.servers.items() if each.url == server.url}
    found = [each for each in case.controls if each.configuration in base and each.contradiction]
    count = len({each.number for each in found if each.hit})
    return count if count >= LEAST and server.abilities.salt_documented else 0


def _failures(
    case: _Case, row: Row, found: Sequence[Pair], beyond: Sequence[Pair]
) -> Iterator[str]:
    if confused := _confused(case, found):
        yield (
            f"{confused} prompts hit entries that none before them can have left, and were "
            "answered as under another identity"
        )
    if across := _across_salts(case, case.servers[row.configuration]):
        yield (
            f"{across} prompts were found under a cache_salt that no request had before: salts do "
            "not keep entries apart"
        )
    if case.exact:
        if beyond:
            yield (
                f"{len(beyond)} of {row.whole.answers} answers differ from recomputed ones, by up "
                f"to {row.whole.largest:.3g}, and the engine promises none{_where(row)}"
            )
        return
    worst = min(row.seen, key=lambda each: each.p, default=None)
    if row.p_off <= case.alpha / 2:
        yield (
            f"{len(beyond)} of {row.whole.answers} answers differ by up to "
            f"{row.whole.largest:.3g} nats, in more documents than chance and near ties explain, "
            f"p = {row.p_off:.2g}{_where(row)}"
        )
    elif worst and worst.p <= case.alpha / 2:
        yield (
            f"{SITUATIONS[worst.situation].phrase}: answers of {worst.off} of "
            f"{plural(worst.documents, 'document')} are far off, p = {worst.p:.2g}"
        )
    if row.p_many <= case.alpha and case.other_chunks:
        yield (
            f"hits differ by more than {FACTOR:g} times the floor in most documents, "
            f"p = {row.p_many:.2g}"
        )


def _where(row: Row) -> str:
    """Name the situations of all answers that are off, the rarest first."""
    found = [each for each in row.seen if each.off and each.off == each.documents]
    rare = sorted(found, key=lambda each: each.answers)[:2]
    return f"; always with: {', '.join(each.situation for each in rare)}" if rare else ""


def _row_doubts(
    case: _Case, row: Row, hits: Sequence[Pair], found: Sequence[Pair],
    records: Sequence[Evidence], *, failed: bool,
) -> Iterator[str]:  # fmt: skip
    died = [
        e
        for e in records
        if isinstance(e, Lost | ServerDied) and e.configuration == row.configuration
    ]
    if died:
        yield f"{len(died)} requests failed: {died[0].message:.200}"
    yield from _of_hits(case, row, hits, found)
    if case.alike:
        yield (
            f"{len(case.alike)} of {len(case.told_apart)} answers stay the same, to the bit, with "
            "images in another order or without the adapter: an entry of one in the place of the "
            "other would not be seen"
        )
    able = case.servers[row.configuration].abilities.means
    if missing := [n for n in required(case.options.require, able) if n in row.unseen]:
        yield f"required and not seen: {', '.join(missing)}: give more --max-time"
    if not case.exact and not failed:
        yield from _of_noise(case, row, found)


def _of_hits(case: _Case, row: Row, hits: Sequence[Pair], found: Sequence[Pair]) -> Iterator[str]:
    if wrong := [each for each in found if each.contradiction]:
        yield f"{plural(len(wrong), 'count')} of hits cannot be right: {wrong[0].contradiction}"
    if late(found, case.controls) <= case.alpha:
        yield "hits are claimed that take as long as recomputing"
    real = sum(each.hit for each in hits)
    warm = [each.hit for each in hits if each.phase == "warm"]
    if 2 * sum(warm) < len(warm) or not warm:
        yield f"only {sum(warm)} of {len(warm)} prompts hit when they came again"
    cold = [each.hit for each in found if each.phase == "cold"]
    if row.counted and sum(cold) > 0.1 * len(cold):
        yield "the cold pass hits: the server has seen these documents before"
    least = 1 - (1 - _SURE) ** (1 / real) if real else 1.0
    if least > case.options.detect:
        needed = math.ceil(math.log(1 - _SURE) / math.log1p(-case.options.detect))
        yield (
            f"{real} hits, all right, exclude that more than {least:.3g} of them are wrong; "
            f"{case.options.detect:g} takes {needed} hits: give more --documents"
        )


def _of_noise(case: _Case, row: Row, found: Sequence[Pair]) -> Iterator[str]:
    if row.limit > VISIBLE:
        yield f"the noise hides differences below {row.limit:.3g} nats"
    off = max(row.limit, case.floor, thresholds(Answers(found), case.recomputed)[0])
    if row.whole.largest > off:
        yield _undecided(case, row, found)
    elif not case.floor and row.whole.largest > ALLOWED:
        yield (
            f"answers differ by up to {row.whole.largest:.3g} while recomputed ones repeat bit for "
            "bit: measure the floor with other chunk sizes (--control-url), or state --exact"
        )
    elif row.p_many <= case.alpha and not case.other_chunks:
        yield (
            f"hits differ by more than {FACTOR:g} times the floor in most documents; whether by "
            "their shorter chunks, a control with other chunk sizes shows: --control-url"
        )


def _undecided(case: _Case, row: Row, found: Sequence[Pair]) -> str:
    hits, controls = Answers(found), case.recomputed
    _, least = _far_off(hits, controls)
    alpha = case.alpha / 2 / len(thresholds(hits, controls))
    factor = times(hits, controls, least, alpha)
    many = factor * (len(hits) + len(controls))
    decide = (
        f"about {many:,} requests like these would decide (--documents "
        f"{factor * case.options.documents})"
        if factor
        else f"as rare as near ties may be: not even {MOST:,} requests would decide, --exact would"
    )
    return (
        f"{row.whole.beyond} of {row.whole.answers} answers differ by up to "
        f"{row.whole.largest:.3g} nats, which may be chance: {decide}"
    )


def _doubts(
    options: Options, records: Sequence[Evidence], controls: Sequence[Pair]
) -> Iterator[str]:
    if unequal := [each for each in records if isinstance(each, Unequal)]:
        yield from map(_unequal, unequal)
        return
    if options.exact and (noise := max((each.worst for each in controls), default=0.0)):
        yield f"recomputed answers differ by up to {noise:.3g}: {_NO_BITS}"
    if not controls:
        yield "nothing was recomputed twice, so that there is no floor"
    if stale := [each for each in controls if each.hit or each.expected_hit]:
        yield (
            f"{len(stale)} of {len(controls)} recomputed answers were hits: "
            f"{stale[0].configuration} does not recompute"
        )
    served = [each for each in records if isinstance(each, Served)]
    if len({each.model for each in served}) > 1:
        yield f"the servers serve different models: {sorted({e.model for e in served})}"
    if not options.exact and any(each.abilities.top is None for each in served):
        yield "a server gives no log-probabilities: only tokens are compared, state --exact"
    for each in records:
        if isinstance(each, Lost | ServerDied) and any(
            s.configuration == each.configuration and s.role != "judged" for s in served
        ):
            yield f"{each.configuration}: {each.message:.200}"
            return


_NO_BITS = "the server does not repeat its own bits, so hits are not judged by them; omit --exact"


def _unequal(found: Unequal) -> str:
    if found.cause == "salt":
        return (
            f"{found.configuration}: answers depend on cache_salt. Under another salt they differ "
            f"by up to {found.largest:.3g}, under the same one they repeat: what is computed under "
            "a new salt is not what a hit must equal. Give a server without prefix cache with "
            "--recompute-url, or --reset PATH"
        )
    return (
        f"{found.configuration}: recomputed answers to one prompt differ by up to "
        f"{found.largest:.3g}: {_NO_BITS}"
    )
