"""Requests of a run: greedy, under a salt or none, each noted in the log of its server."""

from __future__ import annotations

import itertools
import secrets

from kvproof.eval.divergence.chats import Chat, Question, asked_of, content_of
from kvproof.eval.divergence.course import Key, Step
from kvproof.eval.divergence.forced import answered
from kvproof.eval.divergence.orders import posted
from kvproof.eval.divergence.servers import counters_of
from kvproof.eval.run.records import Abilities
from kvproof.harness.http.completion_client import CompletionClient, Prompt, Reply
from kvproof.harness.served.counters import occurred
from kvproof.harness.served.request_log import Identity, RequestLog, Sighting

PLAIN = Step("again", (0, "whole"))
"""A request without salt, adapter or wait."""


class Sender:
    """Sends prompts to one server after the other."""

    def __init__(self, *, salts: bool, reset: str) -> None:
        """`salts`: the base has a cache, which a salt, or the POST `reset`, keeps from requests."""
        self._salts, self._reset = salts, reset
        self.able = Abilities(top=None, token_ids=False, ignore_eos=False, salt=False)
        """Options of the server that is asked."""
        self.name = secrets.token_hex(4)
        """Word that no other run has."""
        self._count = itertools.count()
        self.neutral = True
        """Answers do not depend on a salt, as far as is known."""
        self.adapters: dict[Key, str] = {}
        """Prompt -> adapter that answers it."""
        self._logs: dict[str, RequestLog] = {}
        """URL of a server -> all requests to it."""

    def answer(
        self, client: CompletionClient, prompt: Question, tokens: int, step: Step = PLAIN
    ) -> tuple[Reply, Sighting]:
        """Complete greedily; a salt keeps cached blocks of other salts out of reach."""
        able, adapter = self.able, self.adapters.get(step.key, "")
        asked = {
            "return_token_ids": able.token_ids or None,
            "ignore_eos": able.ignore_eos or None,
            "cache_salt": step.salt or None,
            "model": adapter or None,
        }
        fields = {name: value for name, value in asked.items() if value is not None}
        log = self.log(client)
        before = counters_of(client) if step.metered else {}
        sent = log.begin(content_of(prompt), Identity(step.salt, adapter))
        reply = asked_of(client, prompt, tokens, able.top, fields)
        sighting = log.end(
            sent, written(prompt, reply), cached=reply.usage.cached_tokens,
            prompt_tokens=reply.usage.prompt_tokens,
            also=occurred(before, counters_of(client)) if step.metered else (),
        )  # fmt: skip
        return answered(reply), sighting

    def recomputed(
        self, client: CompletionClient, prompt: Question, tokens: int, step: Step = PLAIN
    ) -> tuple[Reply, Sighting]:
        """Complete greedily, with nothing from a cache."""
        return self.under(client, prompt, tokens, step._replace(salt=self.salt()))

    def under(
        self, client: CompletionClient, prompt: Question, tokens: int, step: Step
    ) -> tuple[Reply, Sighting]:
        """Recompute under the step's salt, or after a reset."""
        if self._salts and not step.salt and self._reset:
            posted(client, "reset", (self._reset,))
            self.log(client).mark("", emptied=True)
        return self.answer(client, prompt, tokens, step)

    def log(self, client: CompletionClient) -> RequestLog:
        """All requests to a server, also of another role."""
        log = self._logs.setdefault(client.url, RequestLog())
        log.longest, log.opening = self.able.longest, self.able.opening
        return log

    def salt(self) -> str:
        """Return a new salt; empty where something else recomputes."""
        salted = self._salts and self.able.salt and self.neutral
        return self.new_salt() if salted else ""

    def new_salt(self) -> str:
        """Return a salt that no other request has, also of an earlier run."""
        return f"kvproof {self.name} {next(self._count)}"


def written(prompt: Question, reply: Reply) -> Prompt:
    """Return an answer as its prompt is written: ids after ids, a text after a text."""
    if isinstance(prompt, Chat):
        return ()  # the template of a chat stands between both
    return reply.text if isinstance(prompt, str) else reply.ids
