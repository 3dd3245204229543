"""Runs trials, and separates changed answers from an engine's own noise."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvproof.harness.statistics import binomial_tail, fisher
from kvproof.suites.framework.property import Property
from kvproof.suites.probe.answers import NoAnswer
from kvproof.suites.probe.check import STEADY, Outcome, Verdict
from kvproof.suites.probe.compare import ALPHA, NEAR_TIES, Pair, difference, spread
from kvproof.suites.probe.content import HEAD
from kvproof.suites.probe.counts import why_uncounted
from kvproof.suites.probe.server_connection import Sent
from kvproof.suites.probe.trials import (
    Run,
    Trial,
    TrialContext,
    TrialInvalid,
    controls,
)

CONTROLS = 16
"""Prompts that are computed twice at the start."""
_MOST_CONTROLS, _MOST_AT_ONCE = 96, 24
"""Prompts that are computed twice at most, alone; and together with others."""
_STEP = 8
"""Those together with others that are computed between two looks."""
_NEUTRAL = 4
"""Prompts that are sent under two salts."""
_CONFIRMED = 8
"""New answers of one kind after a changed one, at least; of two trials or more."""
_LONG, _FEW = 4_000, 4
"""Tokens of a prompt from which fewer trials confirm: 4 of 4, against none of 16, are enough."""


class Check(NamedTuple):
    """Trials of one kind."""

    about: Property
    run: Run
    cases: tuple[int, ...]
    required: tuple[str, ...]
    """Required situations."""
    beside: Run | None = None
    """Computes prompts alone and in the company that those of the check have; None: they have none.
    """
    pooled: bool = True
    """Its answers count among the hits of all checks."""


@dataclass(eq=False)
class _Done:
    pairs: list[Pair] = field(default_factory=list)
    situations: Counter[str] = field(default_factory=Counter)
    made: int = 0
    void: list[str] = field(default_factory=list)
    history: Sequence[Sent] = ()
    """Requests of the last trial."""


class ParityChecker:
    """Runs checks one after the other; measures the noise first, and again where it matters.

    `tolerance`: allowed difference in log-probability.
    """

    def __init__(
        self, context: TrialContext, *, tolerance: float, progress: Callable[[str], None]
    ) -> None:
        self.context, self._progress = context, progress
        self._tolerance = tolerance
        self._controls, self._beside = _Done(), dict[Run, _Done]()
        self.hits: list[Pair] = []
        """Answers after hits, of all checks that have not failed by themselves."""

    @property
    def control_pairs(self) -> Sequence[Pair]:
        """Prompts that were computed twice."""
        return self._controls.pairs

    @property
    def allowed(self) -> float:
        """Allowed difference in log-probability: three times the measured noise."""
        return max(self._tolerance, min(1.0, 3 * spread(self._controls.pairs)))

    def _bad(self, noise: _Done) -> int:
        return sum(bool(difference(each, allowed=self._tolerance)) for each in noise.pairs)

    # --- the engine's own noise ---

    def steady(self) -> Verdict:
        """Measure the noise. Raises BudgetExhausted, ServerUnreachable."""
        self._progress("the engine's own noise")
        done = self._controls
        for number in range(CONTROLS):
            self._one(controls, self._length(number), done)
        why = self._unsteady(done)
        outcome: Outcome = "inconclusive" if why else "pass"
        if not why and done.pairs[0].plain.tokens:
            why = f"log-probabilities differ by up to {spread(done.pairs):.2g}"
        return Verdict(STEADY, outcome, why, checks=len(done.pairs), situations=done.situations)

    def _unsteady(self, done: _Done) -> str:
        if not done.pairs:
            return done.void[-1] if done.void else "nothing was computed twice"
        if _empty(done.pairs):
            return "all answers are empty"
        if not self._shown:
            return f"nothing shows that prompts were computed: {why_uncounted(self.context.asker)}"
        reported = [difference(each, allowed=self._tolerance) for each in done.pairs]
        bad = [each for each in reported if each]
        if not bad:
            return ""
        return f"{len(bad)} of {len(reported)} answers differ without the cache: {bad[0]}"

    @property
    def _shown(self) -> bool:
        return self.context.asker.reports_cached or self.context.asker.metered

    def _length(self, number: int) -> int:
        sizes = self.context.sizes
        if self.context.anew or not sizes.smallest:
            return max(2 * HEAD, 2 * sizes.unit) + number % 3
        return max(1, sizes.smallest - 1)

    def neutral(self, run: Run, length: int) -> bool:
        """Return whether answers under two salts are equal.

        Raises BudgetExhausted, ServerUnreachable.
        """
        done = _Done()
        for _ in range(_NEUTRAL):
            self._one(run, length, done)
        changed = [each for each in done.pairs if difference(each, allowed=self._tolerance)]
        return bool(done.pairs) and not changed

    # --- one check ---

    def judge(self, check: Check) -> Verdict:
        """Run a check's trials. Raises BudgetExhausted, ServerUnreachable."""
        self._progress(check.about.name.replace("_", " "))
        done, before = _Done(situations=Counter(dict.fromkeys(check.required, 0))), len(self.hits)
        verdict = self._judge(check, done)
        if verdict.outcome == "fail" or not check.pooled:
            del self.hits[before:]
        return verdict

    def _judge(self, check: Check, done: _Done) -> Verdict:
        for case in check.cases:
            trial = self._one(check.run, case, done)
            if trial is None:
                continue
            if trial.wrong:
                return self._verdict(check, done, "fail", trial.wrong)
            for pair in trial.pairs:
                if difference(pair, allowed=self.allowed):
                    alike = sum(each.label == pair.label for each in trial.pairs)
                    return self._confirmed(check, case, pair, done, max(1, alike))
        return self._unchanged(check, done)

    def _one(self, run: Run, case: int, done: _Done) -> Trial | None:
        """Run a trial; None if it is invalid. Raises BudgetExhausted, ServerUnreachable."""
        log = self.context.asker.line.log
        begun = len(log)
        try:
            trial = run(self.context, case)
        except (NoAnswer, TrialInvalid) as why:
            done.void.append(str(why))
            return None
        done.pairs += trial.pairs
        if done not in (self._controls, *self._beside.values()):
            self.hits += [each for each in trial.pairs if self.context.asker.found(each.reused)]
        done.made += trial.made + len(trial.pairs)
        done.situations.update(trial.situations)
        done.history = log[begun:]
        return trial

    def _unchanged(self, check: Check, done: _Done) -> Verdict:
        if done.pairs and _empty(done.pairs):
            return self._verdict(check, done, "inconclusive", "all answers are empty")
        if not self._shown:
            why = f"nothing shows whether prompts were found: {why_uncounted(self.context.asker)}"
            return self._verdict(check, done, "inconclusive", why)
        never = [name for name in check.required if not done.situations[name]]
        if not done.made:
            why = f"no trial came to an end: {done.void[-1] if done.void else 'none was made'}"
            return self._verdict(check, done, "inconclusive", why)
        if never:
            why = f"never occurred: {', '.join(never)}"
            return self._verdict(check, done, "inconclusive", why)
        reason = f"{len(done.void)} trials showed nothing: {done.void[-1]}" if done.void else ""
        return self._verdict(check, done, "pass", reason)

    def _confirmed(self, check: Check, case: int, first: Pair, done: _Done, alike: int) -> Verdict:
        """Repeat a trial with new prompts: the first one was selected for its difference.

        `alike`: pairs of one trial that are like the first one.
        """
        history, before = done.history, len(done.pairs)
        trials = _FEW if case >= _LONG else max(2, -(-_CONFIRMED // alike))
        for _ in range(trials):
            self._one(check.run, case, done)
        pairs = [each for each in done.pairs[before:] if each.label == first.label]
        changed = [each for each in pairs if difference(each, allowed=self.allowed)]
        reported = f"an answer changed ({first.label}): {difference(first, allowed=self.allowed)}"
        rate = f"{len(changed)} of {len(pairs)} answers with fresh prompts"
        beyond = self._beyond_noise(check, len(changed), len(pairs), first)
        noise = self._noise(self._twice(check))
        if not beyond:
            why = f"{reported}; but only {rate}, {noise}, changed like that"
            return self._verdict(check, done, "inconclusive", why)
        verdict = self._verdict(check, done, "fail", f"{reported}; so did {rate}, {noise}")
        verdict.history, verdict.shows = history, first.reused
        verdict.detail = f"computed: {first.plain.summary}\nreused:   {first.reused.summary}"
        return verdict

    def _twice(self, check: Check) -> _Done:
        """Prompts that were computed twice, as those of a check run."""
        return self._beside.setdefault(check.beside, _Done()) if check.beside else self._controls

    def _noise(self, noise: _Done) -> str:
        return f"and {self._bad(noise)} of {len(noise.pairs)} without the cache"

    def _beyond_noise(self, check: Check, changed: int, count: int, first: Pair) -> bool:
        """Return whether answers flip more often than without the cache; may send more prompts.

        The controls run as the prompts of the check did: alone, or together with others.
        """
        noise, run = self._twice(check), check.beside or controls
        most, step = (_MOST_AT_ONCE, _STEP) if check.beside else (_MOST_CONTROLS, CONTROLS)
        if not changed or fisher(changed, count, 0, most) > ALPHA:
            return False
        if not first.plain.tokens and binomial_tail(changed, count, NEAR_TIES) > ALPHA:
            return False
        while fisher(changed, count, self._bad(noise), len(noise.pairs)) > ALPHA:
            before = len(noise.pairs)
            if self._bad(noise) or before >= most:
                return False
            for number in range(step):
                if len(noise.pairs) < before + step:  # one trial may compute many
                    self._one(run, self._length(number), noise)
            if len(noise.pairs) == before:
                return False
        return True

    def _verdict(self, check: Check, done: _Done, outcome: Outcome, reason: str) -> Verdict:
        return Verdict(
            check.about,
            outcome,
            reason,
            checks=done.made,
            situations=done.situations,
            history=done.history if outcome == "fail" else (),
        )


def _empty(pairs: Sequence[Pair]) -> bool:
    return not any(each.plain.text or each.plain.tokens for each in pairs)
