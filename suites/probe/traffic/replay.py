"""Replays a recorded trace at its own pace, then sends each of its requests alone, twice.

A block of a prompt is drawn from its id in the trace, so that requests share what those of the
trace shared. The lone requests come in an order that is drawn, computed anew where the server can.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

from kvproof.harness.bench.mooncake_trace import Trace, read_trace
from kvproof.harness.isolation.threads import interruptible
from kvproof.harness.statistics import clopper_pearson, fisher
from kvproof.suites.probe.answers import Answer, NoAnswer
from kvproof.suites.probe.asker import Asker, Question
from kvproof.suites.probe.check import REPLAYED, Verdict
from kvproof.suites.probe.compare import ALPHA, Pair, difference
from kvproof.suites.probe.content import ALPHABET, Turn, Words, fresh
from kvproof.suites.probe.trials import RANDOM, TrialContext, TrialInvalid

BESIDE = "request of the trace beside others"
_TIMES = 3
"""Requests for each of the trace: in it, and alone twice."""
_SHARE = 0.8
"""Part of the budget of requests that a replay takes."""
_SPAN = 0.3
"""Part of the budget of time that the trace may last at its pace."""
_MOST = 256
"""Requests under way at most."""
_ROOM = 64
"""Tokens left for a template."""
_SLOWER = 2.0


class TraceReplay(NamedTuple):
    """A trace, and how much faster than recorded it is sent."""

    trace: Trace
    pace: float = 1.0
    chunk: int = 0
    """Tokens of a step of the server; 0: not known."""


def open_trace(path: Path) -> Trace:
    """Read a trace in the Mooncake format. Raises UsageError with the line."""
    return read_trace(path)


class Recorded(NamedTuple):
    """A request of the trace."""

    at: float
    """Seconds after the first one, at the pace of the replay."""
    question: Question


class Run(NamedTuple):
    """A request in the trace and alone."""

    beside: Answer
    company: int
    """Requests under way with it at most, itself included."""
    alone: Answer
    again: Answer


def requests(context: TrialContext, replay: TraceReplay) -> list[Recorded]:
    """Return the requests that fit into the server and into the budget, in order of arrival."""
    asker, trace = context.asker, replay.trace
    budget = asker.line.budget
    most = int(_SHARE * (budget.requests - budget.used) / _TIMES)
    salt, seed = context.salt(), str(fresh(8))
    found: list[Recorded] = []
    start = trace.times[0]
    for row in range(len(trace.lengths)):
        at = (trace.times[row] - start) / 1e3 / replay.pace
        if len(found) == most or at > _SPAN * budget.seconds:
            break
        length, output = trace.lengths[row], max(1, trace.outputs[row])
        if asker.facts.longest and length + output + _ROOM > asker.facts.longest:
            continue
        turn = Turn(_words(trace, row, seed))
        found.append(Recorded(at, Question((turn,), salt, most=output, unending=True)))
    return found


def _words(trace: Trace, row: int, seed: str) -> Words:
    ids = trace.ids[trace.bounds[row] : trace.bounds[row + 1]]
    words: list[int] = []
    for each in ids:
        words += Random(f"{seed} {each}").choices(range(ALPHABET), k=trace.block)  # noqa: S311 - drawn to be repeated
    return tuple(words[: trace.lengths[row]])


def judge_replay(
    context: TrialContext,
    replay: TraceReplay,
    progress: Callable[[str], None],
    *,
    allowed: float,
) -> Verdict:
    """Replay and judge. Raises BudgetExhausted, ServerUnreachable."""
    wanted = requests(context, replay)
    if not wanted:
        return Verdict(REPLAYED, "inconclusive", "no request of the trace fits into the server")
    progress(f"trace: {len(wanted)} requests in {wanted[-1].at:.0f} s")
    log = context.asker.line.log
    begun = len(log)
    answers, company, late = _sent(context.asker, wanted)
    shown = log[begun:]
    progress(f"trace: {len(wanted)} requests alone, twice")
    runs = list(_alone(context, wanted, answers, company))
    verdict = judged(runs, len(wanted), allowed=allowed)
    left = len(replay.trace.lengths) - len(wanted)
    notes = [f"{left:,} further requests of the trace did not fit" if left else ""]
    notes.append(f"requests were sent up to {late:.1f} s late" if late > 1 else "")
    verdict.reason = "; ".join(filter(None, (verdict.reason, *notes)))
    verdict.history = shown if verdict.outcome == "fail" else ()
    return verdict


def _sent(asker: Asker, wanted: Sequence[Recorded]) -> tuple[list[Answer | None], list[int], float]:
    """Send all at their times; return answers, company of each, and the largest delay."""
    begun, late = time.monotonic(), 0.0
    spans: list[tuple[float, float]] = [(0.0, 0.0)] * len(wanted)

    def one(place: int) -> Answer:
        start = time.monotonic()
        try:
            return asker.ask(wanted[place].question)
        finally:
            spans[place] = (start, time.monotonic())

    with interruptible(_MOST, asker.line.close) as pool:
        asked: list[Future[Answer]] = []
        for place, each in enumerate(wanted):
            time.sleep(max(0.0, begun + each.at - time.monotonic()))
            late = max(late, time.monotonic() - begun - each.at)
            asked.append(pool.submit(one, place))
    answers = [_answer(each) for each in asked]
    return answers, [_company(spans, place) for place in range(len(wanted))], late


def _answer(asked: Future[Answer]) -> Answer | None:
    """None without an answer, which another check counts. Raises all else."""
    try:
        return asked.result()
    except NoAnswer:
        return None


def _company(spans: Sequence[tuple[float, float]], place: int) -> int:
    start, end = spans[place]
    edges = sorted(
        edge
        for a, b in spans
        if a < end and b > start
        for edge in ((max(a, start), 1), (min(b, end), -1))
    )
    return max(accumulate(step for _, step in edges), default=0)


def _alone(
    context: TrialContext,
    wanted: Sequence[Recorded],
    answers: Sequence[Answer | None],
    company: Sequence[int],
) -> Iterator[Run]:
    places = [place for place, each in enumerate(answers) if each is not None] * 2
    RANDOM.shuffle(places)
    ask = context.plain if context.anew else context.asker.ask
    found: dict[int, list[Answer]] = {}
    for place in places:
        try:
            found.setdefault(place, []).append(ask(wanted[place].question))
        except (NoAnswer, TrialInvalid):
            continue
    for place, lone in found.items():
        beside = answers[place]
        if beside is not None and len(lone) == 2:
            yield Run(beside, company[place], *lone)


def judged(runs: Sequence[Run], count: int, *, allowed: float) -> Verdict:
    """Hold changed answers of the trace against those that change alone."""
    beside = [run for run in runs if run.company > 1]
    about = Counter({BESIDE: len(beside)})
    if not beside:
        why = f"of {len(runs)} requests with answers none ran beside another; try a larger --pace"
        return Verdict(REPLAYED, "inconclusive", why, checks=len(runs), situations=about)
    changed = [
        (run, found)
        for run in beside
        if (found := difference(Pair("trace", run.alone, run.beside), allowed=allowed))
        and difference(Pair("trace", run.again, run.beside), allowed=allowed)
    ]
    noise = sum(
        bool(difference(Pair("alone", run.alone, run.again), allowed=allowed)) for run in runs
    )
    rate = f"{len(changed)} of {len(beside)} answers beside others differ from those alone"
    facts = f"{rate}, {noise} of {len(runs)} differ alone; {_times(beside)}"
    verdict = Verdict(REPLAYED, "pass", facts, checks=len(beside), situations=about)
    if not changed:
        most = clopper_pearson(0, len(beside))
        verdict.reason = f"{facts}; at most {most:.1%} may be changed by neighbours (95 %)"
        if len(runs) < count:
            verdict.outcome = "inconclusive"
            verdict.reason += f"; {count - len(runs)} requests have no three answers"
        return verdict
    p = fisher(len(changed), len(beside), noise, len(runs))
    run, reported = changed[0]
    verdict.outcome = "fail" if p <= ALPHA else "inconclusive"
    verdict.reason = f"{facts}; for example {reported}; p = {p:.2g}"
    verdict.shows = run.beside
    verdict.detail = f"alone:  {run.alone.summary}\nbeside: {run.beside.summary}"
    return verdict


def _times(runs: Sequence[Run]) -> str:
    """How much longer requests take among others than alone."""
    ratios = [run.beside.seconds / min(run.alone.seconds, run.again.seconds) for run in runs]
    slower = sum(each >= _SLOWER for each in ratios)
    return (
        f"they take {median(ratios):.1f} times as long as alone (median; {max(ratios):.1f} at "
        f"most, {slower} at least {_SLOWER:g} times), up to "
        f"{max(run.company for run in runs)} at once"
    )
