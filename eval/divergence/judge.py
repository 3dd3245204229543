"""When hits differ from recomputed answers by more than recomputed answers differ.

Three rules, each with a part of the error rate:

- `exact` engines: one difference in any place fails. Where recomputed answers differ, too, bits
  decide nothing: the run is at most inconclusive, and the other rules apply.
- *One place* too far out. Largest differences of answers, of hits and of the floor, are drawn from
  one distribution if the cache is right. If its tail falls at least as fast as x**-2 (so heavy that
  the variance has no end), the largest of n hits is beyond c times the largest of m recomputed
  answers with probability 1 / (1 + c**2 * m / n). c follows from the error rate.
- *Many places* somewhat off. By document: hits differ by over FACTOR times as much in the mean as
  a control, in more documents than the other way round (exact sign test), for every control.

A run that finds nothing passes only if it could have found something: enough hits, a floor that
was measured, and a limit of the first rule below `VISIBLE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from kvproof.eval.divergence.records import Evidence, Options, Pair, Served
from kvproof.eval.run.records import Lost, ServerDied, Unequal
from kvproof.eval.verdict.evaluated import Verdict, worst_verdict
from kvproof.harness.statistics import at_least, clopper_pearson

K = TypeVar("K", bound=Hashable)

TAIL = 2.0
"""Slowest fall of the tail that the limit allows for."""

FACTOR = 4.0
"""Times that correct hits may differ more than recomputed answers: their chunks are shorter."""

ALLOWED = 1e-5
"""Nats. Smaller differences are rounding in float32 and of the numbers in the answers."""

VISIBLE = 1.0
"""Nats. A limit above hides the effect of a wrong block."""

_SURE = 0.95


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Differences over the places of some answers."""

    name: str
    answers: int
    hits: int
    """Answers of which half the prompt or more was cached."""
    places: int
    flips: int
    largest: float
    p999: float
    mean_kl: float
    beyond: int = 0
    """Answers with a place beyond the limit."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One judged server."""

    configuration: str
    whole: Figures
    limit: float
    """Largest difference of a correct run, by the first rule; nats."""
    p_many: float
    at_most: float
    """Upper bound, with 95 % confidence, of the share of hits beyond the limit."""
    by: dict[str, tuple[Figures, ...]]
    """Name of a grouping -> its groups."""
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
    controls = [each for each in answers if each.control]
    noise = _by(controls, lambda each: f"{each.configuration}, {each.phase}")
    names = [e.configuration for e in records if isinstance(e, Served) and e.role == "judged"]
    names = list(dict.fromkeys(names))
    case = _Case(options, noise, max(1, len(names)))
    rows = [_row(case, n, [e for e in answers if e.configuration == n], records) for n in names]
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

    @property
    def controls(self) -> list[Pair]:
        return [each for found in self.noise.values() for each in found]

    @property
    def floor(self) -> float:
        """Largest difference between recomputed answers."""
        return max(map(_largest, self.controls), default=0.0)

    @property
    def exact(self) -> bool:
        """Whether bits decide."""
        return self.options.exact and not self.floor

    @property
    def alpha(self) -> float:
        """Of one rule for one server."""
        return self.options.alpha / self.judged / 2

    def limit(self, hits: int) -> float:
        """Largest difference of so many correct answers."""
        if self.exact:
            return 0.0
        return max(ALLOWED, self.floor * reach(hits, len(self.controls), self.alpha))


def reach(hits: int, controls: int, alpha: float, tail: float = TAIL) -> float:
    """How many times the largest of `controls` values one of `hits` more may be."""
    if not hits or not controls:
        return 1.0
    return max(1.0, math.pow((1 / alpha - 1) * hits / controls, 1 / tail))


def _row(case: _Case, name: str, found: Sequence[Pair], records: Sequence[Evidence]) -> Row:
    hits = [each for each in found if each.phase != "cold"]
    limit = case.limit(len(found))
    beyond = [each for each in found if _largest(each) > limit]
    p = max((_p_many(hits, each) for each in case.noise.values()), default=1.0)
    late, real = sum(each.hit for each in beyond), sum(each.hit for each in found)
    row = Row(
        configuration=name,
        whole=figures("all", found, limit),
        limit=limit,
        p_many=p,
        at_most=clopper_pearson(late, real, _SURE) if real else 1.0,
        by=_groups(found, limit),
        worst=tuple(sorted(beyond, key=_largest, reverse=True)[:8]),
    )
    failures = tuple(_failures(case, row, beyond))
    doubts = tuple(_row_doubts(case, row, hits, found, records))
    verdict: Verdict = "fail" if failures else "inconclusive" if doubts else "pass"
    return msgspec.structs.replace(row, verdict=verdict, reasons=failures + doubts)


def _failures(case: _Case, row: Row, beyond: Sequence[Pair]) -> Iterator[str]:
    if case.exact:
        if beyond:
            yield (
                f"{len(beyond)} of {row.whole.answers} answers differ from recomputed ones, by up "
                f"to {row.whole.largest:.3g}, and the engine promises none"
            )
        return
    visible = any(_largest(each) > 0 for each in case.controls) or row.whole.largest > VISIBLE
    if beyond and visible:
        yield (
            f"{len(beyond)} of {row.whole.answers} answers differ by up to "
            f"{row.whole.largest:.3g}; correct ones stay below {row.limit:.3g}"
        )
    if row.p_many <= case.alpha and visible:
        yield (
            f"hits differ by more than {FACTOR:g} times the floor in most documents, "
            f"p = {row.p_many:.2g}"
        )


def _row_doubts(
    case: _Case, row: Row, hits: Sequence[Pair], found: Sequence[Pair],
    records: Sequence[Evidence],
) -> Iterator[str]:  # fmt: skip
    died = [
        e
        for e in records
        if isinstance(e, Lost | ServerDied) and e.configuration == row.configuration
    ]
    if died:
        yield f"{len(died)} requests failed: {died[0].message:.200}"
    if any(each.cached_tokens is None for each in hits):
        yield "the server does not report how many tokens were cached"
        return
    real = sum(each.hit for each in hits)
    warm = [each.hit for each in hits if each.phase == "warm"]
    if 2 * sum(warm) < len(warm) or not warm:
        yield f"only {sum(warm)} of {len(warm)} prompts hit when they came again"
    cold = [each.hit for each in found if each.phase == "cold"]
    if sum(cold) > 0.1 * len(cold):
        yield "the cold pass hits: the server has seen these documents before"
    least = 1 - (1 - _SURE) ** (1 / real) if real else 1.0
    if least > case.options.detect:
        needed = math.ceil(math.log(1 - _SURE) / math.log1p(-case.options.detect))
        yield (
            f"{real} hits, all right, exclude that more than {least:.3g} of them are wrong; "
            f"{case.options.detect:g} takes {needed} hits: give more --documents"
        )
    if case.exact:
        return
    if row.limit > VISIBLE:
        yield f"the noise hides differences below {row.limit:.3g} nats"
    if not any(_largest(e) > 0 for e in case.controls) and row.whole.largest > ALLOWED:
        yield (
            f"answers differ by up to {row.whole.largest:.3g} while recomputed ones repeat bit for "
            "bit: measure the floor with other chunk sizes (--control-url), or state --exact"
        )


def _doubts(
    options: Options, records: Sequence[Evidence], controls: Sequence[Pair]
) -> Iterator[str]:
    if unequal := [each for each in records if isinstance(each, Unequal)]:
        yield from map(_unequal, unequal)
        return
    if options.exact and (noise := max(map(_largest, controls), default=0.0)):
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


# --- tests ---


def _p_many(hits: Sequence[Pair], control: Sequence[Pair]) -> float:
    """Sign test by document: hits against one control; p 1 without documents."""
    one, other = _means(hits), _means(control)
    more = sum(one[n] > FACTOR * other[n] for n in one.keys() & other.keys())
    less = sum(other[n] > FACTOR * one[n] for n in one.keys() & other.keys())
    return at_least(more, more + less)


def _means(found: Iterable[Pair]) -> dict[int, float]:
    """Document -> mean of the answers' largest differences, rounding left out."""
    by = _by(found, lambda each: each.number)
    return {
        number: max(ALLOWED, float(np.mean([_largest(each) for each in answers])))
        for number, answers in by.items()
    }


# --- figures ---


def figures(name: str, found: Sequence[Pair], limit: float = math.inf) -> Figures:
    """Sum up answers."""
    places = np.array([value for each in found for value in each.largest])
    kl = np.array([value for each in found for value in each.kl])
    return Figures(
        name=name,
        answers=len(found),
        hits=sum(each.hit for each in found),
        places=len(places),
        flips=sum(each.flips for each in found),
        largest=float(places.max(initial=0.0)),
        p999=float(np.quantile(places, 0.999)) if len(places) else 0.0,
        mean_kl=float(kl.mean()) if len(kl) else 0.0,
        beyond=sum(_largest(each) > limit for each in found),
    )


def _groups(found: Sequence[Pair], limit: float) -> dict[str, tuple[Figures, ...]]:
    by_pass = _by(found, lambda each: str(each.phase))
    hits = [each for each in found if each.hit and each.prompt_tokens]
    edge = _by(hits, _computed)
    return {
        "pass": tuple(figures(name, each, limit) for name, each in by_pass.items()),
        "prompt tokens computed behind the hit": tuple(
            figures(name, edge[name], limit) for name in _COMPUTED.values() if name in edge
        ),
        "distance from the hit's edge": tuple(_by_distance(hits, limit)),
    }


_COMPUTED = {1: "1", 16: "2 to 16", 64: "17 to 64", 256: "65 to 256", math.inf: "more"}
_DISTANCES = {1: "1", 8: "2 to 8", 32: "9 to 32", 128: "33 to 128", math.inf: "more"}


def _computed(each: Pair) -> str:
    tail = (each.prompt_tokens or 0) - (each.cached_tokens or 0)
    return next(name for most, name in _COMPUTED.items() if tail <= most)


def _by_distance(hits: Sequence[Pair], limit: float) -> Iterator[Figures]:
    """Place 0 of an answer is computed from the last token of the prompt."""
    low = -math.inf
    for most, name in _DISTANCES.items():
        cut = [_within(each, low, most) for each in hits]
        if kept := [each for each in cut if each.places]:
            yield figures(name, kept, limit)
        low = most


def _within(each: Pair, low: float, most: float) -> Pair:
    tail = (each.prompt_tokens or 0) - (each.cached_tokens or 0)
    kept = [i for i, place in enumerate(each.places) if low < tail + place <= most]
    return msgspec.structs.replace(
        each,
        places=tuple(each.places[i] for i in kept),
        largest=tuple(each.largest[i] for i in kept),
        kl=tuple(each.kl[i] for i in kept),
        flips=0,
    )


def _largest(each: Pair) -> float:
    return max(each.largest, default=0.0)


def _by(found: Iterable[Pair], key: Callable[[Pair], K]) -> dict[K, list[Pair]]:
    by: dict[K, list[Pair]] = {}
    for each in found:
        by.setdefault(key(each), []).append(each)
    return by
