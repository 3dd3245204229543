"""Runs one history of requests and time on an engine, and judges every step.

The operations are `submit`, `abort`, `step`, `advance`, `close_session`, `reset`, `sleep`, `wake`
and `drain`, with JSON keywords. One that makes no sense now is ignored: histories can be cut.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from kvproof.harness.contract.whole_engine import (
    EngineConfig,
    EngineRequest,
    EngineWithSessions,
    Output,
    Refused,
    WholeEngine,
)
from kvproof.harness.whole_engine.admissions import Admissions
from kvproof.harness.whole_engine.clock import VirtualClock
from kvproof.harness.whole_engine.conversations import Conversations, Turns
from kvproof.harness.whole_engine.device import AWAY
from kvproof.harness.whole_engine.findings import Findings
from kvproof.harness.whole_engine.published_prefixes import Group, PublishedPrefixes
from kvproof.harness.whole_engine.raised import raised
from kvproof.harness.whole_engine.replayed_index import ReplayedIndex
from kvproof.harness.whole_engine.requests import (
    chain_of,
    prompt_of,
    request_of,
    wanted,
    with_stop,
)
from kvproof.harness.whole_engine.situations import Sightings
from kvproof.harness.whole_engine.timeline import TimelineNotes

ANSWERS = "answers_equal_the_greedy_chain"
ENDS = "every_request_ends"
REST = "an_idle_engine_holds_nothing"
RUNS = "the_engine_keeps_running"
ONCE = "a_copy_that_ends_twice_changes_nothing"
RESETS = "two resets beside a connector without a step between them"
IDLE_STEPS = 80
"""Steps without a token, a launch or an end after which an engine with requests is stuck."""
MOST_ALONE = 400
"""Steps without a request after which an engine that still copies does so for ever."""
MOST_STEPS = 3000
"""Most steps of one `drain`."""

Start = Callable[[EngineConfig, Findings], WholeEngine]


class Progress(NamedTuple):
    """Counts that stand still while nothing goes on."""

    launches: int
    copies: int
    others: tuple[int, ...]


class Driver:
    """One engine and its history."""

    def __init__(self, start: Start, config: EngineConfig) -> None:
        self.config = config
        self.findings = Findings()
        self.clock = VirtualClock(config.tick_s)
        self.requests: dict[str, EngineRequest] = {}
        self.live: dict[str, int] = {}
        """Request that has not ended -> answers so far."""
        self.ended: list[str] = []
        self._wanted: dict[str, int] = {}
        """Request -> answers that it must end with."""
        self._aborted: set[str] = set()
        self._struck: set[str] = set()
        """Requests that known failures have ended."""
        self._prompts: list[int] = []
        self._aborted_turns: dict[str, int] = {}
        """Turn that was aborted when preempted -> blocks that its session may hold."""
        self._aborted_chunks: list[str] = []
        """Requests that were aborted with a part of their prompt computed."""
        self.findings.context |= {
            "prompts": self._prompts,
            "aborted_turns": self._aborted_turns,
            "aborted_chunks": self._aborted_chunks,
        }
        self._just_reset = self._asleep = False
        self._sessions = Conversations()
        self._index = ReplayedIndex(self.findings)
        self._sightings = Sightings(self.findings)
        with self.clock.running():
            self.engine = start(config, self.findings)
        self.device = self.engine.device
        self.timeline = TimelineNotes(self.device)
        self._admissions = Admissions(
            self.findings, config, self.device, self.engine.evicts_singly, self._sessions.able
        )
        self._turns = Turns(self.findings, config, self.device, self._sessions, self._offered)
        groups = [Group(each.kind.kind, each.block_size) for each in self.device.memory.pools]
        self._prefixes = PublishedPrefixes(self.findings, self.device.requests, groups)

    def apply(self, verb: str, keywords: Mapping[str, Any]) -> str:
        """Carry out one operation; an exception of the engine is a finding."""
        if self.findings.wrong is not None:
            return ""
        before = self.clock.tick
        try:
            with self.clock.running():
                return str(getattr(self, f"_{verb}")(**keywords))
        except Refused as refused:
            self.findings.saw("a request is refused")
            return f"refused: {refused}"
        except Exception as error:  # noqa: BLE001 - whatever an engine raises is its verdict
            self._raised(error)
            return f"{type(error).__name__}: {error}"
        finally:
            self.timeline.operations.append((verb, before, self.clock.tick))

    def record(self) -> dict[str, Any]:
        """Return the timeline up to the violation, or up to now, as JSON."""
        wrong = self.findings.wrong
        return self.timeline.record(
            wrong.slots if wrong else (), wrong.tick if wrong else self.clock.tick
        )

    def go_on(self) -> None:
        """Take over the engine's state after a known failure: those that it struck are aborted."""
        assert self.findings.wrong is not None, "something is wrong"
        struck = self.findings.wrong.struck()
        self._struck.update(struck)
        self.findings.context["struck"] = sorted(self._struck)
        with self.clock.running():
            for name in struck:
                self._strike(name)
        self.findings.go_on(self._struck)
        self._index.adopt()
        self._prefixes.adopt()

    def _strike(self, name: str) -> None:
        self.device.requests[name].struck = True
        if name in self.live:
            self._abort(request=name)

    def close(self) -> None:
        """Forget the engine."""
        self.engine.close()

    def _raised(self, error: Exception) -> None:
        if self.findings.wrong is not None:
            return  # the step had gone wrong before: nothing on the device can be relied on
        sentence = raised(error)
        frames = traceback.extract_tb(error.__traceback__)
        handled = any(frame.name in self.engine.takes_ends for frame in frames)
        self.findings.check(
            ONCE if handled and self.findings.just_repeated() else RUNS,
            False,  # noqa: FBT003 - the condition of a check
            lambda: sentence,
        )

    def _submit(self, **keywords: Any) -> str:
        name = keywords["id"]
        if name in self.requests or keywords.get("after", name) not in (name, *self.requests):
            return "ignored"
        session = keywords.get("session", "")
        if session and self._sessions.busy(session):
            return "ignored"
        prompt = prompt_of(keywords, self._before(keywords))
        request = request_of(keywords, prompt)
        if not 0 < len(prompt) < self.config.max_length:
            return "ignored"
        if session:
            request = self._as_turn(request, session)
        chain = chain_of(request, self.config.groups, given=keywords.get("given", ()))
        if "stop" in keywords:
            request = with_stop(request, chain, keywords["stop"])
        self._prompts.append(len(prompt))
        self._wanted[name] = wanted(request, chain, self.config.max_length)
        self.requests[name] = request
        self.device.register(request, chain)
        self._sightings.submitted(request, self.requests.values())
        self.timeline.arrived(request)
        self._hand_in(request, keywords)
        self.live[name] = 0
        return f"{len(prompt)} tokens"

    def _before(self, keywords: Mapping[str, Any]) -> list[int] | None:
        """Return the tokens of the turns before a request; None: it begins a conversation."""
        if "after" in keywords:
            return self._turn(keywords["after"])
        return self._sessions.history(keywords.get("session", ""))

    def _as_turn(self, request: EngineRequest, label: str) -> EngineRequest:
        session, history = self._sessions.begin(label, request.id)
        return replace(request, session=session, history=history)

    def _turn(self, name: str) -> list[int]:
        """Return the tokens of a request when it ends by itself."""
        chain = self.device.requests[name].chain
        end = chain.prompt + self._wanted[name]
        chain.ensure(end)
        return list(chain.tokens[:end])

    def _hand_in(self, request: EngineRequest, _: Mapping[str, Any]) -> None:
        try:
            self.engine.submit(request)
        except Refused:
            self._sessions.refused(request.id)
            raise

    def _offered(self, name: str) -> int:
        return self._admissions.offered(name, self.engine.found())

    def _close_session(self, session: str) -> str:
        self.findings.saw("a session that holds blocks is closed", self._sessions.holds(session))
        name = self._sessions.close(session)
        if not name:
            return "ignored"
        assert isinstance(self.engine, EngineWithSessions), "it has the feature"
        self.engine.close_session(name)
        return name

    def _advance(self, request: str, to: int) -> str:
        """Step until a request has computed that many tokens, or has ended."""
        steps, quiet, before = 0, 0, self._progress()
        while request in self.live and not self._over() and quiet < IDLE_STEPS:
            if self.device.requests[request].computed >= to:
                break
            self._once()
            steps, now = steps + 1, self._progress()
            quiet, before = (quiet + 1 if now == before else 0), now
        return f"{steps} steps"

    def _abort(self, number: int = 0, request: str = "") -> str:
        if not self.live or (request and request not in self.live):
            return "ignored"
        name = request or sorted(self.live)[number % len(self.live)]
        status = self.engine.statuses().get(name, "gone")
        self._note_abort(name, status)
        self.engine.abort(name)
        self._end(name, "aborted")
        self._aborted.add(name)
        self.findings.saw(f"a request is aborted while {status}")
        return f"{name}, {status}"

    def _note_abort(self, name: str, status: str) -> None:
        """Keep which turns were aborted when preempted, with their blocks, and which prompts."""
        request, computed = self.requests[name], self.device.requests[name].computed
        if status == "preempted" and request.session:
            blocks = -(-max(computed, self._sessions.able(name)) // self.config.block_size)
            memories = {each.memory for each in self.device.memory.pools}
            self._aborted_turns[name] = len(memories) * blocks
        if 0 < computed < len(request.prompt):
            self._aborted_chunks.append(name)

    def _step(
        self,
        count: int = 1,
        lag: int = 0,
        delay: int = 0,
        lose: int = 0,
        *,
        twice: bool = False,
    ) -> str:
        self.device.lag, self.device.transfers.delay = lag, delay
        self.device.transfers.twice = twice
        self.device.losses.pattern = lose
        spoken = [self._once() for _ in range(count) if not self._over()]
        return " ".join(each for each in spoken if each)

    def _over(self) -> bool:
        return self.findings.wrong is not None or self._idle()

    def _idle(self) -> bool:
        return self.engine.idle()

    def _once(self) -> str:
        self.clock.tick += 1
        self._just_reset = False
        self.device.tick = self.findings.tick = self.clock.tick
        self._admissions.before(self.engine.found())
        outputs = self.engine.step()
        self.findings.check(RUNS, True, str)  # noqa: FBT003 - the condition of a check
        self._survived_repeats()
        for output in outputs:
            self._take(output)
        statuses = self.engine.statuses()
        self.timeline.stepped(statuses)
        self._admissions.stepped(self.engine.found(), self.engine.given(), statuses)
        self._sightings.stepped(statuses, self.device)
        self._follow_events()
        return ", ".join(f"{each.id}+{len(each.tokens)}" for each in outputs if each.tokens)

    def _survived_repeats(self) -> None:
        if self.findings.repeated == self.clock.tick:
            self.findings.check(ONCE, True, str)  # noqa: FBT003 - the condition of a check

    def _take(self, output: Output) -> None:
        name = output.id
        if name in self.device.requests:
            self._sessions.answered(output, self.device.requests[name].chain)
        if name not in self.live:
            self.findings.check(
                ANSWERS,
                name in self._aborted or not output.tokens,
                lambda: f"{name} has ended and answers {output.tokens}",
            )
            return
        chain, done = self.device.requests[name].chain, self.live[name]
        first = chain.prompt + done
        chain.ensure(first + len(output.tokens))
        own = tuple(chain.tokens[first : first + len(output.tokens)])
        self.findings.check(
            ANSWERS,
            output.tokens == own,
            lambda: (
                f"{name} answers {list(output.tokens)} from its {done + 1}th token on, "
                f"without an engine it is {list(own)}"
            ),
            facts={
                "load_failed": self.device.requests[name].load_failed,
                "computed": self.device.requests[name].computed,
                "prompt": len(self.requests[name].prompt),
            },
        )
        self._admissions.answered(output)
        self.live[name] += len(output.tokens)
        if output.finished:
            self._check_end(name, output)
            self._end(name, output.finished)

    def _check_end(self, name: str, output: Output) -> None:
        most = self._wanted[name]
        self.findings.check(
            ENDS,
            output.finished not in ("length", "stop") or self.live[name] == most,
            lambda: f"{name} ended ({output.finished}) after {self.live[name]} of {most} tokens",
        )
        if self.requests[name].session:
            self._turns.ended(name, output.finished)
        failed = name in self.device.losses.requests
        self.findings.saw("a request ends because its load failed", failed and output.finished)
        self.findings.check(
            RUNS, failed or output.finished != "error", lambda: f"{name} ended with an error"
        )

    def _end(self, name: str, outcome: str) -> None:
        self.ended.append(name)
        self.timeline.ended(name, outcome)
        with suppress(KeyError):
            del self.live[name]

    def _follow_events(self) -> None:
        if not self.config.events:
            return
        events = self.engine.events()
        self._prefixes.apply(events)
        self._index.apply(events)
        silent = self.engine.silent_groups
        index = [each for each in self.engine.found() if each[1] not in silent]
        self._index.compare(index, unpublished=self.engine.unpublished())

    def _reset(self, *, running: bool = False) -> str:
        twice, self._just_reset = self._just_reset, True
        self.findings.context["reset_again"] = twice
        self.findings.saw("a reset beside a connector", self.config.connector)
        self.findings.saw(RESETS, twice and self.config.connector)
        done = self.engine.reset(running=running)
        if done:
            self.device.epoch += 1
            self._sessions.reset()
            self.timeline.resets.append(self.device.tick)
            self._index.reset()
        self.findings.saw("a reset is done" if done else "a reset is refused")
        self.findings.saw("a reset preempts what runs", done and running and self.live)
        self._sightings.reset_done = done or self._sightings.reset_done
        self._follow_events()
        return "done" if done else "refused"

    def _sleep(self, level: int = 1, *, keep: bool = False) -> str:
        """Put the engine to sleep; without `keep` its requests are aborted."""
        if self._asleep:
            return "ignored"
        self._asleep = True
        self.engine.sleep(level=level, keep=keep)
        self.device.asleep = True
        self.findings.checks[AWAY] += 1  # that nothing runs from now on
        self.findings.saw("the engine sleeps", level)
        self.findings.saw("the engine sleeps while requests run", level and self.live)
        for name in () if keep else sorted(self.live):
            self._end(name, "aborted")
            self._aborted.add(name)
        if level:
            self._index.reset()
        self._follow_events()
        return f"level {level}"

    def _wake(self, *, in_parts: bool = False) -> str:
        if not self._asleep:
            return "ignored"
        self.findings.saw("requests wait while the engine sleeps", self.live)
        if in_parts:
            self.engine.wake(part="weights")
            self._step()
        self._asleep = self.device.asleep = False
        self.engine.wake(part="kv_cache" if in_parts else "")
        return "awake"

    def _drain(self) -> str:
        """Run until nothing is left, then check that nothing is held."""
        self._wake()
        if self.config.sessions and self._idle():
            self._turns.rest(self.engine, self._once)
        self.device.losses.pattern = 0  # a load that always fails never ends
        self.device.transfers.twice = False
        steps, quiet, alone = 0, 0, 0
        before = self._progress()
        while not self._over() and quiet < IDLE_STEPS and alone < MOST_ALONE and steps < MOST_STEPS:
            self._close_idle_sessions()
            self._once()
            steps, now = steps + 1, self._progress()
            quiet, before = (quiet + 1 if now == before else 0), now
            alone = 0 if self.live else alone + 1
        if self.findings.wrong is not None:
            return ""
        self.findings.check(
            ENDS,
            not self.live and self._idle(),
            lambda: (
                f"after {steps} more steps, {quiet} of them without progress, "
                f"{self.engine.statuses() or 'the engine'} has not ended"
            ),
            facts={
                "stored_since_a_launch": list(self.device.transfers.stored.values()),
                "holders": self.engine.holders(),
                "failed": sorted(self.device.losses.requests),
                "elsewhere": self._elsewhere(),
                "requests": sorted(self.live),
                "needs": {name: self._most(name) for name in self.live},
            },
        )
        self._check_rest()
        return f"{steps} steps"

    def _most(self, name: str) -> int:
        """Return the most tokens that an engine has to expect of a request."""
        request = self.requests[name]
        return min(len(request.prompt) + request.answers, self.config.max_length)

    def _elsewhere(self) -> dict[str, str]:
        """Return the statuses of requests of another engine."""
        return {}

    def _progress(self) -> Progress:
        device = self.device
        ended = sum(self.live.values()), len(self.ended)
        return Progress(device.worked, device.transfers.count, ended)

    def _check_rest(self) -> None:
        if self.config.sessions:
            self._turns.rest(self.engine, self._once, self._close_idle_sessions)
        if self.findings.wrong is None:
            self._check_holds_nothing(self.engine)
            self._admissions.counted(self.engine.hit_counts())
            self.findings.saw("the engine comes to rest")

    def _close_idle_sessions(self) -> None:
        """Close sessions as a client that is done: their pages may keep others waiting."""
        for session in self._sessions.idle():
            self._close_session(session)

    def _check_holds_nothing(self, engine: WholeEngine) -> None:
        held = engine.holdings()
        left = {name: count for name, count in held.counts.items() if count}
        self.findings.check(
            REST,
            held.free == held.total and not left,
            lambda: (
                f"{held.free} of {held.total} blocks can be handed out and {left} is left, "
                "with no request"
            ),
        )
