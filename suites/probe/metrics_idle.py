"""`/metrics` before and after: counters against the answers, and gauges of an idle server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from kvproof.harness.served.counters import Figures, grown, total
from kvproof.suites.framework.property import Property
from kvproof.suites.probe.answers import NoAnswer
from kvproof.suites.probe.asker import Asker, Question
from kvproof.suites.probe.check import METRICS, REST, Verdict
from kvproof.suites.probe.content import HEAD, Turn, fresh
from kvproof.suites.probe.counts import why_uncounted
from kvproof.suites.probe.metrics import lost, read_figures
from kvproof.suites.probe.server_connection import Sent

_SETTLE = 5.0
"""Seconds until finished requests leave the gauges and appear in the counters."""
_PAUSE = 0.05
_SHOWN = 6
"""Requests in the history of a failure."""


def figures_of(asker: Asker) -> Figures:
    """Read `/metrics`; empty if missing or unreadable. Raises ServerUnreachable."""
    try:
        return read_figures(asker.line) if asker.facts.metrics else {}
    except NoAnswer:
        return {}


def _unread(about: Property, asker: Asker, before: Figures, what: str) -> Verdict:
    if asker.facts.metrics and not before:
        return Verdict(about, "inconclusive", "/metrics could not be read before the first request")
    why = f"/metrics has no {what} that are known of {asker.facts.engine!r}"
    return Verdict(about, "unsupported", why if asker.facts.metrics else "there is no /metrics")


def _read_until(
    asker: Asker,
    before: Figures,
    names: Sequence[str],
    done: Callable[[Figures], bool],
    sleep: Callable[[float], None],
) -> Figures:
    deadline = time.monotonic() + _SETTLE
    while True:
        after = figures_of(asker)
        if not lost(before, after, names) and done(after):
            return after
        if time.monotonic() > deadline:
            return after
        sleep(_PAUSE)


def judge_counters(
    asker: Asker, before: Figures, begun: int, *, sleep: Callable[[float], None] = time.sleep
) -> Verdict:
    """Compare the counters with the answers from index `begun` of the log.

    Raises ServerUnreachable.
    """
    rules, sent = asker.facts.rules, asker.line.log[begun:]
    answers = [each.answer for each in sent if each.answer]
    if not asker.reports_cached or asker.metered:
        return Verdict(METRICS, "unsupported", why_uncounted(asker))
    if not any(each.cached for each in answers):
        return Verdict(METRICS, "inconclusive", "no prompt was ever found")
    if not rules.hits or total(before, rules.hits) is None:
        return _unread(METRICS, asker, before, "counters of hits")
    prompts = sum(each.prompt for each in answers)
    names = [rules.hits, rules.more_hits, rules.queries, rules.ended, *rules.under_way]

    def complete(now: Figures) -> bool:
        counted = grown(before, now, rules.queries) >= prompts
        return counted and not any(total(now, name) for name in rules.under_way)

    after = _read_until(asker, before, names, complete, sleep)
    verdict = Verdict(METRICS, "inconclusive", _open(asker, before, after, names, sent))
    verdict.situations = Counter({"prompt found": sum(bool(each.cached) for each in answers)})
    return verdict if verdict.reason else _compared(asker, before, after, sent, verdict)


def _compared(
    asker: Asker, before: Figures, after: Figures, sent: Sequence[Sent], verdict: Verdict
) -> Verdict:
    rules, answers = asker.facts.rules, [each.answer for each in sent if each.answer]
    cached, prompts = sum(a.cached or 0 for a in answers), sum(a.prompt for a in answers)
    hits = grown(before, after, rules.hits) + grown(before, after, rules.more_hits)
    queries = grown(before, after, rules.queries)
    agrees = hits == cached and queries == prompts
    verdict.outcome, verdict.checks = "pass" if agrees else "fail", len(answers)
    verdict.history = () if agrees else sent[-_SHOWN:]
    verdict.reason = (
        f"the answers report {cached} cached of {prompts} prompt tokens, "
        f"{rules.hits} grew by {hits:.0f} and {rules.queries} by {queries:.0f}"
    )
    return verdict


def _open(
    asker: Asker, before: Figures, after: Figures, names: Sequence[str], sent: Sequence[Sent]
) -> str:
    """Return why the counters may include other requests; empty if they cannot."""
    if gone := lost(before, after, names):
        return _no_more(gone)
    if _tokens(sent) is None:
        return "some requests of the probe have no answer with counts"
    rules = asker.facts.rules
    if busy := [name for name in rules.under_way if total(after, name)]:
        return f"other clients use the server: {_describe(after, busy)}"
    ended = grown(before, after, rules.ended)
    if ended > len(sent):
        return f"{ended:.0f} requests have ended, {len(sent)} of them ours"
    return ""


def _no_more(names: Sequence[str]) -> str:
    return f"/metrics no longer has {', '.join(names)}"


def _tokens(sent: Sequence[Sent]) -> int | None:
    """Prompt tokens of some requests; None if only the server can count them."""
    reported = [_asked(each) for each in sent]
    return None if None in reported else sum(each or 0 for each in reported)


def _asked(sent: Sent) -> int | None:
    if sent.answer:
        return sent.answer.prompt
    if sent.trouble:
        return 0 if sent.trouble.trouble == "refused" else None
    prompt = sent.body.get("prompt")  # of a stream
    return len(prompt) if isinstance(prompt, list) else None


def judge_rest(
    asker: Asker, before: Figures, begun: int, *, sleep: Callable[[float], None] = time.sleep
) -> Verdict:
    """Compare the gauges with those before index `begun` of the log.

    Raises ServerUnreachable, BudgetExhausted.
    """
    names = [name for name in asker.facts.rules.at_rest if total(before, name) is not None]
    if not names:
        return _unread(REST, asker, before, "gauges")
    if busy := [name for name in names if total(before, name)]:
        why = f"other clients use the server: {_describe(before, busy)}"
        return Verdict(REST, "inconclusive", why)
    after = _read_until(
        asker, before, names, lambda now: not any(total(now, name) for name in names), sleep
    )
    return _at_rest(asker, before, after, names, asker.line.log[begun:])


def finish_with_one(asker: Asker) -> None:
    """Send a small request: some engines refresh their gauges only when they compute."""
    try:
        asker.ask(Question((Turn(fresh(HEAD)),), unshared=HEAD, most=1))
    except NoAnswer:
        return


def _at_rest(
    asker: Asker, before: Figures, after: Figures, names: Sequence[str], sent: Sequence[Sent]
) -> Verdict:
    gone, left = lost(before, after, names), [name for name in names if total(after, name)]
    asked = sum(each.left for each in sent)
    situations = Counter({"request cancelled while running": asked, "request ended": len(sent)})
    if gone:
        return Verdict(REST, "inconclusive", _no_more(gone), situations=situations)
    if left and (others := _others(asker, before, after, sent)):
        why = f"{_describe(after, left)}, but {others}"
        return Verdict(REST, "inconclusive", why, situations=situations)
    if left:
        why = f"{_describe(after, left)}, {_SETTLE:g} s after the last request"
        shown = sent[-_SHOWN:]
        return Verdict(REST, "fail", why, checks=len(sent), situations=situations, history=shown)
    if not asked:
        why = "no request was cancelled while running"
        return Verdict(REST, "inconclusive", why, checks=len(sent), situations=situations)
    return Verdict(REST, "pass", checks=len(sent), situations=situations)


def _others(asker: Asker, before: Figures, after: Figures, sent: Sequence[Sent]) -> str:
    """Return why other clients may hold the remaining blocks; empty if they cannot.

    A running request was looked up but has not ended. No other client's request runs if the lookups
    count exactly the probe's tokens.
    """
    rules = asker.facts.rules
    if grown(before, after, rules.ended) > len(sent):
        return "other clients use the server as well"
    counted = rules.queries and not lost(before, after, [rules.queries])
    ours = counted and grown(before, after, rules.queries) == _tokens(sent)
    if total(after, rules.waiting) or (total(after, rules.running) and not ours):
        return "running requests may be those of other clients"
    return ""


def _describe(figures: Figures, names: Sequence[str]) -> str:
    return ", ".join(f"{name} is {total(figures, name):g}" for name in names)
