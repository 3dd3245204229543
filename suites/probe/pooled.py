"""Hits of all checks together, against answers computed again: finds an error in few hits.

A check of its own sees some twenty hits, so a fault in one hit of thirty changes one answer or
none. Here all hits count. If an answer after a hit has changed, rounds of new prompts of its kind
are sent (`rounds`) until the evidence of all, with that of the checks before, decides (`evidence`),
or the requests or the time are spent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from kvproof.harness.served.situations import SITUATIONS, unseen
from kvproof.harness.statistics import binomial_tail
from kvproof.suites.probe.answers import NoAnswer
from kvproof.suites.probe.asker import Question
from kvproof.suites.probe.check import POOLED, Outcome, Verdict
from kvproof.suites.probe.compare import ALPHA, NEAR_TIES, Pair, difference
from kvproof.suites.probe.content import Turn, fresh
from kvproof.suites.probe.counts import why_uncounted
from kvproof.suites.probe.depths import words
from kvproof.suites.probe.evidence import Answered, Evidence, most_usual
from kvproof.suites.probe.rounds import HITS, RECOMPUTES, Asked, Suspect, one_round
from kvproof.suites.probe.server_connection import BudgetExhausted, Sent
from kvproof.suites.probe.trials import TrialContext, TrialInvalid, controls

LEAST = 150
"""Hits that are compared: a fault in one of thirty shows in 99 of 100 probes."""
_GIVEN_UP = 0.01
_IN_VAIN = 160
"""Hits without any changed answer, after which no more are sent to decide."""
_KEPT = 40
"""Requests left for the checks that follow."""
_TIME = 0.9
"""Share of the time limit after which nothing more is sent to decide."""
_TEXTS = 100
"""Hits after which texts without log-probabilities decide, or nothing does."""
_FAILED = 24
"""Failures on the way, after which the decision is given up."""
_AT_A_TIME = 4
"""Prompts that take turns while more hits are collected."""
COMPARED = ("answer after a hit compared", "answer computed again compared")


_PROVEN = "proven"


class Pool:
    """Compares; `judged`: pairs of the checks before, each with a hit.

    Raises BudgetExhausted, ServerUnreachable.
    """

    def __init__(
        self,
        context: TrialContext,
        judged: Sequence[Pair],
        controls: Sequence[Pair],
        *,
        allowed: float,
        length: int,
        progress: Callable[[str], None],
    ) -> None:
        self._context, self._allowed, self._length = context, allowed, length
        self._pairs, self._controls = list(judged), controls
        self._progress = progress
        self._evidence = Evidence()
        self._shown: tuple[Pair, Sequence[Sent]] | None = None
        self._void: list[str] = []

    def verdict(self) -> Verdict:
        """Return the verdict; without a changed answer after some more hits."""
        self._progress("hits of all checks together")
        if not (self._context.asker.reports_cached or self._context.asker.metered):
            why = f"nothing shows hits: {why_uncounted(self._context.asker)}"
            return self._judged("inconclusive", why)
        while not self._changed and len(self._pairs) < LEAST:
            before = len(self._pairs)
            self._repeat()
            if len(self._pairs) == before:
                break
        if not self._pairs:
            why = "; ".join(["there was no hit", *self._void[-1:]])
            return self._judged("inconclusive", why)
        if not any(pair.plain.text or pair.plain.tokens for pair in self._pairs):
            return self._judged("inconclusive", "all answers are empty")
        if not self._changed:
            most = 1 - 0.05 ** (1 / len(self._pairs))
            bound = f"at most {most:.1%} of hits are wrong (95 %)"
            return self._judged("pass", f"{self._seen}: {bound}; {self._not_seen}")
        return self._decide()

    @property
    def _changed(self) -> list[Pair]:
        return [pair for pair in self._pairs if difference(pair, allowed=self._allowed)]

    @property
    def _seen(self) -> str:
        bad = sum(bool(difference(pair, allowed=self._allowed)) for pair in self._controls)
        return (
            f"{len(self._changed)} of {len(self._pairs)} answers after hits differ from the "
            f"computed ones, {bad} of {len(self._controls)} computed again"
        )

    @property
    def _not_seen(self) -> str:
        """Name the situations in which nothing was judged."""
        never = unseen(SITUATIONS, self._context.asker.situations)
        return f"not seen: {', '.join(never)}"

    def _new(self, length: int) -> Question:
        return Question((Turn(fresh(length)),), self._context.salt(), unshared=length)

    def _repeat(self) -> None:
        """Send some prompts, and in turns each again some times."""
        asker = self._context.asker
        questions = [self._new(self._length) for _ in range(_AT_A_TIME)]
        try:
            plain = [asker.ask(each) for each in questions]
            for _ in range(HITS):
                for question, computed in zip(questions, plain, strict=True):
                    answer = asker.ask(question._replace(unshared=None, again=True))
                    if asker.found(answer):
                        self._pairs.append(Pair("sent again", computed, answer))
        except NoAnswer as why:
            self._void.append(str(why))

    # --- the decision ---

    def _decide(self) -> Verdict:
        self._add_earlier()
        suspects = self._suspected()
        while not (why := self._ended()):
            self._report()
            try:
                asked = one_round(self._context, suspects, self._void.append)
                for each in asked:
                    self._add(each)
            except BudgetExhausted as stop:
                return self._undecided(str(stop))
        return self._failed() if why == _PROVEN else self._undecided(why)

    def _ended(self) -> str:
        """Return why no more prompts are sent; empty if more are."""
        found, budget = self._evidence, self._context.asker.line.budget
        if found.enough and self._shown and self._no_near_ties:
            return _PROVEN
        if found.enough and found.hits >= _TEXTS:
            return "without log-probabilities these may be near ties"
        if found.value < _GIVEN_UP:
            return "recomputes change like that"
        if found.hits >= _IN_VAIN and not found.hits_changed + found.recomputes_changed:
            return "none changed again"
        if len(self._void) > _FAILED:
            return self._void[-1]
        if budget.requests - budget.used < _KEPT:
            return f"more takes more than {budget.requests} --max-requests"
        late = budget.elapsed > _TIME * budget.seconds
        return f"more takes longer than --max-time {budget.seconds:g} s" if late else ""

    def _report(self) -> None:
        found, budget = self._evidence, self._context.asker.line.budget
        self._progress(
            f"which answers change: {found.sentence}; evidence {found.value:,.3g} of "
            f"{1 / ALPHA:,.0f}, after {budget.elapsed:.0f} of at most {budget.seconds:.0f} s"
        )

    def _add_earlier(self) -> None:
        """Add the prompts of the checks before that were also computed again."""
        by_prompt: dict[int, list[Pair]] = {}
        for pair in self._pairs:
            if pair.anew:
                by_prompt.setdefault(id(pair.anew), []).append(pair)
        for pairs in by_prompt.values():
            hits, anew = [each.reused for each in pairs], pairs[0].anew
            first = () if pairs[0].plain in anew else (pairs[0].plain,)
            answered = Answered.of(hits, anew, first, allowed=self._allowed)
            self._evidence = self._evidence.with_prompt(answered)

    def _suspected(self) -> list[Suspect]:
        """Return the common facts of the changed answers: a fault may need a length, or a fork."""
        asker = self._context.asker
        found = Counter(
            Suspect(
                pair.kind if self._context.anew else "repeated",
                words(asker, pair.plain.prompt) if pair.plain.prompt else self._length,
            )
            for pair in self._changed
        )
        return [suspect for suspect, _ in found.most_common()]

    def _add(self, asked: Asked) -> None:
        """Add the answers to a prompt; where it cannot be computed again, those to others."""
        hits, anew = asked.answers[True], asked.answers[False]
        if self._context.anew:
            answered = Answered.of(hits, anew, asked.first, allowed=self._allowed)
        else:
            answered = Answered(self._changed_hits(asked), self._others_recomputed())
        self._evidence = self._evidence.with_prompt(answered)
        usual = most_usual([*hits, *anew, *asked.first], allowed=self._allowed)
        for each in hits:
            self._show(asked, Pair("sent again", usual, each))

    def _changed_hits(self, asked: Asked) -> list[bool]:
        (plain,) = asked.first
        pairs = [Pair("", plain, each) for each in asked.answers[True]]
        return [bool(difference(each, allowed=self._allowed)) for each in pairs]

    def _others_recomputed(self) -> list[bool]:
        context, found = self._context, []
        length = max(1, (context.sizes.smallest or self._length) - 1)
        for _ in range(RECOMPUTES):
            try:
                found += controls(context, length).pairs
            except (NoAnswer, TrialInvalid) as why:
                self._void.append(str(why))
        return [bool(difference(pair, allowed=self._allowed)) for pair in found]

    def _show(self, asked: Asked, pair: Pair) -> None:
        """Keep the first changed answer, with its requests."""
        if self._shown is None and difference(pair, allowed=self._allowed):
            asker = self._context.asker
            seen = [s for s in asker.seen if s.answer is pair.plain or s.answer is pair.reused]
            requests = [*asked.known, *(asker.line.log[each.number] for each in seen)]
            self._shown = pair, list({each.number: each for each in requests}.values())

    @property
    def _no_near_ties(self) -> bool:
        """Return whether near ties, too, are excluded where there are no log-probabilities."""
        if self._pairs[0].plain.tokens:
            return True
        found = self._evidence
        return binomial_tail(found.hits_changed, found.hits, NEAR_TIES) <= ALPHA

    def _undecided(self, why: str) -> Verdict:
        counts = f"of new prompts {self._evidence.sentence}"
        reason = f"{self._seen}; {counts}: that is not enough to decide"
        return self._judged("inconclusive", f"{reason}; {why}" if why else reason)

    def _failed(self) -> Verdict:
        assert self._shown is not None, "evidence comes from changed answers"
        pair, history = self._shown
        what = difference(pair, allowed=self._allowed)
        reason = (
            f"{what}; of prompts that were also computed again {self._evidence.sentence}; "
            f"by chance at most once in {1 / ALPHA:,.0f} probes"
        )
        found = self._judged("fail", reason)
        found.history, found.shows = history, pair.reused
        found.detail = f"computed: {pair.plain.summary}\nreused:   {pair.reused.summary}"
        return found

    def _judged(self, outcome: Outcome, reason: str) -> Verdict:
        hits = len(self._pairs) + self._evidence.hits
        again = len(self._controls) + self._evidence.recomputes
        situations = Counter(dict(zip(COMPARED, (hits, again), strict=True)))
        for name, count in self._context.asker.situations.items():
            situations[SITUATIONS[name].phrase] = count
        return Verdict(POOLED, outcome, reason, checks=hits, situations=situations)
