"""Loads of a run: sessions on a judged server first, then every prompt of theirs recomputed.

A prompt holds the answers that the judged server gave before, so that the recomputed answer is to
the very same text. The base recomputes one request at a time, the control eight at a time; their
difference is the engine's own noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import msgspec

from kvproof.eval.run.config import Configuration, EvalConfig
from kvproof.eval.run.protocol import request_fields
from kvproof.eval.run.records import ServerDied, ServerRecord, asked_as
from kvproof.eval.run.runner import RunSink
from kvproof.eval.run.server import Serving, key_of, serving
from kvproof.eval.scbench.data import Session
from kvproof.eval.scbench.records import Answer, Mode
from kvproof.eval.scbench.tasks import MOST_TOKENS, question, score, shared_part
from kvproof.harness.http.chat_client import ChatClient
from kvproof.harness.isolation.supervised import Died


class Level(NamedTuple):
    """One load."""

    name: str
    concurrency: int
    order: Literal["sessions", "turns"]
    """`turns`: the next turn of a session comes when all others had theirs, so that their contexts
    press its own out of a small cache. Every second turn is asked in reverse: what came last is
    still there, what came first is not."""


LEVELS = (
    Level("1 at once", 1, "sessions"),
    Level("8 at once", 8, "sessions"),
    Level("64 at once", 64, "sessions"),
    Level("eviction", 8, "turns"),
)

_CONTROL = 8
"""Recomputed requests at once in the control."""

In = TypeVar("In")
Out = TypeVar("Out")

Messages = tuple[dict[str, str], ...]


class Plan(NamedTuple):
    """What is run, and where it goes."""

    config: EvalConfig
    sessions: Sequence[Session]
    modes: Sequence[Mode]
    sink: RunSink


class _Prompt(NamedTuple):
    """One request of a session."""

    session: Session
    mode: Mode
    turn: int
    messages: Messages

    @property
    def key(self) -> str:
        return hashlib.sha256(msgspec.json.encode(self.messages)).hexdigest()


def run(plan: Plan) -> None:
    """Run all judged configurations, then base and control. Deaths of servers are recorded."""
    prompts: dict[str, _Prompt] = {}
    for one in plan.config.others:
        _on_server(plan, one, partial(_judged, found=prompts))
    _on_server(plan, plan.config.baseline, partial(_recomputed, prompts=prompts, at_once=1))
    _on_server(plan, plan.config.control, partial(_recomputed, prompts=prompts, at_once=_CONTROL))


class _Ask(NamedTuple):
    """Sends prompts to one server and records the answers."""

    plan: Plan
    one: Configuration
    client: ChatClient
    server: Serving

    def __call__(self, prompt: _Prompt, level: str) -> str:
        task, turn = prompt.session.task, prompt.session.turns[prompt.turn]
        reply = self.client.chat(prompt.messages, max_tokens=MOST_TOKENS[task])
        if reply.outcome == "dropped":
            self.server.check()
        self.plan.sink.write(
            Answer(
                configuration=self.one.name,
                level=level,
                mode=prompt.mode,
                task=task,
                session=prompt.session.id,
                turn=prompt.turn,
                prompt=prompt.key,
                outcome=reply.outcome,
                text=reply.text,
                score=score(task, reply.text, turn),
                prompt_tokens=reply.usage.prompt_tokens,
                cached_tokens=reply.usage.cached_tokens,
                seconds=round(reply.seconds, 6),
                fault=reply.faults[-1] if reply.faults else "",
            )
        )
        return reply.text


def _on_server(plan: Plan, one: Configuration, work: Callable[[_Ask], object]) -> None:
    plan.sink.progress(f"{one.name}: waiting for the server", 0, 0)
    log = plan.sink.logs / f"{one.name.replace(' ', '_')}.log"
    try:
        with serving(plan.config, one, log) as server:
            record = _record(one, server)
            plan.sink.write(record)
            work(_Ask(plan, one, _client(plan.config, one, server, record), server))
    except Died as death:
        plan.sink.write(ServerDied(configuration=one.name, message=str(death), log=death.log))


def _record(one: Configuration, server: Serving) -> ServerRecord:
    return ServerRecord(
        configuration=one.name,
        repeat=0,
        url=server.url,
        models=server.models,
        command=server.command,
        fresh=server.fresh,
        engine=server.engine,
        version=server.version,
    )


def _client(
    config: EvalConfig, one: Configuration, server: Serving, record: ServerRecord
) -> ChatClient:
    protocol = config.protocol
    fields = request_fields(protocol, asked_as(config.model, record))
    return ChatClient(
        server.url,
        key=key_of(config.server_of(one)),
        timeout=protocol.timeout,
        retries=protocol.retries,
        stream=protocol.stream,
        fields={name: value for name, value in fields.items() if name != "max_tokens"},
    )


def _judged(ask: _Ask, found: dict[str, _Prompt]) -> None:
    """Run every load, and add all prompts to `found`, by their key."""
    plan, done = ask.plan, 0
    total = sum(len(each.turns) for each in plan.sessions) * len(plan.modes) * len(LEVELS)
    for level in LEVELS:
        for mode in plan.modes:
            conversations = [_Conversation(each, mode, level) for each in plan.sessions]
            for jobs in _jobs(conversations, level):
                for prompts in _at_once(ask, level.concurrency, lambda job: job(ask), jobs):
                    found.update((each.key, each) for each in prompts)
                    done += len(prompts)
                plan.sink.progress(f"{ask.one.name}: {level.name}, {mode}", done, total)


Job = Callable[[_Ask], list[_Prompt]]


class _Conversation:
    """A session at one load. Its first line is its own, so that no other load fills the cache."""

    def __init__(self, session: Session, mode: Mode, level: Level) -> None:
        self.session, self.mode, self.level = session, mode, level
        self._begin = f"[{level.name}, {mode}, {session.task} {session.id}]\n" + shared_part(
            session
        )
        self._history: Messages = ()

    def turn(self, number: int, ask: _Ask) -> list[_Prompt]:
        """Ask one question; with `turns` after all earlier ones and the server's own answers."""
        text = question(self.session.task, self.session.turns[number])
        whole = text if self._history else self._begin + text
        messages = (*self._history, {"role": "user", "content": whole})
        prompt = _Prompt(self.session, self.mode, number, messages)
        answer = ask(prompt, self.level.name)
        if self.mode == "turns":
            self._history = (*messages, {"role": "assistant", "content": answer})
        return [prompt]

    def all_turns(self, ask: _Ask) -> list[_Prompt]:
        """Ask all questions, one after the other."""
        return [each for n in range(len(self.session.turns)) for each in self.turn(n, ask)]


def _jobs(conversations: Sequence[_Conversation], level: Level) -> Iterator[list[Job]]:
    """Jobs that run at once, stage after stage."""
    if level.order == "sessions":
        yield [each.all_turns for each in conversations]
        return
    for number in range(max(len(each.session.turns) for each in conversations)):
        jobs = [_nth(each, number) for each in conversations if number < len(each.session.turns)]
        yield jobs[::-1] if number % 2 else jobs


def _nth(conversation: _Conversation, number: int) -> Job:
    return lambda ask: conversation.turn(number, ask)


def _recomputed(ask: _Ask, prompts: dict[str, _Prompt], at_once: int) -> None:
    plan, todo = ask.plan, list(prompts.values())
    for done, _ in enumerate(_at_once(ask, at_once, lambda each: ask(each, ""), todo), 1):
        plan.sink.progress(f"{ask.one.name}: recomputing", done, len(todo))


def _at_once(
    ask: _Ask, number: int, work: Callable[[In], Out], items: Sequence[In]
) -> Iterator[Out]:
    """Yield results in order; an error, or Ctrl-C, stops the other workers."""
    with ThreadPoolExecutor(number) as pool:
        try:
            yield from pool.map(work, items)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            ask.client.close()
            raise
