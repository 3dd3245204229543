"""Evidence that answers after hits change more often than answers computed again.

If hits are like recomputes, then the answers to one prompt are exchangeable: a changed one follows
a hit as often as hits are among them. Each prompt multiplies the likelihood ratio of that and of a
fault; the product may be looked at after every prompt, and reaches 1 / ALPHA with a probability of
at most ALPHA (Ville's inequality). All answers to a prompt may change together, so that each prompt
counts once: with the mean of the ratios of its changed answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from kvproof.suites.probe.answers import Answer
from kvproof.suites.probe.compare import ALPHA, Pair, difference

_ODDS = (4.0, 16.0, 64.0)
"""How much likelier an answer changes after a hit, by faults that strike some recomputes too."""


class Answered(NamedTuple):
    """Answers to one prompt under equal conditions."""

    hits: Sequence[bool] = ()
    """Whether the answer changed, for each one after a hit."""
    recomputes: Sequence[bool] = ()

    @classmethod
    def of(
        cls,
        hits: Sequence[Answer],
        recomputes: Sequence[Answer],
        first: Sequence[Answer] = (),
        *,
        allowed: float,
    ) -> Answered:
        """Compare with the answer that agrees with most, whether after a hit or not.

        `first`: answers whose place in the order was not drawn; they are no evidence themselves.
        """
        usual = most_usual([*hits, *recomputes, *first], allowed=allowed)
        changed = [
            [bool(difference(Pair("", usual, each), allowed=allowed)) for each in answers]
            for answers in (hits, recomputes)
        ]
        return cls(*changed)

    def ratio(self, odds: float) -> float:
        """Return the likelihood ratio of a fault with these odds, the mean over changed answers."""
        hits, recomputes = len(self.hits), len(self.recomputes)
        changed, others = sum(self.hits), sum(self.recomputes)
        if not hits or not recomputes or not changed + others:
            return 1.0
        scale = (hits + recomputes) / (odds * hits + recomputes) / (changed + others)
        return scale * (changed * odds + others)


def most_usual(answers: Sequence[Answer], *, allowed: float) -> Answer:
    """Return the answer that differs from the fewest others; ties do not favour an origin."""

    def differing(one: Answer) -> tuple[int, str, str]:
        count = sum(bool(difference(Pair("", one, each), allowed=allowed)) for each in answers)
        return count, one.text, repr(one.tokens)

    return min(answers, key=differing)


class Evidence(NamedTuple):
    """Changed answers of the prompts so far, and the evidence of them."""

    products: tuple[float, ...] = (1.0,) * len(_ODDS)
    hits: int = 0
    hits_changed: int = 0
    recomputes: int = 0
    recomputes_changed: int = 0

    @property
    def value(self) -> float:
        """Factor by which a fault explains the answers better."""
        return fmean(self.products)

    @property
    def enough(self) -> bool:
        """Return whether chance is excluded but for one probe in 1 / ALPHA."""
        return self.value >= 1 / ALPHA

    def with_prompt(self, found: Answered) -> Evidence:
        """Add the answers to one prompt."""
        ratios = map(found.ratio, _ODDS)
        return Evidence(
            tuple(one * ratio for one, ratio in zip(self.products, ratios, strict=True)),
            self.hits + len(found.hits),
            self.hits_changed + sum(found.hits),
            self.recomputes + len(found.recomputes),
            self.recomputes_changed + sum(found.recomputes),
        )

    @property
    def sentence(self) -> str:
        """Return the counts for people."""
        return (
            f"{self.hits_changed} of {self.hits} answers after hits changed, and "
            f"{self.recomputes_changed} of {self.recomputes} computed again"
        )
