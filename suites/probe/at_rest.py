"""`/metrics` before and after: its counters beside the answers, and what is left behind."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from kvproof.suites.probe.answers import NoAnswer
from kvproof.suites.probe.asker import Asker, Question
from kvproof.suites.probe.check import METRICS, REST, Verdict
from kvproof.suites.probe.content import HEAD, Turn, fresh
from kvproof.suites.probe.counts import untold
from kvproof.suites.probe.metrics import Figures, grown, read_figures, total

_SETTLE = 5.0
"""Seconds in which what has ended must be gone, and counters must have grown."""
_PAUSE = 0.05


def figures_of(asker: Asker) -> Figures:
    """Read `/metrics`; empty where there is none. Raises Gone."""
    try:
        return read_figures(asker.line) if asker.facts.metrics else {}
    except NoAnswer:
        return {}


def judge_counters(
    asker: Asker, before: Figures, first: int, *, sleep: Callable[[float], None] = time.sleep
) -> Verdict:
    """Compare the counters with the answers from number `first` on. Raises Gone."""
    law, answers = asker.facts.law, [each.answer for each in asker.seen[first:]]
    if not asker.tells or asker.metered:
        return Verdict(METRICS, "unsupported", untold(asker))
    if not any(each.cached for each in answers):
        return Verdict(METRICS, "inconclusive", "no prompt was ever found")
    if not law.hits or total(before, law.hits) is None:
        why = f"/metrics has no counters of hits that are known of {asker.facts.engine!r}"
        return Verdict(METRICS, "unsupported", why)
    told = sum(each.cached or 0 for each in answers), sum(each.prompt for each in answers)
    counted = _counted(asker, before, told[1], sleep)
    situations = Counter({"prompt found": sum(bool(each.cached) for each in answers)})
    if counted[2] > len(answers):
        why = f"{counted[2]:.0f} requests have ended, {len(answers)} of them ours"
        return Verdict(METRICS, "inconclusive", why, situations=situations)
    agrees = counted[:2] == told
    why = (
        f"the answers tell {told[0]} cached of {told[1]} prompt tokens, "
        f"{law.hits} grew by {counted[0]:.0f} and {law.queries} by {counted[1]:.0f}"
    )
    return Verdict(
        METRICS, "pass" if agrees else "fail", why, checks=len(answers), situations=situations
    )


def _counted(
    asker: Asker, before: Figures, queries: int, sleep: Callable[[float], None]
) -> tuple[float, float, float]:
    """Return how far hits, queries and ended requests grew, once the queries are all there."""
    law, deadline = asker.facts.law, time.monotonic() + _SETTLE
    while True:
        after = figures_of(asker)
        names = (law.hits, law.more_hits, law.queries, law.ended)
        hits, more, asked, ended = (grown(before, after, name) for name in names)
        if asked >= queries or time.monotonic() > deadline:
            return hits + more, asked, ended
        sleep(_PAUSE)


def judge_rest(
    asker: Asker, before: Figures, posts: int, *, sleep: Callable[[float], None] = time.sleep
) -> Verdict:
    """Compare the gauges with those before `posts` requests. Raises Gone, Spent."""
    names = [name for name in asker.facts.law.at_rest if total(before, name) is not None]
    if not names:
        why = (
            f"/metrics has no gauges that are known of {asker.facts.engine!r}"
            if asker.facts.metrics
            else "there is no /metrics"
        )
        return Verdict(REST, "unsupported", why)
    busy = [name for name in names if total(before, name)]
    if busy:
        return Verdict(
            REST, "inconclusive", f"somebody else uses the server: {_told(before, busy)}"
        )
    after = _settled(asker, names, sleep)
    return _at_rest(asker, before, after, names, posts)


def _settled(asker: Asker, names: Sequence[str], sleep: Callable[[float], None]) -> Figures:
    """Return the gauges once all are 0, or as they are when that takes too long."""
    deadline = time.monotonic() + _SETTLE
    while True:
        after = figures_of(asker)
        if not any(total(after, name) for name in names) or time.monotonic() > deadline:
            return after
        sleep(_PAUSE)


def finish_with_one(asker: Asker) -> None:
    """Ask something small: some engines refresh their gauges only when they compute."""
    try:
        asker.ask(Question((Turn(fresh(HEAD)),), unshared=HEAD, most=1))
    except NoAnswer:
        return


def _at_rest(
    asker: Asker, before: Figures, after: Figures, names: Sequence[str], posts: int
) -> Verdict:
    left = [name for name in names if total(after, name)]
    asked = sum(sent.left for sent in asker.line.log)
    situations = Counter({"request left under way": asked, "request ended": posts})
    ended = asker.facts.law.ended
    others = grown(before, after, ended) > posts
    if left and others:
        why = f"{_told(after, left)}, but others use the server as well"
        return Verdict(REST, "inconclusive", why, situations=situations)
    if left:
        why = f"{_told(after, left)}, {_SETTLE:g} s after the last request"
        return Verdict(REST, "fail", why, checks=posts, situations=situations)
    if not asked:
        why = "no request was left under way"
        return Verdict(REST, "inconclusive", why, checks=posts, situations=situations)
    return Verdict(REST, "pass", checks=posts, situations=situations)


def _told(figures: Figures, names: Sequence[str]) -> str:
    return ", ".join(f"{name} is {total(figures, name):g}" for name in names)
