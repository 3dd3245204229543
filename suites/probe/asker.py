"""Sends questions, and records each answer with the length of its shared prefix."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kvproof.harness.isolation.threads import interruptible
from kvproof.harness.served.counters import Figures, grown
from kvproof.harness.served.request_log import Identity, RequestLog, Sent
from kvproof.suites.probe.answers import Answer
from kvproof.suites.probe.content import HEAD, Form, Turn, content_of, prompt_of
from kvproof.suites.probe.facts import Facts
from kvproof.suites.probe.metrics import lost, read_figures
from kvproof.suites.probe.server_connection import ServerConnection

ANSWER = 8
"""Tokens of an answer."""
LONG = 128
"""Tokens of an answer whose request is cancelled."""
CHANCE = 12
"""Tokens that short prompts may share by chance."""
_SETTLE = 2.0
"""Seconds until the counters include a finished request."""


class Question(NamedTuple):
    """One prompt."""

    turns: tuple[Turn, ...]
    salt: str = ""
    unshared: int | None = None
    """Words at its end without an earlier request for the same prefix; None: unknown."""
    bound: int | None = None
    """Most tokens that may be found, if words give no bound."""
    again: bool = False
    """The same prompt was sent before, under the same salt."""
    most: int = ANSWER
    """Tokens of the answer."""
    form: Form | None = None
    """A form other than the usual one."""
    model: str = ""
    """An adapter in place of the model."""
    unending: bool = False
    """The answer does not end early, where the server can be asked for that."""

    @property
    def words(self) -> int:
        """Words of all turns."""
        return sum(len(turn.words) for turn in self.turns)


class Seen(NamedTuple):
    """A question and its answer."""

    question: Question
    answer: Answer
    number: int = 0
    """Index in the log of the connection."""

    @property
    def bound(self) -> int | None:
        """Most tokens that may be found: every unshared word is at least one."""
        if self.question.bound is not None:
            return self.question.bound
        if self.question.unshared is None or not self.answer.prompt:
            return None
        chance = CHANCE if self.question.words - self.question.unshared < HEAD else 0
        return self.answer.prompt - self.question.unshared + chance


class Asker:
    """Sends prompts in the form that the server takes.

    Raises NoAnswer, BudgetExhausted, ServerUnreachable.
    """

    def __init__(
        self, line: ServerConnection, facts: Facts, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.line, self.facts = line, facts
        self.seen: list[Seen] = []
        self.metered = False
        """Cached tokens are read from `/metrics`, because answers do not contain them."""
        self.reports_cached = False
        """Some answer contained a cached count; from then on, a missing count is 0."""
        self.floor = 0
        """Most tokens found for a new prompt: all chats begin with the chat template."""
        self.found_at_once = False
        """The last concurrent prompts found more than the template."""
        self.situations: Counter[str] = Counter()
        """Situations of the cache in which an answer was given (`harness.served`)."""
        self._requests = RequestLog(longest=facts.longest)
        self._sleep = sleep
        self._lock = threading.Lock()

    def ask(self, question: Question) -> Answer:
        """Send one question alone."""
        before = read_figures(self.line) if self.metered else {}
        number, answer, sent = self._sent(question)
        if self.metered:
            answer = answer._replace(cached=self._metered(before, answer.prompt))
        return self._keep(question, number, answer, sent)

    def together(self, questions: Sequence[Question], *, lead: float = 0.0) -> list[Answer]:
        """Send all concurrently, the first one `lead` seconds before the others.

        Raises the first NoAnswer, after all have ended.
        """
        before = read_figures(self.line) if self.metered else {}
        with interruptible(len(questions), self.line.close) as pool:
            asked = [pool.submit(self._sent, each) for each in questions[:1]]
            self._sleep(lead)
            asked += [pool.submit(self._sent, each) for each in questions[1:]]
        reported = [each.result() for each in asked]
        answers = [self._keep(each, *one) for each, one in zip(questions, reported, strict=True)]
        found = sum(each.cached or 0 for each in answers)
        if self.metered:
            found = self._metered(before, sum(each.prompt for each in answers)) or 0
        self.found_at_once = found > self.floor * len(answers)
        return answers

    def _sent(self, question: Question) -> tuple[int, Answer, Sent]:
        path, body = self._request(question)
        sent = self._requests.begin(content_of(body), Identity(question.salt, question.model))
        try:
            return *self.line.send(path, body), sent
        except BaseException:
            self._requests.end(sent, cached=0, prompt_tokens=None)
            raise

    def pause(self, seconds: float) -> None:
        """Send nothing for a while."""
        self._sleep(seconds)

    def found(self, answer: Answer) -> bool:
        """Return whether the hit is longer than the chat template."""
        return (answer.cached or 0) > self.floor

    def leave(self, question: Question, *, after: int = 1) -> bool:
        """Send a streaming request and cancel it; returns whether it was still running."""
        path, body = self._request(question)
        return self.line.leave(path, body | self.facts.long_fields, after=after)

    def _keep(self, question: Question, number: int, answer: Answer, sent: Sent) -> Answer:
        generated = answer.text if isinstance(sent.prompt, str) else answer.ids
        sighting = self._requests.end(
            sent, generated, cached=answer.cached, prompt_tokens=answer.prompt or None
        )
        with self._lock:
            self.situations.update(sighting.situations)
            self.reports_cached |= answer.cached is not None
            if self.reports_cached and answer.cached is None and not self.metered:
                answer = answer._replace(cached=0)
            seen = Seen(question, answer, number)
            self.seen.append(seen)
            if question.unshared == question.words and (answer.cached or 0) <= (seen.bound or 0):
                self.floor = max(self.floor, answer.cached or 0)
        return answer

    def _request(self, question: Question) -> tuple[str, dict[str, Any]]:
        facts = self.facts
        form = question.form or facts.form
        fields = facts.fields if form == facts.form else _for_chat(facts.fields)
        fields = fields | facts.long_fields if question.unending else fields
        body = {
            "model": question.model or facts.model,
            "temperature": 0,
            "max_tokens": question.most,
        }
        body |= prompt_of(form, question.turns) | fields
        if question.salt:
            body["cache_salt"] = question.salt
        return "/chat/completions" if form == "chat" else "/completions", body

    def _metered(self, before: Figures, prompt: int) -> int | None:
        """Return the counters' growth for the only running request; None: there were others."""
        rules, deadline = self.facts.rules, time.monotonic() + _SETTLE
        while True:
            after = read_figures(self.line)
            asked = grown(before, after, rules.queries)
            if lost(before, after, (rules.queries, rules.hits, rules.more_hits)):
                return None
            if asked == prompt:
                return int(grown(before, after, rules.hits) + grown(before, after, rules.more_hits))
            if asked > prompt or time.monotonic() > deadline:
                return None
            self._sleep(0.02)


def _for_chat(fields: dict[str, Any]) -> dict[str, Any]:
    count = fields.get("logprobs")
    found = {name: value for name, value in fields.items() if name != "logprobs"}
    return found | ({"logprobs": True, "top_logprobs": count} if count else {})


def new_salt() -> str:
    """Draw an unused salt."""
    return f"kvproof-{secrets.token_hex(8)}"
