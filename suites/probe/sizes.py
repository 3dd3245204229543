"""Estimates the block size and the smallest reusable prefix from cached counts alone."""

from __future__ import annotations

import math
from typing import NamedTuple

from kvproof.suites.probe.asker import Asker, Question, new_salt
from kvproof.suites.probe.content import Turn, Words, fresh, other

LENGTHS = (50, 165, 525, 1610, 5010)
"""Words of the prompts that are sent twice, until a hit; no multiples of block sizes."""
BORDERS = 3
"""Number of block borders on the ladder."""


class Rung(NamedTuple):
    """A prompt that shares its first `shared` words with an earlier one."""

    shared: int
    cached: int


class Fall(NamedTuple):
    """A prefix with a smaller hit than a shorter one of the same prompt, before and after it."""

    low: Rung
    high: Rung
    place: int
    """Index of the longer one in the log."""


class Sizes(NamedTuple):
    """Estimated sizes; words are tokens if prompts are token ids."""

    found: bool = False
    """Some repeated prompt had a hit."""
    smallest: int = 0
    """Fewest shared words with a hit; 0: unknown."""
    step: int = 0
    """Words between two lengths at which the hit grows; 0: unknown."""
    block: int = 0
    """Greatest common divisor of all counts, in tokens; 0: unknown."""
    ladder: tuple[Rung, ...] = ()
    fell: Fall | None = None
    limit: int = 0
    """Words of the longest prompts that were sent."""

    @property
    def falls(self) -> tuple[Rung, Rung] | None:
        """Neighbours on the ladder of which the longer one has the smaller hit."""
        pairs = zip(self.ladder, self.ladder[1:], strict=False)
        return next(((low, high) for low, high in pairs if high.cached < low.cached), None)

    @property
    def unit(self) -> int:
        """Words per block, as far as known."""
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
    """Search. Raises NoAnswer, BudgetExhausted, ServerUnreachable; needs counts."""
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
    """Sends prefixes of one prompt."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self._base: Words = ()
        self._salt = ""
        self._hits: dict[int, int] = {}
        self.length = 0

    def begin(self, length: int) -> bool:
        """Send a prompt twice; returns whether the second one had a hit."""
        self._base, self._hits, self.length = fresh(length), {}, length
        self._salt = new_salt() if self._asker.facts.salts else ""
        asked = Question((Turn(self._base),), self._salt, unshared=length)
        self._asker.ask(asked)
        again = self._asker.ask(asked._replace(unshared=None, again=True))
        return self._asker.found(again)

    def hit(self, shared: int) -> int:
        """Return the hit in tokens of a prompt that shares this many words with the first."""
        if shared not in self._hits:
            self._hits[shared] = self._found(shared)
        return self._hits[shared]

    def _found(self, shared: int, *, again: bool = False) -> int:
        tail = other(self._base[shared])
        unshared = None if again else len(tail)  # the second one may be as the first
        question = Question((Turn(self._base[:shared] + tail),), self._salt, unshared=unshared)
        return self._asker.ask(question).cached or 0

    def first_above(self, least: int, low: int) -> int:
        """Return the fewest shared words above `low` with a hit above `least`; 0: none."""
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
        return self._describe(first, second - first if second else 0)

    def _describe(self, first: int, step: int) -> Sizes:
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
        """Send prompts just below, at and just above some borders."""
        for border in range(1, BORDERS + 1):
            for shared in (-1, 0, 1):
                place = sizes.smallest + (border - 1) * sizes.step + shared
                if 0 < place < self.length:
                    self.hit(place)
        return self._describe(sizes.smallest, sizes.step)

    def fell(self, low: Rung, high: Rung) -> Fall | None:
        """Send a shorter, the longer and again the shorter prefix of another prompt.

        Only a lost hit explains a smaller hit of the longer prefix than of both others.
        """
        self.begin(self.length)
        before, above = self.hit(low.shared), self.hit(high.shared)
        place = len(self._asker.seen) - 1
        after = self._found(low.shared, again=True)
        if above >= min(before, after):
            return None
        return Fall(Rung(low.shared, before), Rung(high.shared, above), place)
