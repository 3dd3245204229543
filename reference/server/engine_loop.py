"""The engine in its own thread: commands arrive through a queue, events leave in batches.

There is no polling: the thread sleeps in the queue while no request runs. All events of one step
are delivered in one call.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from kvproof.reference.cache.routed_experts import Recorded
from kvproof.reference.core.identity import DEFAULT_NAMESPACE, IdentityError, Namespace
from kvproof.reference.engine.engine import Engine, Output
from kvproof.reference.engine.migration import Moved
from kvproof.reference.engine.request_queue import routed
from kvproof.reference.server.errors import OVERLOADED, SERVER, ApiError
from kvproof.reference.server.language.language import (
    Language,
    Prepared,
    PromptError,
    SamplingOptions,
    seeded,
)
from kvproof.reference.server.migration import Line
from kvproof.reference.server.recovery import abandon
from kvproof.reference.server.writer import Piece, Writer

LOG = logging.getLogger("kvproof.server")


class ServedRequest(NamedTuple):
    """One prompt to be answered."""

    id: str
    prepared: Prepared
    sampling: SamplingOptions
    most: int
    """Tokens of the longest answer; 0: the prompt is computed, and nothing is written."""
    stops: tuple[str, ...] = ()
    stop_tokens: frozenset[int] = frozenset()
    namespace: Namespace = DEFAULT_NAMESPACE
    ignore_ends: bool = False
    moved: Moved | None = None
    """Taken out of another server; then it is brought in instead of added."""
    cached: int | None = None
    """Hit of a moved request at its first admission."""


Event: TypeAlias = "Piece | ApiError"
"""The last one of an order is an error, or a piece with `finish`."""
Deliver: TypeAlias = Callable[[Sequence[tuple[str, Event]]], None]


class Answer:
    """An order under way."""

    def __init__(self, order: ServedRequest, writer: Writer) -> None:
        self.order, self.writer = order, writer
        self.seen = len(order.moved.tokens) - len(order.moved.prompt.tokens) if order.moved else 0
        self.cached = order.cached
        """Prompt tokens that the first admission found in the cache."""
        self.moved = False
        """Whether another server computes it."""


class EngineLoop:
    """Owns an engine; every method may be called from any thread."""

    def __init__(self, engine: Engine, language: Language, deliver: Deliver) -> None:
        self._engine, self._language, self._deliver = engine, language, deliver
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._answers: dict[str, Answer] = {}
        self._events: list[tuple[str, Event]] = []
        self._thread = threading.Thread(target=self._run, name="kvproof-engine", daemon=True)
        self._stopping = False
        self.outcomes = Counter(completed=0, cancelled=0, refused=0, failed=0)
        """Outcomes of the orders that have ended."""
        self.tokens = Counter(prompt=0, cached=0, generated=0)
        """Tokens of the orders that were admitted."""
        self.failures = 0
        self.failing = ""
        """Error of the last step; empty after a successful one."""
        self.dead = ""
        """Error that ended the thread; no more requests are answered."""

    def start(self) -> None:
        """Run until `stop`. Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Cancel all orders, end the thread, and wait for it."""
        self._inbox.put(self._stop)
        self._thread.join()

    def submit(self, orders: Sequence[ServedRequest]) -> None:
        """Answer prompts; everything about them arrives as events."""
        self._inbox.put(lambda: self._accept_all(orders))

    def cancel(self, ids: Sequence[str]) -> None:
        """Cancel orders in any state; no event follows. Idempotent (C6)."""
        self._inbox.put(lambda: self._cancel_all(ids))

    def fail_all(self, error: ApiError) -> None:
        """End every order under way with an error."""
        self._inbox.put(lambda: self._fail(list(self._answers), error))

    def between_steps(self, action: Callable[[], None]) -> None:
        """Run something in the engine's thread, where nothing changes meanwhile."""
        self._inbox.put(action)

    def take_out_all(self) -> tuple[list[tuple[Answer, Moved]], dict[str, str]]:
        """Take out every request that can move; engine's thread. Also id -> why it stays."""
        self._advance(self._engine.finish_steps)
        taken: list[tuple[Answer, Moved]] = []
        stay: dict[str, str] = {}
        for name, answer in self._answers.items():
            reason = self._stays(answer)
            moved = None if reason else self._engine.take_out(name)
            if moved:
                answer.moved = True
                taken.append((answer, moved))
            else:
                stay[name] = reason or "it has just ended"
        return taken, stay

    def _stays(self, answer: Answer) -> str:
        sampling = answer.order.sampling
        reasons = {
            "it has moved already": answer.moved,
            "it has images": answer.order.prepared.spans,
            "this server records experts": self._engine.cache.experts,
            "the log-probabilities of its prompt are not complete": (
                sampling.prompt_logprobs is not None and not answer.seen
            ),
        }
        return next((reason for reason, holds in reasons.items() if holds), "")

    def answers(self, name: str) -> bool:
        """Whether the client of an order still waits; any thread."""
        return name in self._answers

    def relayed(self, name: str, line: Line) -> None:
        """Add tokens that another server has computed."""
        self._inbox.put(lambda: self._add_relayed(name, line))

    def come_back(self, moved: Moved, received: tuple[int, ...], reason: str) -> None:
        """Continue a moved request here: the other server refused or lost it."""
        self._inbox.put(lambda: self._bring_back(moved, received, reason))

    @property
    def counts(self) -> tuple[int, int]:
        """Return requests that run and requests that wait; exact between steps."""
        scheduler = self._engine.scheduler
        running = len(scheduler.running)
        return running, max(0, len(scheduler.requests) - running)

    # --- the thread ---

    def turn(self) -> None:
        """Run the queued commands, waiting if the engine is idle, then take one step."""
        self._obey()
        if self._engine.busy and not self._stopping:
            self._step()

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.turn()
        except Exception as error:
            LOG.exception("the engine has died")
            self._die(error)

    def _obey(self) -> None:
        waiting = not self._engine.busy
        while waiting or not self._inbox.empty():
            self._inbox.get()()
            waiting = False
        self._flush()

    def _stop(self) -> None:
        self._cancel_all(list(self._answers))
        self._stopping = True

    def _flush(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._deliver(events)

    def _step(self) -> None:
        self._advance(self._engine.step)

    def _advance(self, step: Callable[[], list[Output]]) -> None:
        """Take or end steps, and write their outputs to the answers."""
        try:
            outputs = step()
            if self._engine.stuck:
                raise RuntimeError("requests wait and nothing can run")
        except Exception as error:
            LOG.exception("a step has failed")
            self._step_failed(error)
            return
        self.failing = ""
        self._note_hits()
        for output in outputs:
            self._try_to_write(output)
        self._flush()

    def _try_to_write(self, output: Output) -> None:
        try:
            self._write(output)
        except Exception as error:
            LOG.exception("an answer cannot be written")
            self._fail([output.request_id], _model_failed(f"{type(error).__name__}: {error}"))

    def _step_failed(self, error: Exception) -> None:
        """Fail the requests of the step; if there are none, the next step fails alike."""
        self.failures += 1
        self.failing = f"{type(error).__name__}: {error}"
        computed = any(self._engine.scheduler.steps.values())
        failed = abandon(self._engine)
        self._engine.scheduler.decisions.clear()
        self._fail(failed if computed else list(self._answers), _model_failed(self.failing))
        self._flush()

    def _die(self, error: Exception) -> None:
        self.dead = f"{type(error).__name__}: {error}"
        events = [(name, _model_failed(self.dead)) for name in self._answers]
        self.outcomes["failed"] += len(events)
        self._answers.clear()
        self._events += events
        self._flush()
        while not self._stopping:
            self._inbox.get()()
            self._flush()

    # --- orders ---

    def _accept_all(self, orders: Sequence[ServedRequest]) -> None:
        for order in orders:
            try:
                self._accept(order)
            except ApiError as error:
                self.outcomes["refused"] += 1
                self._events.append((order.id, error))

    def _accept(self, order: ServedRequest) -> None:
        if self.dead:
            raise _model_failed(self.dead)
        try:
            self._answers[order.id] = self._begin(order)
        except ApiError:
            self._language.end(order.id)
            raise

    def _begin(self, order: ServedRequest) -> Answer:
        """Hand an order to language and engine. Raises ApiError."""
        order = order._replace(sampling=seeded(order.sampling))
        try:
            answer = Answer(order, self._writer(order))
            self._language.begin(order.id, order.prepared, order.sampling)
            if order.moved:
                return self._bring_in(answer, order.moved)
            refusal = self._engine.add_request(
                order.id,
                order.prepared.tokens,
                max_new_tokens=max(1, order.most),
                namespace=order.namespace,
                spans=order.prepared.spans,
                read=order.sampling.prompt_logprobs is None,
            )
        except ApiError:
            raise
        except (IdentityError, PromptError) as error:
            raise ApiError(400, str(error), param="prompt") from None
        except Exception as error:
            LOG.exception("a request cannot begin")
            raise _model_failed(f"{type(error).__name__}: {error}") from None
        if refusal:
            raise ApiError(400, _never_fits(order, *refusal[1:]), code="context_length_exceeded")
        return answer

    def _bring_in(self, answer: Answer, moved: Moved) -> Answer:
        refusal = self._engine.bring_in(moved)
        if refusal is None:
            return answer
        if refusal.reason == "no_space":
            raise ApiError(429, "there is no room for it now", kind=OVERLOADED, code="no_space")
        raise ApiError(400, _never_fits(answer.order, *refusal[1:]))

    def _writer(self, order: ServedRequest) -> Writer:
        ends = frozenset[int]() if order.ignore_ends else self._language.ends
        return Writer(
            self._language.detokenizer(),
            stops=order.stops,
            ends=ends,
            most=order.most,
            stop_tokens=order.stop_tokens,
        )

    def _cancel_all(self, ids: Sequence[str]) -> None:
        for name in ids:
            if name in self._answers:
                self._leave(name, "cancelled")

    def _fail(self, ids: Sequence[str], error: ApiError) -> None:
        for name in ids:
            if name in self._answers:
                self._leave(name, "failed")
                self._events.append((name, error))

    def _leave(self, name: str, outcome: str) -> None:
        self._engine.cancel(name)
        self._language.end(name)
        self.outcomes[outcome] += 1
        self.tokens["generated"] += self._answers.pop(name).writer.written

    def _note_hits(self) -> None:
        """Count first admissions in the decision log, which a server does not keep."""
        decisions = self._engine.scheduler.decisions
        for decision in decisions:
            answer = self._answers.get(decision.request_id)
            if decision.verb == "admit" and answer and answer.cached is None:
                answer.cached = int(decision.detail[0])
                self.tokens["prompt"] += len(answer.order.prepared.tokens)
                self.tokens["cached"] += answer.cached
        decisions.clear()

    def _write(self, output: Output) -> None:
        name = output.request_id
        answer = self._answers.get(name)
        if answer is None:
            return
        first, sampling = not answer.seen, answer.order.sampling
        piece = answer.writer.add(output.tokens[answer.seen :])
        answer.seen += len(piece.tokens)
        piece = piece._replace(cached=answer.cached or 0)
        if sampling.top_logprobs is not None:
            piece = piece._replace(scores=tuple(self._language.scores(name, piece.tokens)))
        if sampling.prompt_logprobs is not None and first:
            piece = piece._replace(prompt_scores=tuple(self._language.prompt_scores(name)))
        if piece.finish:
            piece = piece._replace(experts=self._experts(output))
        self._send(name, piece)

    def _send(self, name: str, piece: Piece) -> None:
        if piece.finish:
            self._leave(name, "completed")
        self._events.append((name, piece))

    def _add_relayed(self, name: str, line: Line) -> None:
        answer = self._answers.get(name)
        if answer is None:
            return
        answer.cached = line.cached if answer.cached is None else answer.cached
        piece = answer.writer.add(line.tokens)
        answer.seen += len(piece.tokens)
        scores = line.scores[: len(piece.tokens)]
        self._send(name, piece._replace(cached=answer.cached, scores=scores))

    def _bring_back(self, moved: Moved, received: tuple[int, ...], reason: str) -> None:
        """Bring a request in with its content; without room or after more tokens, compute again."""
        name = moved.prompt.id
        if name not in self._answers:
            return
        LOG.warning("request %s comes back from the other server: %s", name, reason)
        self._answers[name].moved = False
        again = moved._replace(
            tokens=moved.tokens + received, computed=0, drafts=(), content=None, experts=None
        )
        try:
            if received or self._engine.bring_in(moved):
                self._engine.bring_in(again)  # waits in the line, which is never refused here
        except Exception as error:
            LOG.exception("a request cannot come back")
            self._fail([name], _model_failed(f"{type(error).__name__}: {error}"))

    def _experts(self, output: Output) -> Recorded | None:
        if output.done:
            return output.experts
        return routed(self._engine.cache, self._engine.scheduler.requests[output.request_id])


def _model_failed(why: str) -> ApiError:
    return ApiError(500, f"the model failed: {why}", kind=SERVER, code="model_failed")


def _never_fits(order: ServedRequest, needed: int, available: int) -> str:
    return (
        f"{len(order.prepared.tokens)} prompt tokens and {order.most} of the answer need {needed} "
        f"blocks, the whole cache has {available}; ask for less"
    )
