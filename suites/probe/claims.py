"""Whether cached tokens are not computed again: the time of hits against that of misses.

A prompt of one token's answer takes a time that grows with its computed part. Rounds measure
a short new prompt, a long new one, and the long one again. A hit that is worth its name takes about
as long as the short one. A round counts against the server if the hit was nearer to the long one.
The sign test over the rounds has an error of at most ALPHA in each direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from kvproof.harness.statistics import binomial_tail
from kvproof.suites.probe.answers import Answer, NoAnswer
from kvproof.suites.probe.asker import Asker, Question
from kvproof.suites.probe.check import CLAIMED, Outcome, Verdict
from kvproof.suites.probe.compare import ALPHA
from kvproof.suites.probe.content import HEAD, Turn, fresh
from kvproof.suites.probe.counts import why_uncounted
from kvproof.suites.probe.server_connection import Sent
from kvproof.suites.probe.trials import TrialContext

LOOKS = (12, 24, 48)
"""Rounds after which is judged, each time with a third of ALPHA."""
_LONGER = 2
"""How much longer a miss takes at least than a short prompt, or nothing can be measured."""
_TOKEN = 5e-6
"""Seconds more of a token that is computed. A faster token is parsed and sent, by no model: 0.5 us
where a server of plain Python reads ids and computes nothing."""
_LOST = 4
"""Rounds that may miss the cache."""
_LATE = 30.0
"""Seconds of a round, after which no more rounds than the first look follow."""
SITUATION = "hit and miss timed"


class Round(NamedTuple):
    """Seconds to the first token of three prompts."""

    short: float
    miss: float
    hit: float
    cached: int

    @property
    def computed(self) -> bool:
        """Return whether the hit took as long as if it had been computed."""
        return self.hit > (self.short + self.miss) / 2


def judge_claims(context: TrialContext, length: int, progress: Callable[[str], None]) -> Verdict:
    """Time prompts of `length` words. Raises BudgetExhausted, ServerUnreachable."""
    asker = context.asker
    if not (asker.reports_cached or asker.metered):
        return Verdict(CLAIMED, "unsupported", f"no hit is claimed: {why_uncounted(asker)}")
    rounds: list[Round] = []
    shown: list[Sent] = []
    lost = 0
    for look in LOOKS:
        while len(rounds) < look and lost <= _LOST:
            if not len(rounds) % LOOKS[0]:
                progress(f"time of hits, round {len(rounds) + 1}")
            begun = len(asker.line.log)
            found = _round(context, length)
            lost += found is None
            if found is not None and (rounds or lost):
                rounds.append(found)
                shown = asker.line.log[begun:]
            elif found is not None:
                lost += 1  # the first round warms up
        verdict = _judged(rounds, length)
        if verdict.outcome != "inconclusive" or not rounds or sum(rounds[-1][:3]) > _LATE:
            break
    if verdict.outcome == "fail":
        verdict.history = shown
    return verdict


def _round(context: TrialContext, length: int) -> Round | None:
    asker = context.asker
    try:
        short = _ask(asker, Question((Turn(fresh(HEAD)),), context.salt(), unshared=HEAD))
        long = Question((Turn(fresh(length)),), context.salt(), unshared=length)
        miss = _ask(asker, long)
        hit = _ask(asker, long._replace(unshared=None, again=True))
    except NoAnswer:
        return None
    cached = hit.cached or 0
    if 2 * cached < hit.prompt:
        return None
    return Round(short.seconds, miss.seconds, hit.seconds, cached)


def _ask(asker: Asker, question: Question) -> Answer:
    return asker.ask(question._replace(most=1))


def _judged(rounds: list[Round], length: int) -> Verdict:
    if not rounds:
        return Verdict(
            CLAIMED, "inconclusive", f"no prompt of {length:,} words was found for its half"
        )
    count, share = len(rounds), ALPHA / len(LOOKS)
    short, miss, hit = (median(each[place] for each in rounds) for place in range(3))
    times = (
        f"{rounds[-1].cached:,} tokens from the cache {hit * 1e3:.1f} ms, computed "
        f"{miss * 1e3:.1f} ms, a short prompt {short * 1e3:.1f} ms, in {count} rounds"
    )
    if not _apart(rounds) or miss < max(_LONGER * short, short + _TOKEN * rounds[-1].cached):
        why = f"computing {length:,} words takes no measurable time: {times}"
        return _verdict("unsupported", why, count)
    late = sum(each.computed for each in rounds)
    if binomial_tail(late, count, 0.5) <= share:
        why = (
            f"hits are claimed and computed again: {times}; in {late} the hit took as long as if "
            f"computed; by chance at most once in {1 / ALPHA:,.0f} probes"
        )
        return _verdict("fail", why, count)
    if binomial_tail(count - late, count, 0.5) <= share:
        return _verdict("pass", times, count)
    return _verdict("inconclusive", f"{times}; in {late} of them the hit was no sooner", count)


def _apart(rounds: list[Round]) -> bool:
    """Return whether nine in ten misses take longer than nine in ten short prompts."""
    tenth = len(rounds) // 10
    slowest = sorted(each.short for each in rounds)[-1 - tenth]
    return sorted(each.miss for each in rounds)[tenth] > slowest


def _verdict(outcome: Outcome, reason: str, count: int) -> Verdict:
    return Verdict(CLAIMED, outcome, reason, checks=count, situations=Counter({SITUATION: count}))
