"""Output of the symbolic model from the tokens alone: no block, no table, no step.

Written from the definition: position p of a layer sees every earlier position that its kind of
group sees, a state folds one position after the other, a draft layer builds on the last one. An
entry of several tokens is there from the last of them on, and has their inputs in it (Q1). The
hashes are the model's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvproof.reference.core.attention_groups import GroupConfig
from kvproof.reference.core.identity import Namespace, Span
from kvproof.reference.model.symbolic import embed, expert_rows, guesses, next_token
from kvproof.reference.model.symbolic_layers import digest, mix


class Direct:
    """One request under one version of the weights; it takes one token after the other."""

    def __init__(
        self,
        groups: Sequence[GroupConfig],
        namespace: Namespace,
        spans: Sequence[Span],
        weights: int,
    ) -> None:
        self._groups = groups
        self._root = digest(*namespace, weights)
        self._spans = spans
        self._tokens: list[int] = []
        self._inputs: list[int] = []
        self._hidden: list[int] = []
        self._entries: list[list[int]] = [[] for _ in groups]
        self._state = [0] * sum(g.state_blocks for g in groups if g.kind == "state")
        self._drafted: list[list[int]] = [[] for _ in groups]
        self._followed = self._last_seen = 0

    def _extend(self, tokens: Sequence[int]) -> None:
        assert list(tokens[: len(self._tokens)]) == self._tokens, "history has changed"
        for token in tokens[len(self._tokens) :]:
            self._tokens.append(token)
            self._hidden.append(self._position(len(self._tokens) - 1))

    def _position(self, position: int) -> int:
        hidden = embed(self._root, self._tokens[position], position)
        for span in self._spans:
            offset = position - span.start
            if 0 <= offset < span.length:
                hidden = mix(hidden, mix(digest(span.kind, span.content), offset))
        self._inputs.append(hidden)
        folded = False
        for group, entries in zip(self._groups, self._entries, strict=True):
            if group.kind == "state":
                hidden, folded = (hidden if folded else self._fold(hidden)), True
            elif not group.draft:
                hidden = attend(group, entries, hidden, self._inputs[: position + 1])
        return hidden

    def _fold(self, hidden: int) -> int:
        self._state = [mix(word + index, hidden) for index, word in enumerate(self._state)]
        return mix(hidden + sum(self._state), hidden)

    def token_after(self, tokens: Sequence[int], vocabulary: int) -> int:
        """Return the token that follows `tokens`."""
        self._extend(tokens)
        return next_token(self._hidden[len(tokens) - 1], vocabulary)

    def drafts_after(self, tokens: Sequence[int], count: int, vocabulary: int) -> tuple[int, ...]:
        self._extend(tokens[:-1])
        seen = self._last_seen
        for position in range(self._followed, len(tokens) - 1):
            seen = self._hidden[position]
            for group, entries in zip(self._groups, self._drafted, strict=True):
                if group.draft and group.kind != "state":
                    seen = attend(group, entries, seen, self._inputs[: position + 1])
        self._followed, self._last_seen = len(tokens) - 1, seen
        return guesses(mix(seen, tokens[-1]), count, vocabulary)

    def experts(self, tokens: Sequence[int], form: tuple[int, int, int]) -> list[Any]:
        """Return the expert rows of `tokens`."""
        self._extend(tokens)
        rows: list[Any] = expert_rows(self._hidden[: len(tokens)], form).tolist()
        return rows


def attend(group: GroupConfig, entries: list[int], hidden: int, inputs: Sequence[int]) -> int:
    """Compute the last position of `inputs`; its entry is appended if it is the last of one."""
    here, ratio = len(inputs) - 1, group.ratio
    seen = sum(
        entry * (2 * there + 1)
        for there, entry in enumerate(entries)
        if sees(group, here, (there + 1) * ratio - 1)
    )
    entry = mix(hidden, seen)
    if len(inputs) % ratio:
        return mix(entry, seen)
    for word in inputs[len(inputs) - ratio : here]:
        entry = mix(entry, word)
    seen += entry * (2 * len(entries) + 1)
    entries.append(entry)
    return mix(entry, seen)


def sees(group: GroupConfig, here: int, there: int) -> bool:
    """Whether computing position `here` reads the entry that ends with position `there`."""
    if group.kind == "window":
        return here - there < group.size
    if group.kind == "chunk":
        return here // group.size <= there // group.size
    return True
