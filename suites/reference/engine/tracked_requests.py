"""One request in the machine: its input, its history, its expected answer."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.suites.reference.engine.expected_tokens import Direct


class Prompt(NamedTuple):
    """The input of a client."""

    tokens: tuple[int, ...]
    new: int
    namespace: Any
    spans: tuple[Any, ...]
    read: bool
    store: bool


class TrackedRequest:
    def __init__(self, prompt: Prompt, allowance: int) -> None:
        self.prompt = prompt
        self.answer: tuple[int, ...] = ()
        self.weights = 0
        self.epochs: set[int] = set()
        """All versions of the weights that it was computed with."""
        self.admissions = self.hit = 0
        """Number of admissions, and the last hit."""
        self.unrecorded = 0
        """Tokens at its beginning whose expert rows may be missing: the last hit, or moved ones."""
        self.shared = 0
        """Tokens of the index among those it was moved in with: a reset takes their rows."""
        self.was_reset = False
        """Whether the cache was reset since its admission, so that the rows of its hit are gone."""
        self.allowance = allowance
        self.done = False
        self.happened: set[str] = set()
        """Properties whose situation it has met."""
        self._oracles: dict[int, Direct] = {}

    @property
    def most_tokens(self) -> int:
        return len(self.prompt.tokens) + self.prompt.new

    def oracle(self, groups: tuple[GroupConfig, ...]) -> Direct:
        if self.weights not in self._oracles:
            self._oracles[self.weights] = Direct(
                groups, self.prompt.namespace, self.prompt.spans, self.weights
            )
        return self._oracles[self.weights]

    def first_wrong(
        self, answer: tuple[int, ...], groups: tuple[GroupConfig, ...], vocabulary: int
    ) -> int | None:
        """Return the index of the first token that changed or is not the one directly computed."""
        changed = (at for at, old in enumerate(self.answer) if answer[at : at + 1] != (old,))
        if (first_changed := next(changed, None)) is not None:
            return first_changed
        oracle, known = self.oracle(groups), (*self.prompt.tokens, *answer)
        first = len(self.prompt.tokens)
        for index in range(first + len(self.answer), len(known)):
            if oracle.token_after(known[:index], vocabulary) != known[index]:
                return index - first
        return None
