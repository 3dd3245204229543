"""Hits of all checks together, against answers computed again: finds an error in few hits.

A check of its own sees some twenty hits, so a fault in one hit of thirty changes one answer or
none. Here all hits count. If an answer after a hit has changed, new prompts are sent, each several
times from the cache and twice as often computed anew, alone and at once. If hits are like
recomputes, then one changed answer of a prompt, drawn at random, follows a hit as often as hits are
among its answers. The product of the likelihood ratios may stop at any time: it reaches 1 / ALPHA
with a probability of at most ALPHA (Ville's inequality).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random, SystemRandom
from typing import NamedTuple

from kvproof.harness.statistics import binomial_tail
from kvproof.suites.probe.answers import Answer, NoAnswer
from kvproof.suites.probe.asker import Question, new_salt
from kvproof.suites.probe.check import POOLED, Outcome, Verdict
from kvproof.suites.probe.compare import ALPHA, NEAR_TIES, Pair, difference
from kvproof.suites.probe.content import HEAD, Turn, fresh, other
from kvproof.suites.probe.counts import why_uncounted
from kvproof.suites.probe.depths import words
from kvproof.suites.probe.server_connection import BudgetExhausted, Sent
from kvproof.suites.probe.trials import TrialContext, TrialInvalid, controls

LEAST = 96
"""Hits that are compared: a fault in one of thirty shows in 96 of 100 probes."""
_HITS, _RECOMPUTES = 4, 8
"""Hits and recomputes of a prompt that is sent to decide."""
_MOST = 90
"""Most prompts that are sent to decide."""
_HIT_SHARE = 0.95
"""Changed answers that follow a hit, if hits are to blame."""
_GIVEN_UP = 0.01
_IN_VAIN = 40
"""Prompts without any changed answer, after which no more are sent."""
_FORKS = ("shared", "common", "half", "turn")
"""Words in labels of prompts of which the beginning was found."""
_KEPT = 40
"""Requests left for the checks that follow."""
_TEXTS = 100
"""Hits after which texts without log-probabilities decide, or nothing does."""
RANDOM: Random = SystemRandom()
"""Draws the order of requests, and the answer of a prompt that counts."""
SITUATIONS = ("answer after a hit compared", "answer computed again compared")


def _shuffled() -> list[tuple[bool, int]]:
    """Return (after a hit?, at once) of the answers to one prompt: drift and cycles favour none."""
    parts = [(hit, count) for hit, most in ((True, _HITS), (False, _RECOMPUTES))
             for count in (1,) * (most // 2) + (2,) * (most // 4)]  # fmt: skip
    RANDOM.shuffle(parts)
    return parts


class _Suspect(NamedTuple):
    """A kind of prompt whose answers changed after hits."""

    words: int
    forks: bool
    """Only the beginning of the prompt is found."""


class Decided(NamedTuple):
    """State of the decision."""

    evidence: float = 1.0
    hits: int = 0
    hits_changed: int = 0
    recomputes: int = 0
    recomputes_changed: int = 0

    def with_prompt(
        self,
        hits: Sequence[bool],
        recomputes: Sequence[bool],
        draw: Callable[[int], int] | None = None,
    ) -> Decided:
        """Add the answers of one prompt: whether each has changed; `draw` one of them."""
        found = self._replace(
            hits=self.hits + len(hits),
            hits_changed=self.hits_changed + sum(hits),
            recomputes=self.recomputes + len(recomputes),
            recomputes_changed=self.recomputes_changed + sum(recomputes),
        )
        count = sum(hits) + sum(recomputes)
        if not count or not hits or not recomputes:
            return found
        share = len(hits) / (len(hits) + len(recomputes))
        hit = (draw or RANDOM.randrange)(count) < sum(hits)
        ratio = _HIT_SHARE / share if hit else (1 - _HIT_SHARE) / (1 - share)
        return found._replace(evidence=self.evidence * ratio)


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
        self._decided = Decided()
        self._shown: tuple[Pair, Sequence[Sent]] | None = None
        self._void = ""

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
            return self._judged("inconclusive", f"there was no hit; {self._void}".rstrip("; "))
        if not any(pair.plain.text or pair.plain.tokens for pair in self._pairs):
            return self._judged("inconclusive", "all answers are empty")
        if not self._changed:
            most = 1 - 0.05 ** (1 / len(self._pairs))
            return self._judged(
                "pass", f"{self._seen}: at most {most:.1%} of hits are wrong (95 %)"
            )
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

    def _new(self, length: int) -> Question:
        return Question((Turn(fresh(length)),), self._context.salt(), unshared=length)

    def _repeat(self) -> None:
        """Send one prompt, and again some times."""
        question, asker = self._new(self._length), self._context.asker
        try:
            plain = asker.ask(question)
            for _ in range(_HITS):
                answer = asker.ask(question._replace(unshared=None, again=True))
                if asker.found(answer):
                    self._pairs.append(Pair("sent again", plain, answer))
        except NoAnswer as why:
            self._void = str(why)

    # --- the decision ---

    def _decide(self) -> Verdict:
        suspects = self._suspected()
        failed, budget = 0, self._context.asker.line.budget
        for number in range(_MOST):
            if not number % 10:
                self._progress(f"which answers change, prompt {number + 1}")
            if number == _IN_VAIN and self._decided.evidence == 1:
                break
            try:
                self._one_prompt(suspects[number % len(suspects)])
            except (NoAnswer, TrialInvalid) as why:
                self._void, failed = str(why), failed + 1
            except BudgetExhausted as why:
                return self._undecided(str(why))
            if self._decided.evidence >= 1 / ALPHA and self._no_near_ties:
                return self._failed()
            if self._decided.evidence >= 1 / ALPHA and self._decided.hits >= _TEXTS:
                return self._undecided("without log-probabilities these may be near ties")
            if budget.requests - budget.used < _KEPT:
                return self._undecided(f"more takes more than {budget.requests} --max-requests")
            if self._decided.evidence < _GIVEN_UP or failed > _HITS:
                break
        return self._undecided(self._void)

    def _suspected(self) -> list[_Suspect]:
        """Return the common facts of the changed answers: a fault may need a length, or a fork."""
        asker = self._context.asker
        return sorted({
            _Suspect(
                words(asker, pair.plain.prompt) if pair.plain.prompt else self._length,
                self._context.anew and any(word in pair.label for word in _FORKS),
            )
            for pair in self._changed
        })  # fmt: skip

    def _one_prompt(self, suspect: _Suspect) -> None:
        if suspect.forks:
            self._one_fork(suspect.words)
        else:
            self._one_repeated(suspect.words)

    def _one_fork(self, length: int) -> None:
        """Send a prompt that shares all but its end with one before; once, for then it is known."""
        asker, begun = self._context.asker, len(self._context.asker.line.log)
        base = fresh(max(HEAD, length))
        first = Question((Turn(base),), self._context.salt(), unshared=len(base))
        asker.ask(first)
        end = other(base[-4])
        question = first._replace(turns=(Turn(base[:-4] + end),), unshared=len(end))
        turns = [asker.ask, *[self._context.plain] * 3]
        RANDOM.shuffle(turns)
        answers = [(ask == asker.ask, ask(question)) for ask in turns]
        reused = next(answer for hit, answer in answers if hit)
        if not asker.found(reused):
            raise TrialInvalid("the beginning of a prompt was not found")
        plain, *anew = [answer for hit, answer in answers if not hit]
        again = [self._differs(plain, each) for each in anew]
        self._decided = self._decided.with_prompt([self._differs(plain, reused, begun)], again)

    def _one_repeated(self, length: int) -> None:
        """Send a prompt, then its comparisons in random order, a part two at once."""
        asker = self._context.asker
        question, begun = self._new(length), len(asker.line.log)
        plain, again = asker.ask(question), question._replace(unshared=None, again=True)
        changed: dict[bool, list[bool]] = {True: [], False: []}
        for hit, count in _shuffled():
            if hit:
                found = self._found(again, count)
                changed[True] += [self._differs(plain, each, begun) for each in found]
            else:
                changed[False] += self._recomputed(question, plain, count)
        self._decided = self._decided.with_prompt(changed[True], changed[False])

    def _found(self, again: Question, count: int) -> list[Answer]:
        asker = self._context.asker
        answers = [asker.ask(again)] if count == 1 else asker.together([again] * count)
        reported = asker.reports_cached or count == 1
        return [each for each in answers if not reported or asker.found(each)]

    def _recomputed(self, question: Question, plain: Answer, count: int) -> list[bool]:
        """Compute a prompt again; where that is impossible, compute others twice."""
        if self._context.anew:
            alone = count == 1
            anew = [self._context.plain(question)] if alone else self._at_once(question, count)
            return [self._differs(plain, each) for each in anew]
        length = max(1, (self._context.sizes.smallest or question.words) - 1)
        pairs = [pair for _ in range(count) for pair in controls(self._context, length).pairs]
        return [bool(difference(pair, allowed=self._allowed)) for pair in pairs]

    def _at_once(self, question: Question, count: int) -> list[Answer]:
        if self._context.reference is not None:
            return self._context.reference.together([question._replace(again=False)] * count)
        asked = [question._replace(salt=new_salt(), unshared=None) for _ in range(count)]
        return self._context.asker.together(asked)

    def _differs(self, plain: Answer, answer: Answer, begun: int | None = None) -> bool:
        pair = Pair("sent again", plain, answer)
        differs = bool(difference(pair, allowed=self._allowed))
        if differs and begun is not None and self._shown is None:
            log = self._context.asker.line.log
            requests = [each for each in log[begun:] if each.answer in (plain, answer)]
            self._shown = pair, requests
        return differs

    @property
    def _no_near_ties(self) -> bool:
        """Return whether near ties, too, are excluded where there are no log-probabilities."""
        if self._pairs[0].plain.tokens:
            return True
        found = self._decided
        return binomial_tail(found.hits_changed, found.hits, NEAR_TIES) <= ALPHA

    @property
    def _counts(self) -> str:
        found = self._decided
        return (
            f"of new prompts {found.hits_changed} of {found.hits} answers after hits changed, and "
            f"{found.recomputes_changed} of {found.recomputes} computed again"
        )

    def _undecided(self, why: str) -> Verdict:
        reason = f"{self._seen}; {self._counts}: that is not enough to decide"
        return self._judged("inconclusive", f"{reason}; {why}" if why else reason)

    def _failed(self) -> Verdict:
        assert self._shown is not None, "evidence comes from changed answers"
        pair, history = self._shown
        what = difference(pair, allowed=self._allowed)
        reason = f"{what}; {self._counts}; by chance at most once in {1 / ALPHA:,.0f} probes"
        found = self._judged("fail", reason)
        found.history, found.shows = history, pair.reused
        found.detail = f"computed: {pair.plain.summary}\nreused:   {pair.reused.summary}"
        return found

    def _judged(self, outcome: Outcome, reason: str) -> Verdict:
        hits = len(self._pairs) + self._decided.hits
        again = len(self._controls) + self._decided.recomputes
        situations = Counter(dict(zip(SITUATIONS, (hits, again), strict=True)))
        return Verdict(POOLED, outcome, reason, checks=hits, situations=situations)
