"""Estimate the block size and the smallest prefix that is ever found, from cached counts alone."""

from __future__ import annotations

import math
from typing import NamedTuple

from kvproof.suites.probe.asker import Asker, Question, new_salt
from kvproof.suites.probe.content import Turn, Words, fresh, other

LENGTHS = (50, 165, 525, 1610, 5010)
"""Words of the prompts that are asked twice, until the second is found; no multiples of blocks."""
BORDERS = 3
"""Blocks on whose borders the ladder stands."""


class Rung(NamedTuple):
    """A prompt that shares its first `shared` words with one that was asked before."""

    shared: int
    cached: int


class Fall(NamedTuple):
    """A prefix that found less than a shorter one of the same prompt, before and after it."""

    low: Rung
    high: Rung
    place: int
    """Of the longer one, in what was asked."""


class Sizes(NamedTuple):
    """What was found; words are tokens if prompts are token ids."""

    found: bool = False
    """A prompt that was asked before was ever found."""
    smallest: int = 0
    """Fewest shared words that were ever found; 0: unknown."""
    step: int = 0
    """Words between two lengths at which more is found; 0: unknown."""
    block: int = 0
    """Greatest common divisor of all counts, in tokens; 0: unknown."""
    ladder: tuple[Rung, ...] = ()
    fell: Fall | None = None
    limit: int = 0
    """Words of the longest prompts that were tried."""

    @property
    def falls(self) -> tuple[Rung, Rung] | None:
        """Two neighbours of the ladder of which the longer one found less."""
        pairs = zip(self.ladder, self.ladder[1:], strict=False)
        return next(((low, high) for low, high in pairs if high.cached < low.cached), None)

    @property
    def unit(self) -> int:
        """Words that fill a block, as far as is known."""
        return self.step or self.smallest or 16

    @property
    def sentence(self) -> str:
        """Return one line for people."""
        if not self.found:
            return f"nothing was ever found, in prompts of up to {self.limit} words"
        step = f"more every {self.step} words" if self.step else "no second step"
        return (
            f"found from {self.smallest} shared words on, {step}; "
            f"all counts are multiples of {self.block} tokens"
        )


def estimate(asker: Asker) -> Sizes:
    """Search. Raises NoAnswer, Spent, Gone; needs counts."""
    climber, sizes = _Climber(asker), Sizes()
    for length in LENGTHS:
        if asker.facts.longest and length + 32 > asker.facts.longest:
            break
        found = climber.begin(length)
        sizes = climber.sizes() if found else sizes._replace(limit=length)
        if sizes.step and sizes.smallest + BORDERS * sizes.step < length:
            break
    sizes = climber.climbed(sizes) if sizes.step else sizes
    return sizes._replace(fell=climber.fell(*sizes.falls)) if sizes.falls else sizes


class _Climber:
    """Asks for prefixes of one prompt."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._base: Words = ()
        self._salt = ""
        self._hits: dict[int, int] = {}
        self.length = 0

    def begin(self, length: int) -> bool:
        """Ask a prompt twice; tell whether the second was found."""
        self._base, self._hits, self.length = fresh(length), {}, length
        self._salt = new_salt() if self._asker.facts.salts else ""
        asked = Question((Turn(self._base),), self._salt, unshared=length)
        self._asker.ask(asked)
        again = self._asker.ask(asked._replace(unshared=None, again=True))
        return self._asker.found(again)

    def hit(self, shared: int) -> int:
        """Return the tokens found of a prompt that shares so many words with the first."""
        if shared not in self._hits:
            self._hits[shared] = self._found(shared)
        return self._hits[shared]

    def _found(self, shared: int, *, again: bool = False) -> int:
        tail = other(self._base[shared])
        unshared = None if again else len(tail)  # the second one may be as the first
        question = Question((Turn(self._base[:shared] + tail),), self._salt, unshared=unshared)
        return self._asker.ask(question).cached or 0

    def first_above(self, least: int, low: int) -> int:
        """Return the fewest shared words above `low` that find more than `least`; 0: none."""
        high = self.length - 1
        if self.hit(high) <= least:
            return 0
        while high - low > 1:
            middle = (low + high) // 2
            if self.hit(middle) > least:
                high = middle
            else:
                low = middle
        return high

    def sizes(self) -> Sizes:
        """Find the first two steps."""
        floor = self.hit(0)
        first = self.first_above(floor, 0)
        second = self.first_above(self.hit(first), first) if first else 0
        return self._told(first, second - first if second else 0)

    def _told(self, first: int, step: int) -> Sizes:
        counts = [each for each in self._hits.values() if each]
        ladder = tuple(Rung(*each) for each in sorted(self._hits.items()))
        return Sizes(
            found=True,
            smallest=first,
            step=step,
            block=math.gcd(*counts),
            ladder=ladder,
            limit=self.length,
        )

    def climbed(self, sizes: Sizes) -> Sizes:
        """Ask just below, at and just above some borders."""
        for border in range(1, BORDERS + 1):
            for shared in (-1, 0, 1):
                place = sizes.smallest + (border - 1) * sizes.step + shared
                if 0 < place < self.length:
                    self.hit(place)
        return self._told(sizes.smallest, sizes.step)

    def fell(self, low: Rung, high: Rung) -> Fall | None:
        """Ask for a shorter, the longer and the shorter prefix of another prompt.

        Nothing but a lost hit explains that the longer one finds less than both others.
        """
        self.begin(self.length)
        before, above = self.hit(low.shared), self.hit(high.shared)
        place = len(self._asker.seen) - 1
        after = self._found(low.shared, again=True)
        if above >= min(before, after):
            return None
        return Fall(Rung(low.shared, before), Rung(high.shared, above), place)
