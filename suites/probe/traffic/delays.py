"""Whether a short request waits for a long neighbour longer than the work of both takes.

A round measures three times in an order that is drawn: a short prompt alone, a long one alone, and
a short one that is sent while a long one is computed. Any server that works without pause answers
the latter within the work of both. One that computes long prompts in chunks, whose size is given,
answers it within some chunks. Signed ranks over the rounds decide (Wilcoxon's exact test, an error
of at most ALPHA in each direction).
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import NamedTuple

from kvproof.harness.isolation.threads import interruptible
from kvproof.harness.statistics import wilcoxon
from kvproof.suites.probe.answers import NoAnswer
from kvproof.suites.probe.asker import Question
from kvproof.suites.probe.check import DELAYED, Outcome, Verdict
from kvproof.suites.probe.compare import ALPHA
from kvproof.suites.probe.content import HEAD, Turn, fresh
from kvproof.suites.probe.server_connection import Sent
from kvproof.suites.probe.trials import RANDOM, TrialContext

LOOKS = (12, 20)
"""Rounds after which is judged, each time with half of ALPHA."""
LONGER = 4
"""How much longer a long prompt takes at least, or no wait can be measured."""
_SLACK = 1.5
"""Part by which the work of both may be exceeded: steps of two requests cost more."""
_CHUNKS = 8
"""Chunks that a short request may wait: the running one and its own, of which late ones cost more.
Where it shares a step, its own tokens may take several."""
_EXCHANGE = 3
"""Times of a short request that it may take besides: two are received and sent at once."""
_LOST = 8
"""Rounds in which the long prompt was over too soon."""
_INTO = 0.2
"""Part of a long prompt's time after which the short one is sent."""
SITUATION = "short request beside a long prompt"


class Round(NamedTuple):
    """Seconds of three prompts with one token as answer."""

    short: float
    long: float
    beside: float

    @property
    def share(self) -> float:
        """Wait as a part of the long prompt's time."""
        return (self.beside - self.short) / self.long


def judge_delays(
    context: TrialContext, length: int, progress: Callable[[str], None], *, chunk: int = 0
) -> Verdict:
    """Time rounds with a long prompt of `length` words. Raises BudgetExhausted, ServerUnreachable.

    `chunk`: tokens of a step of the server; 0: not known, so that only the work of both is a bound.
    """
    rounds: list[Round] = []
    shown: list[Sent] = []
    lost, log = 0, context.asker.line.log
    verdict = Verdict(DELAYED, "inconclusive", "no round came to an end")
    for look in LOOKS:
        while len(rounds) < look and lost <= _LOST:
            progress(f"short beside long, round {len(rounds) + 1}")
            begun = len(log)
            found = _round(context, length, rounds)
            lost += found is None
            if found is not None:
                rounds.append(found)
                shown = log[begun:]
        if rounds:
            verdict = judged(rounds, length, chunk)
        if verdict.outcome != "inconclusive":
            break
    verdict.history = shown if verdict.outcome == "fail" else ()
    return verdict


def _round(context: TrialContext, length: int, before: list[Round]) -> Round | None:
    """Measure the three times; None if the long prompt was over before the short one came."""
    wait = _INTO * before[-1].long if before else 0.0
    found: dict[str, float | None] = {}
    parts: dict[str, Callable[[], float | None]] = {
        "short": lambda: _alone(context, HEAD),
        "long": lambda: _alone(context, length),
        "beside": lambda: _beside(context, length, wait),
    }
    order = list(parts)
    RANDOM.shuffle(order)
    try:
        for name in order:
            found[name] = parts[name]()
    except NoAnswer:
        return None
    short, long, beside = found["short"], found["long"], found["beside"]
    if short is None or long is None or beside is None:
        return None
    return Round(short, long, beside)


def _alone(context: TrialContext, length: int) -> float:
    question = Question((Turn(fresh(length)),), context.salt(), unshared=length, most=1)
    return context.asker.ask(question).seconds


def _beside(context: TrialContext, length: int, wait: float) -> float | None:
    with interruptible(1, context.asker.line.close) as pool:
        running = pool.submit(_alone, context, length)
        time.sleep(wait)
        early = not running.done()
        seconds = _alone(context, HEAD)
        running.result()
    return seconds if early else None


def judged(rounds: list[Round], length: int, chunk: int) -> Verdict:
    """Judge the rounds so far."""
    count = len(rounds)
    short, long, beside, share = (
        median(values) for values in (*zip(*rounds, strict=True), [each.share for each in rounds])
    )
    times = (
        f"a short prompt takes {short * 1e3:.1f} ms alone and {beside * 1e3:.1f} ms beside one of "
        f"{length:,} words, which takes {long * 1e3:.1f} ms alone, in {count} rounds: it waits for "
        f"{share:.0%} of that"
    )
    if long < LONGER * short:
        why = f"computing {length:,} words takes no measurable time: {times}"
        return _verdict("unsupported", why, count)
    logs = [math.log(each.beside / _limit(each, length, chunk)) for each in rounds]
    allowed = f"{_CHUNKS} chunks of {chunk} tokens" if chunk else "the work of both"
    if wilcoxon(logs) <= ALPHA / len(LOOKS):
        return _verdict("fail", f"{times}, more than {allowed}", count)
    if wilcoxon([-each for each in logs]) <= ALPHA / len(LOOKS):
        return _verdict("pass", f"{times}, within {allowed}", count)
    return _verdict("inconclusive", f"{times}; {allowed} is exceeded in some", count)


def _limit(each: Round, length: int, chunk: int) -> float:
    if chunk:
        return _EXCHANGE * each.short + min(1.0, _CHUNKS * chunk / length) * each.long
    return _SLACK * (each.short + each.long)


def _verdict(outcome: Outcome, reason: str, count: int) -> Verdict:
    return Verdict(DELAYED, outcome, reason, checks=count, situations=Counter({SITUATION: count}))
