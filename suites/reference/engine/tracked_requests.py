"""What the machine knows of one request: what was asked, what happened, what it must say."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.suites.reference.engine.expected_tokens import Direct


class Prompt(NamedTuple):
    """What a client asked for."""

    tokens: tuple[int, ...]
    new: int
    namespace: Any
    spans: tuple[Any, ...]
    read: bool
    store: bool


class Asked:
    """One request as the machine sees it."""

    def __init__(self, prompt: Prompt, allowance: int) -> None:
        self.prompt = prompt
        self.answer: tuple[int, ...] = ()
        self.weights = 0
        """Of the admission under way."""
        self.epochs: set[int] = set()
        """All versions of the weights that it was computed with."""
        self.admissions = self.hit = 0
        """How often it was admitted, and what it hit the last time."""
        self.was_reset = False
        """Whether the cache was reset since its admission: the rows of its hit are gone."""
        self.allowance = allowance
        """Steps that it may take from now on."""
        self.done = False
        self.happened: set[str] = set()
        """Properties whose reach it has come into."""
        self._oracles: dict[int, Direct] = {}

    @property
    def most_tokens(self) -> int:
        """Tokens of prompt and whole answer."""
        return len(self.prompt.tokens) + self.prompt.new

    def oracle(self, groups: tuple[GroupConfig, ...]) -> Direct:
        """Return the direct computation under the present weights."""
        if self.weights not in self._oracles:
            self._oracles[self.weights] = Direct(
                groups, self.prompt.namespace, self.prompt.spans, self.weights
            )
        return self._oracles[self.weights]

    def first_wrong(
        self, answer: tuple[int, ...], groups: tuple[GroupConfig, ...], vocabulary: int
    ) -> int | None:
        """Return the first new token that the direct computation does not say, by its index."""
        oracle, known = self.oracle(groups), (*self.prompt.tokens, *answer)
        first = len(self.prompt.tokens)
        for index in range(first + len(self.answer), len(known)):
            if oracle.token_after(known[:index], vocabulary) != known[index]:
                return index - first
        return None
