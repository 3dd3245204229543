"""An engine: requests in, tokens out, one step at a time. Which model runs is not its business."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import monotonic
from typing import NamedTuple

from kvproof.reference.cache.cache_manager import CacheManager
from kvproof.reference.cache.request_state import Refusal
from kvproof.reference.cache.routed_experts import Recorded
from kvproof.reference.cache.sessions import Sessions, Turn
from kvproof.reference.core.cache_policy import decide
from kvproof.reference.core.identity import (
    DEFAULT_NAMESPACE,
    IdentityError,
    Namespace,
    Span,
    check_spans,
    token_bytes,
)
from kvproof.reference.engine.engine_config import EngineConfig
from kvproof.reference.engine.migration import Moved, bring_in, take_out
from kvproof.reference.engine.request_queue import Prompt
from kvproof.reference.engine.scheduler import Decision, Scheduler
from kvproof.reference.model.interface import Model, Sleeper
from kvproof.reference.stores.object_store import ObjectStore
from kvproof.reference.tiers.config import TierOptions, check_remote, read_size
from kvproof.reference.tiers.tiers import Tiers


class Output(NamedTuple):
    """Output of a request so far."""

    request_id: str
    tokens: tuple[int, ...]
    done: bool
    experts: Recorded | None = None
    """Experts of a finished request: those of all its tokens but the last (R2)."""


class Stuck(RuntimeError):
    """Requests wait and nothing can run, because blocks are held from outside, by pins."""


def _tiers(
    config: EngineConfig, cache: CacheManager, model: Model, remote: ObjectStore | None
) -> Tiers | None:
    if remote is not None:
        check_remote(config.host_tier, weights=config.weights)
    if not read_size(config.host_tier):
        return None
    options = TierOptions(config.host_tier, config.disk_tier, config.weights)
    return Tiers(options, cache, model, remote=remote)


class Engine:
    """Continuous batching over one cache manager and one model. Single-threaded.

    `remote` keeps what host memory and disk evict, also for other engines of equal weights; it
    needs `host_tier` and `weights`. Raises ConfigError if they are missing. Sessions expire by
    `clock`, in seconds.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: Model,
        *,
        remote: ObjectStore | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.config = config
        self.model = model
        self.cache = CacheManager(config.cache)
        self.tiers = _tiers(config, self.cache, model, remote)
        self.sessions = Sessions(self.cache, clock)
        """Open one, fork it, and name it in `add_request`; close it by `close_session` (Q7)."""
        self.scheduler = Scheduler(self.cache, config, self.sessions)
        self.stuck = False
        """Whether requests are left, and yet the last step found nothing to do."""
        self.asleep = False
        """Whether the model's memory is given up: requests wait, and no step computes (Q6)."""

    def add_request(
        self,
        request_id: str,
        tokens: Sequence[int],
        *,
        max_new_tokens: int,
        namespace: Namespace = DEFAULT_NAMESPACE,
        spans: Sequence[Span] = (),
        read: bool = True,
        store: bool = True,
        session: str | None = None,
    ) -> Refusal | None:
        """Accept a request, or refuse one that can never fit (B8).

        With a session, its history comes before the tokens, and its namespace is used. Raises
        IdentityError for malformed input and for an id that is being served (H8), KeyError for a
        session that is not open, RuntimeError for one that runs a turn.
        """
        if not tokens or max_new_tokens < 1 or request_id in self.scheduler.requests:
            raise IdentityError(
                f"request {request_id!r} with {len(tokens)} tokens and max_new_tokens "
                f"{max_new_tokens}: needs an id of its own and at least one token of each"
            )
        token_bytes(known := tuple(tokens))
        check_spans(spans, len(tokens))
        access = decide(enabled=self.config.cache.enable_prefix_caching, read=read, store=store)
        prompt = Prompt(request_id, known, max_new_tokens, namespace, tuple(spans), access)
        return self.scheduler.add(prompt) if session is None else self._add_turn(session, prompt)

    def _add_turn(self, session: str, own: Prompt) -> Refusal | None:
        turn = self.sessions.enter(session, own.id, own.tokens, own.spans)
        tokens = tuple(memoryview(turn.tokens).cast("i"))
        prompt = replace(own, tokens=tokens, spans=turn.spans, namespace=turn.namespace)
        refusal = self.scheduler.add(prompt)
        if refusal:
            self.sessions.leave(own.id)
        return refusal

    def close_session(self, session: str) -> bool:
        """Cancel its turn and forget a session; returns whether it was open."""
        found = self.sessions.open_ones.get(session)
        if found is not None and found.turn is not None:
            self.cancel(found.turn)
        return self.sessions.close(session)

    def step(self) -> list[Output]:
        """Launch a step if one more may be in flight, then wait for the oldest if it must."""
        self.sessions.expire()
        if self.asleep:
            return []
        scheduler, most = self.scheduler, self.config.steps_in_flight
        planned = scheduler.schedule() if len(scheduler.steps) < most else None
        if planned:
            self.model.launch(*planned)
        self.stuck = self.busy and not scheduler.steps and not self._loading
        if not scheduler.steps or (planned and len(scheduler.steps) < most):
            return []
        return self._complete()

    def finish_steps(self) -> list[Output]:
        """Wait for all steps in flight, without launching another one."""
        outputs: list[Output] = []
        while self.scheduler.steps:
            outputs += self._complete()
        return outputs

    @property
    def _loading(self) -> bool:
        return self.tiers is not None and self.tiers.num_loading > 0

    def _complete(self) -> list[Output]:
        step = next(iter(self.scheduler.steps))
        answered = self.scheduler.complete(step, self.model.finish(step))
        for request in (each for each in answered if each.done and self.sessions.runs(each.id)):
            own = request.prompt
            self.sessions.leave(
                request.id, Turn(token_bytes(request.tokens), own.spans, own.namespace)
            )
        if self.config.poison_freed:
            self.model.forget(self.cache.pool.free_ids())
        return [
            Output(request.id, request.answer, request.done, request.experts)
            for request in answered
        ]

    def cancel(self, request_id: str) -> bool:
        """Forget a request; safe at any time and idempotent (C6)."""
        if self.tiers is not None:
            self.tiers.forget(request_id)
        known = self.scheduler.cancel(request_id)
        self.sessions.leave(request_id)
        return known

    def take_out(self, request_id: str) -> Moved | None:
        """Take a request with its content out, to be brought into another engine (C5).

        Returns None if the request is unknown, one of its steps is in flight, it is a session's, or
        the engine sleeps.
        """
        stays = self.asleep or self.sessions.runs(request_id)
        return None if stays else take_out(self, request_id)

    def bring_in(self, moved: Moved) -> Refusal | None:
        """Continue a moved request in this engine; a refusal has changed nothing (C5).

        The models of both engines have equal weights and layouts; one that sleeps has no space.
        Raises IdentityError for an id that is being served here (H8).
        """
        return Refusal("no_space", 1, 0) if self.asleep else bring_in(self, moved)

    def reset(self) -> None:
        """The weights have changed: nothing computed so far is reused from now on (H6)."""
        self.scheduler.weights += 1
        self.cache.reset()

    def sleep(self, *, keep: bool = True) -> list[Output]:
        """Give the model's memory up until `wake`; returns the answers of steps in flight (Q6).

        With `keep`, its content waits in host memory, and requests then go on as they were.
        Without, running requests begin anew, and nothing computed so far is reused. Requests
        are accepted meanwhile; nothing may be evicted. Raises ValueError for a model that
        cannot sleep, RuntimeError if the engine sleeps.
        """
        if self.asleep or not isinstance(self.model, Sleeper):
            name = type(self.model).__name__
            raise RuntimeError("sleeps") if self.asleep else ValueError(f"{name} cannot sleep")
        outputs = self.finish_steps()
        if not keep:
            for request in [*self.scheduler.running.values()]:
                self.scheduler.preempt(request)
            self.cache.reset()
        self.model.sleep(keep=keep)
        self.asleep = True
        return outputs

    def wake(self) -> None:
        """Take memory again and go on; an engine that is awake stays as it is (Q6)."""
        if self.asleep and isinstance(self.model, Sleeper):
            self.model.wake()
        self.asleep = False

    def close(self) -> None:
        """Leave the cache to the disk, and the folder to other processes; idempotent (G7)."""
        self.wake()
        if self.tiers is not None:
            self.cache.evict(self.cache.pool.num_blocks)
            self.tiers.close()

    @property
    def busy(self) -> bool:
        """Return whether requests or steps are left."""
        return bool(self.scheduler.requests or self.scheduler.steps)

    def generate(
        self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int
    ) -> list[tuple[int, ...]]:
        """Answer prompts; raises Stuck if nothing can run, IdentityError if one never fits."""
        for index, tokens in enumerate(prompts):
            refusal = self.add_request(str(index), tokens, max_new_tokens=max_new_tokens)
            if refusal:
                raise IdentityError(f"prompt {index} never fits: {refusal}")
        answers: dict[str, tuple[int, ...]] = {}
        while self.busy:
            answers |= {output.request_id: output.tokens for output in self.step() if output.done}
            if self.stuck:
                raise Stuck(f"{len(self.scheduler.requests)} requests wait and nothing can run")
        return [answers[str(index)] for index in range(len(prompts))]

    def decisions(self) -> list[Decision]:
        """Return the scheduler's decisions since the start; equal for equal input (C7)."""
        return self.scheduler.decisions
