"""Sources of a history's choices: Hypothesis, which shrinks, or a seed, which is fast.

Each has the traits of the engine, which limit the choices.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

from kvproof.harness.contract.whole_engine_traits import WholeEngineTraits
from kvproof.suites.framework.component_suite import Draw

T = TypeVar("T")


class Choices(Protocol):
    """The source of choices for `histories` and `operations`."""

    traits: WholeEngineTraits

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options."""

    def number(self, low: int, high: int) -> int:
        """Return a number, both ends included."""


class Drawn:
    """Choices of Hypothesis."""

    def __init__(self, draw: Draw, traits: WholeEngineTraits) -> None:
        self.traits = traits
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        """See Choices."""
        option: T = self._draw(st.sampled_from(options))
        return option

    def number(self, low: int, high: int) -> int:
        number: int = self._draw(st.integers(low, high))
        return number


class Seeded:
    def __init__(self, seed: int, traits: WholeEngineTraits) -> None:
        self.traits = traits
        self._random = random.Random(seed)  # noqa: S311 - reproducible, not secret

    def pick(self, options: Sequence[T]) -> T:
        """See Choices."""
        return self._random.choice(options)

    def number(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


def one_of(choices: Choices, options: Sequence[T]) -> T:
    """Pick an option of those that an engine has; a single one needs no choice."""
    return options[0] if len(options) == 1 else choices.pick(options)
