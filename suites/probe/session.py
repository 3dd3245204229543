"""One probe of one server: the order of its checks, and their verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from kvproof.harness.served.counters import Figures
from kvproof.harness.served.images import new_image
from kvproof.suites.framework.property import Property
from kvproof.suites.probe import check as about
from kvproof.suites.probe import company
from kvproof.suites.probe.answers import NoAnswer
from kvproof.suites.probe.asker import Asker, Question
from kvproof.suites.probe.check import Outcome, Verdict
from kvproof.suites.probe.claims import judge_claims
from kvproof.suites.probe.content import HEAD, Turn, fresh
from kvproof.suites.probe.counts import judge_counts
from kvproof.suites.probe.depths import USUAL, deep, fitting, reached, words
from kvproof.suites.probe.facts import Facts
from kvproof.suites.probe.metrics_idle import (
    figures_of,
    finish_with_one,
    judge_counters,
    judge_rest,
)
from kvproof.suites.probe.parity import Check, ParityChecker
from kvproof.suites.probe.pooled import Pool
from kvproof.suites.probe.server_connection import (
    BudgetExhausted,
    ServerConnection,
    ServerUnreachable,
)
from kvproof.suites.probe.sizes import BORDERS, Sizes, estimate
from kvproof.suites.probe.trials import (
    FOUND,
    INSIDE,
    TrialContext,
    again,
    cancelled,
    controls_at_once,
    conversation,
    duplicates,
    images,
    neighbours,
    partly,
    salted,
    under_salts,
)

_FIRST = 165
"""Words of the first prompt that is sent twice."""
_TRIES = 3
"""Attempts to estimate the sizes, if a request fails on the way."""
_TIMED = 1.0
"""Seconds of the longest prompts whose times are measured: there are dozens."""
_PAUSES = 0.1
"""Share of the time limit that pauses may take; to confirm a changed answer takes ten times it."""
_LOST = 3
"""Lost connections in the whole probe that are no accident."""


@dataclass
class Session:
    """A probe; `verdicts` runs it and stores the results in the session."""

    line: ServerConnection
    facts: Facts
    tolerance: float
    progress: Callable[[str], None]
    """Callback for progress messages."""
    reference: Asker | None = None
    """Another server of the same model, without prefix caching."""
    depths: tuple[int, ...] = ()
    """Tokens of long prompts that were asked for; none: USUAL, as far as they fit."""
    gone: str = ""
    """Why the server does not answer any more."""

    unmeasured: str = ""
    """Why the sizes could not be estimated."""

    checks: ClassVar[Sequence[Property]] = about.CHECKS
    """Checks that get a verdict in any case."""

    def __post_init__(self) -> None:
        self.asker = Asker(self.line, self.facts)
        self.sizes = Sizes()
        self._before: Figures = {}
        self._begun = len(self.line.log)
        self._judged: set[str] = set()

    def measure(self) -> None:
        """Estimate the sizes, as far as the server allows."""
        self.progress("block size and smallest hit")
        self._before = figures_of(self.asker)
        for _ in range(_TRIES):
            try:
                self._counted()
                self.sizes, self.unmeasured = estimate(self.asker), ""
                return
            except NoAnswer as trouble:
                self.unmeasured = str(trouble)
            except (BudgetExhausted, ServerUnreachable) as why:
                self._stop(why)
                return

    def _counted(self) -> None:
        """Send one prompt twice, to find out whether and where cached tokens are reported."""
        question = Question((Turn(fresh(_FIRST)),), unshared=_FIRST)
        self.asker.ask(question)
        self.asker.ask(question._replace(unshared=None, again=True))
        known = self.facts.rules.hits and self.facts.metrics
        self.asker.metered = not self.asker.reports_cached and bool(known)

    def verdicts(self) -> Iterator[Verdict]:
        """Run all checks; returns a verdict for every one."""
        why = self.gone
        try:
            for verdict in self._guided():
                self._judged.add(verdict.about.name)
                yield verdict
        except (BudgetExhausted, ServerUnreachable) as stop:
            self._stop(stop)
            why = str(stop)
        for verdict in (*self._counts(), self._answered()):
            self._judged.add(verdict.about.name)
            yield verdict
        for each in self.checks:
            if each.name not in self._judged:
                yield Verdict(each, "inconclusive", why)

    def _counts(self) -> Sequence[Verdict]:
        return judge_counts(self.asker, self.sizes)

    def _stop(self, why: Exception) -> None:
        self.gone = str(why) if isinstance(why, ServerUnreachable) else self.gone

    def _guided(self) -> Iterator[Verdict]:
        if self.gone:
            raise ServerUnreachable(self.gone)
        if self.unmeasured:
            self.progress(f"sizes unknown: {self.unmeasured}")
        yield judge_counters(self.asker, self._before, self._begun)
        judge = self._checker()
        yield from self._prepared(judge)
        for each in self._checks():
            lacking = self._lacking(each.about, judge.context)
            yield Verdict(each.about, *lacking) if lacking else judge.judge(each)
        deepest = yield from self._deep(judge)
        yield judge_claims(judge.context, words(self.asker, deepest), self.progress)
        yield Pool(
            judge.context,
            judge.hits,
            judge.control_pairs,
            allowed=judge.allowed,
            length=self._lengths()[-1],
            progress=self.progress,
        ).verdict()
        self.progress("resources after the last request")
        finish_with_one(self.asker)
        yield judge_rest(self.asker, self._before, self._begun)

    def _checker(self) -> ParityChecker:
        context = TrialContext(self.asker, self.sizes, reference=self.reference)
        return ParityChecker(context, tolerance=self.tolerance, progress=self.progress)

    def _prepared(self, judge: ParityChecker) -> Iterator[Verdict]:
        """Judge salts and the engine's own noise, on which the other checks depend."""
        salts = self._salts(judge)
        yield salts
        if salts.outcome == "pass":
            neutral = judge.neutral(under_salts, self._lengths()[0])
            judge.context = replace(judge.context, salts=True, neutral=neutral)
        yield judge.steady()

    def _deep(self, judge: ParityChecker) -> Generator[Verdict, None, int]:
        """Judge long prompts; returns the depth at which times are measured."""
        wanted = self.depths or fitting(self.asker, USUAL)
        fits = fitting(self.asker, wanted)
        shallow = max(2 * self._lengths()[-1], 4 * HEAD)
        if not wanted:
            why = f"the server takes {self.facts.longest:,} tokens, less than {USUAL[0]:,}"
            yield Verdict(about.DEEP, "unsupported", why)
            return min(shallow, self.facts.longest // 2)
        required = tuple(reached(each) for each in wanted)
        verdict = judge.judge(Check(about.DEEP, deep, fits, required))
        found = [each for each in wanted if verdict.situations[reached(each)]]
        short = [each for each in wanted if each not in fits]
        notes = [
            f"hits reached a depth of {max(found):,} tokens" if found else "no depth was reached"
        ]
        if short:
            notes.append(f"the server takes {self.facts.longest:,} tokens, not {short[0]:,}")
        if found and not self.depths and len(found) < len(fits):
            notes.append(f"--depths {max(found)} judges a cache that holds no longer prompt")
        verdict.reason = "; ".join(filter(None, (verdict.reason, *notes)))
        yield verdict
        return max([each for each in found if self._seconds(each) <= _TIMED] or [shallow])

    def _seconds(self, depth: int) -> float:
        """Return how long a prompt of this depth took that was computed."""
        length = words(self.asker, depth)
        times = [s.answer.seconds for s in self.asker.seen if s.question.unshared == length]
        return min(times, default=0.0)

    def _salts(self, judge: ParityChecker) -> Verdict:
        if not self.facts.salts:
            return Verdict(about.SALTS, "unsupported", self.facts.missing["salts"])
        return judge.judge(
            Check(about.SALTS, salted, self._lengths()[3:6], ("found under its own salt",))
        )

    def _lengths(self) -> tuple[int, ...]:
        unit = self.sizes.unit
        first = -(-2 * HEAD // unit) * unit
        found = [first + unit * number + by for number in range(BORDERS) for by in (-1, 0, 1)]
        fitting = [each for each in found if self._fits(3 * each + 64)]
        return tuple(fitting or found[:1])

    def _fits(self, words: int) -> bool:
        return not self.facts.longest or words <= self.facts.longest

    def _checks(self) -> list[Check]:
        lengths = self._lengths()
        few = lengths[-3:]
        return [
            Check(about.AGAIN, again, tuple(dict.fromkeys(lengths[:3] + few)), (FOUND,)),
            Check(about.PARTLY, partly, lengths, (INSIDE,)),
            Check(about.CONVERSATION, conversation, few, ("earlier turn found",)),
            Check(about.IMAGES, images, few[:2], ("image found again",)),
            Check(about.CANCELS, cancelled, few, (
                "request cancelled while running", "found after a cancelled request",
            )),
            Check(
                about.DUPLICATES, duplicates, few, (FOUND, "equal prompts at once"),
                controls_at_once,
            ),
            Check(
                about.NEIGHBOURS, neighbours, few, ("found while others run",), controls_at_once
            ),
            Check(
                about.CROWDS, company.in_company, few[-1:],
                company.required(few[-1], self.facts.longest), company.controls_in_crowd,
                pooled=False,
            ),
            Check(about.PAUSES, company.paused, company.PAUSES, tuple(
                map(company.after, company.PAUSES)
            )),
        ]  # fmt: skip

    def _lacking(self, of: Property, context: TrialContext) -> tuple[Outcome, str] | None:
        if of in (about.PARTLY, about.CONVERSATION) and not context.anew:
            return "unsupported", f"{self._no_way_anew(context)}; use --against with another server"
        if of is about.IMAGES and (why := self._no_images()):
            return "unsupported", why
        if why := self._too_dear(of):
            return "unsupported", why
        return None

    def _too_dear(self, of: Property) -> str:
        """Return why a budget does not allow what takes many requests, or time."""
        budget, pauses = self.line.budget, sum(company.PAUSES)
        if of is about.CROWDS and budget.requests - budget.used < 2 * company.REQUESTS:
            return f"a crowd may take {company.REQUESTS} of --max-requests {budget.requests:,}"
        if of is about.PAUSES and pauses > _PAUSES * budget.seconds:
            return f"pauses of {pauses} s take too much of --max-time {budget.seconds:g} s"
        return ""

    def _no_way_anew(self, context: TrialContext) -> str:
        if context.salts:
            why = "answers depend on cache_salt"
        elif self.facts.salts:
            why = "cache_salt was not seen to keep prompts apart"
        else:
            why = "there is no cache_salt"
        return f"{why}, so that a prompt with a known beginning is never computed without the cache"

    def _no_images(self) -> str:
        """Return why images cannot be sent; empty if they can."""
        words = fresh(HEAD)
        try:
            bare = self.asker.ask(Question((Turn(words),), form="chat"))
            seen = self.asker.ask(Question((Turn(words, image=new_image()),), form="chat"))
        except NoAnswer as trouble:
            return f"the server takes no image: {trouble}"
        if seen.prompt <= bare.prompt + 1:
            return "an image adds no tokens to a prompt: the model does not see it"
        return ""

    def _answered(self) -> Verdict:
        log = self.line.log
        ended = Counter(sent.trouble.trouble for sent in log if sent.trouble)
        situations = Counter({"request answered": len(log) - ended.total()})
        bad = [s for s in log if s.trouble and s.trouble.trouble in ("failed", "malformed")]
        if not bad and ended["dropped"] >= _LOST:
            bad = [s for s in log if s.trouble and s.trouble.trouble == "dropped"]
        if bad:
            why = f"{len(bad)} of {len(log)} requests: {bad[0].trouble}"
            return Verdict(
                about.ANSWERED, "fail", why, checks=len(log), situations=situations, history=bad[:1]
            )
        del ended["refused"]
        outcome: Outcome = "inconclusive" if ended.total() else "pass"
        reported = ", ".join(f"{count} {name}" for name, count in ended.items())
        return Verdict(about.ANSWERED, outcome, reported, checks=len(log), situations=situations)
