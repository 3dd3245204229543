"""Sessions as the material of a run: every load on a judged server, then its prompts recomputed.

A prompt holds the answers that the judged server gave before, so that the recomputed answer is to
the very same text. The base recomputes one request at a time, the control eight at a time; their
difference is the engine's own noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from kvproof.eval.run.config import Configuration, EvalConfig, Protocol
from kvproof.eval.run.protocol import Asked, Exchange, Job, Material, Request, Stage
from kvproof.eval.run.records import LoadName
from kvproof.eval.scbench.data import Session
from kvproof.eval.scbench.records import Mode
from kvproof.eval.scbench.tasks import MOST_TOKENS, question, score, shared_part
from kvproof.harness.http.completion_client import CompletionClient


class Level(NamedTuple):
    """One load."""

    name: LoadName
    concurrency: int
    order: Literal["sessions", "turns"]
    """`turns`: the next turn of a session comes when all others had theirs, so that their contexts
    press its own out of a small cache. Every second turn is asked in reverse: the last contexts are
    still there, the first ones are not."""


LEVELS = (
    Level("1 at once", 1, "sessions"),
    Level("8 at once", 8, "sessions"),
    Level("64 at once", 64, "sessions"),
    Level("eviction", 8, "turns"),
)

_CONTROL = 8
"""Recomputed requests at once in the control."""

Messages = tuple[dict[str, str], ...]


class _Conversation:
    """A session at one load. Its first line is its own, so that no other load fills the cache."""

    def __init__(self, session: Session, mode: Mode, level: Level) -> None:
        self.session, self.mode = session, mode
        self._begin = f"[{level.name}, {mode}, {session.task} {session.id}]\n" + shared_part(
            session
        )
        self._history: Messages = ()

    def messages(self, turn: int) -> Messages:
        """Return a question; with `turns` after all earlier ones and the server's own answers."""
        text = question(self.session.task, self.session.turns[turn])
        whole = text if self._history else self._begin + text
        return (*self._history, {"role": "user", "content": whole})

    def answered(self, messages: Messages, text: str) -> None:
        """Go on from this answer, if this is one conversation."""
        if self.mode == "turns":
            self._history = (*messages, {"role": "assistant", "content": text})


class _Prompt(NamedTuple):
    conversation: _Conversation
    turn: int
    messages: Messages = ()
    """Messages of a recomputed prompt."""


class Sessions(Material):
    """Material whose prompts hold the answers before them; the judged servers come first."""

    def __init__(
        self, config: EvalConfig, sessions: Sequence[Session], modes: Sequence[Mode]
    ) -> None:
        self._config, self._sessions, self._modes = config, sessions, modes
        self._asked: dict[Request, _Prompt] = {}
        """Requests of the configuration that is asked."""
        self._found: dict[bytes, _Prompt] = {}
        """Prompts of the judged configurations."""

    @property
    def count(self) -> int:
        """Number of questions at one load."""
        return sum(len(each.turns) for each in self._sessions) * len(self._modes)

    def order(self, config: EvalConfig) -> Sequence[Configuration]:
        """Return the judged configurations, then base and control."""
        return [*config.others, config.baseline, config.control]

    def begin(self, configuration: str, protocol: Protocol) -> list[Stage]:
        """Return the loads of a judged configuration, or all prompts once more."""
        del protocol  # loads have their own concurrency
        self._asked = {}
        one = next(each for each in self._config.configuration if each.name == configuration)
        if one in self._config.others:
            return [stage for level in LEVELS for mode in self._modes
                    for stage in self._load(level, mode)]  # fmt: skip
        for number, prompt in enumerate(self._found.values()):
            self._asked[Request("recomputed", number)] = prompt
        jobs = [(request,) for request in self._asked]
        return [Stage(jobs, _CONTROL if one.control else 1)]

    def _load(self, level: Level, mode: Mode) -> Iterator[Stage]:
        """Stages of one load."""
        jobs = [self._job(_Conversation(each, mode, level), level) for each in self._sessions]
        if level.order == "sessions":
            yield Stage(jobs, level.concurrency)
            return
        for turn in range(max(map(len, jobs))):
            found = [(job[turn],) for job in jobs if turn < len(job)]
            yield Stage(found[::-1] if turn % 2 else found, level.concurrency)

    def _job(self, conversation: _Conversation, level: Level) -> Job:
        first = len(self._asked)
        turns = range(len(conversation.session.turns))
        made = {Request(level.name, first + n): _Prompt(conversation, n) for n in turns}
        self._asked |= made
        return tuple(made)

    def sample(self, request: Request) -> Asked:
        """Question of a request: task and mode, and the full score as the right answer."""
        found = self._asked[request].conversation
        task, mode = found.session.task, found.mode
        return Asked(id=found.session.id, domain=task, sub_domain=mode, answer="1.0")

    def ask(self, client: CompletionClient, request: Request, protocol: Protocol) -> Exchange:
        """Send the messages of a turn."""
        del protocol  # tasks have their own lengths
        prompt = self._asked[request]
        conversation, turn = prompt.conversation, prompt.turn
        messages = prompt.messages or conversation.messages(turn)
        reply = client.chat(messages, max_tokens=MOST_TOKENS[conversation.session.task])
        sent = msgspec.json.encode(messages)
        if request.phase != "recomputed":
            conversation.answered(messages, reply.text)
            self._found.setdefault(
                hashlib.sha256(sent).digest(), prompt._replace(messages=messages)
            )
        return Exchange(sent, reply, turn=turn)

    def extract(self, request: Request, text: str) -> str:
        """Score of a text, 0 to 1."""
        prompt = self._asked[request]
        session = prompt.conversation.session
        return repr(score(session.task, text, session.turns[prompt.turn]))
