"""Teacher forcing through an interface that only generates.

Every answer is compared with one recomputed answer. A greedy answer with the same tokens *is*
forced along it: each distribution follows the same tokens. Where it takes another token, that
place still counts; then a new request continues after the recomputed tokens. So a prompt costs one
more request for each token that flips, not one for each token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from kvproof.eval.divergence.chats import Question
from kvproof.eval.divergence.distributions import Difference, difference
from kvproof.harness.http.completion_client import Reply

Ask = Callable[[Question, int], Reply]
"""Completes a prompt by so many tokens. Raises Unanswered."""

MOST_RESTARTS = 8
"""Requests after the first; beyond, the rest of an answer is not compared."""


class Unanswered(Exception):
    """A request has no answer; the text has the server's words."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.faults[-1])
        self.reply = reply


def answered(reply: Reply) -> Reply:
    """Return a reply with an answer. Raises Unanswered."""
    if reply.outcome != "answered":
        raise Unanswered(reply)
    return reply


class Forced(NamedTuple):
    """One answer along the recomputed one."""

    places: tuple[tuple[int, Difference], ...]
    """Place in the answer, from 0, and the difference there."""
    first: Reply
    requests: int
    flips: int
    """Places with another token."""
    left: int
    """Places that were not compared: too many flips, or a text that cannot be continued."""


def forced(ask: Ask, prompt: Question, expected: Reply) -> Forced:
    """Compare the answers of `ask` to `prompt` with the recomputed one, place by place."""
    path = _Path(ask, prompt, expected)
    while path.follow() and path.at < len(expected.tokens) and path.requests <= MOST_RESTARTS:
        pass
    left = len(expected.tokens) - len(path.places)
    return Forced(tuple(path.places), path.answers[0], path.requests, path.flips, left)


class _Path:
    def __init__(self, ask: Ask, prompt: Question, expected: Reply) -> None:
        self._ask, self._prompt, self._expected = ask, prompt, expected
        self.places: list[tuple[int, Difference]] = []
        self.answers: list[Reply] = []
        self.at = self.requests = self.flips = 0

    def follow(self) -> bool:
        """Compare up to the next flip; whether it can go on from there."""
        prompt = self._continued()
        if prompt is None:
            return False
        answer = self._ask(prompt, max(1, len(self._expected.tokens) - self.at))
        self.requests += 1
        self.answers.append(answer)
        if self.at and not self._continues(answer):
            return False
        self._compare(answer)
        return True

    def _compare(self, answer: Reply) -> None:
        for found in answer.tokens[: len(self._expected.tokens) - self.at]:
            right = self._expected.tokens[self.at]
            self.places.append((self.at, difference(right, found)))
            self.at += 1
            if found.token != right.token:
                self.flips += 1
                return
        self.at += 1  # it ended here, or is complete: an end has no distribution

    def _continued(self) -> Question | None:
        """Return the prompt with the recomputed tokens so far; None if they cannot be written."""
        if not self.at:
            return self._prompt
        if isinstance(self._prompt, tuple) and self._expected.ids:
            return self._prompt + self._expected.ids[: self.at]
        if isinstance(self._prompt, str):
            text = "".join(each.token for each in self._expected.tokens[: self.at])
            return self._prompt + text if self._expected.text.startswith(text) else None
        return None

    def _continues(self, answer: Reply) -> bool:
        """A text that is cut into other tokens is another prompt; ids stay as they are."""
        if isinstance(self._prompt, tuple):
            return True
        before, now = self.answers[0].usage.prompt_tokens, answer.usage.prompt_tokens
        return before is not None and now == before + self.at
