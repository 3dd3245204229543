"""Sign tests by document: whether hits differ by more than recomputed answers, or take as long."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from kvproof.eval.divergence.figures import by_key
from kvproof.eval.divergence.records import Pair
from kvproof.harness.statistics import at_least

FACTOR = 4.0
"""Times that correct hits may differ more than recomputed answers: their chunks are shorter."""

ALLOWED = 1e-5
"""Nats. Smaller differences are rounding in float32 and of the numbers in the answers."""

_BRIEF, _LONG = 300, 1000
"""Tokens of a short prompt, and of a hit that is worth its time."""


def p_many(hits: Sequence[Pair], control: Sequence[Pair]) -> float:
    """Sign test by document: hits against one control; p 1 without documents."""
    one, other = _means(hits), _means(control)
    more = sum(one[n] > FACTOR * other[n] for n in one.keys() & other.keys())
    less = sum(other[n] > FACTOR * one[n] for n in one.keys() & other.keys())
    return at_least(more, more + less)


def late(found: Sequence[Pair], controls: Sequence[Pair]) -> float:
    """Sign test of long prompts: hits are nearer in time to recomputed answers than to short ones.

    p is 1 where computing takes no measurable time.
    """
    again = [each for each in controls if each.phase == "again"]
    brief = [each.seconds for each in again if 0 < (each.prompt_tokens or 0) <= _BRIEF]
    claimed = [e for e in found if "alone" in e.situations and (e.cached_tokens or 0) >= _LONG]
    one, other = _seconds(claimed), _seconds(again)
    both = [(one[number], other[number]) for number in one.keys() & other.keys()]
    if not brief or not both:
        return 1.0
    short = median(brief)
    if median(computed for _, computed in both) < 2 * short:
        return 1.0
    return at_least(sum(hit > (short + computed) / 2 for hit, computed in both), len(both))


def _seconds(found: Iterable[Pair]) -> dict[int, float]:
    """Document -> median time of an answer that one request gave."""
    by = by_key((each for each in found if each.requests == 1), lambda each: each.number)
    return {n: median(each.seconds for each in answers) for n, answers in by.items()}


def _means(found: Iterable[Pair]) -> dict[int, float]:
    """Document -> mean of the answers' largest differences, rounding left out."""
    by = by_key(found, lambda each: each.number)
    return {
        number: max(ALLOWED, fmean(each.worst for each in answers))
        for number, answers in by.items()
    }
