"""An engine: requests in, tokens out, one step at a time. Which model runs is not its business."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvproof.reference.access import decide
from kvproof.reference.cache_manager import CacheManager
from kvproof.reference.engine_config import EngineConfig
from kvproof.reference.expert_history import Recorded
from kvproof.reference.identity import (
    DEFAULT_NAMESPACE,
    IdentityError,
    Namespace,
    Span,
    check_spans,
)
from kvproof.reference.request_queue import Prompt
from kvproof.reference.requests import Refusal
from kvproof.reference.scheduler import Decision, Scheduler
from kvproof.reference.tiers.config import read_size
from kvproof.reference.tiers.tiered import Tiered
from kvproof.reference.tiers.tiers import Tiers
from kvproof.reference.work import Model


class Output(NamedTuple):
    """What a request has got so far."""

    request_id: str
    tokens: tuple[int, ...]
    """The whole answer up to now."""
    done: bool
    experts: Recorded | None = None
    """Of a finished request: the experts of all its tokens but the last (R2)."""


class Stuck(RuntimeError):
    """Requests wait and nothing can run, because blocks are held from outside, by pins."""


class Engine:
    """Continuous batching over one cache manager and one model. Single-threaded."""

    def __init__(self, config: EngineConfig, model: Model) -> None:
        self.config = config
        self.model = model
        self.cache = CacheManager(config.cache)
        self.tiers = Tiers(config, self.cache, model) if read_size(config.host_tier) else None
        front = Tiered(self.cache, self.tiers).as_manager if self.tiers else self.cache
        self.scheduler = Scheduler(front, config)
        self.stuck = False
        """Whether requests are left, and yet the last step found nothing to do."""

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
    ) -> Refusal | None:
        """Accept a request, or refuse one that can never fit (B8).

        Raises IdentityError for malformed input and for an id that is being served (H8).
        """
        if not tokens or max_new_tokens < 1 or request_id in self.scheduler.requests:
            raise IdentityError(
                f"request {request_id!r} with {len(tokens)} tokens and max_new_tokens "
                f"{max_new_tokens}: needs an id of its own and at least one token of each"
            )
        check_spans(spans, len(tokens))
        access = decide(enabled=self.config.cache.enable_prefix_caching, read=read, store=store)
        return self.scheduler.add(
            Prompt(request_id, tuple(tokens), max_new_tokens, namespace, tuple(spans), access)
        )

    def step(self) -> list[Output]:
        """Launch a step if one more may be in flight, then wait for the oldest if it must."""
        scheduler, most = self.scheduler, self.config.steps_in_flight
        planned = scheduler.schedule() if len(scheduler.steps) < most else None
        if planned:
            self.model.launch(*planned)
        self.stuck = self.busy and not scheduler.steps and not self._loading
        if not scheduler.steps or (planned and len(scheduler.steps) < most):
            return []
        return self._complete()

    @property
    def _loading(self) -> bool:
        return self.tiers is not None and self.tiers.num_loading > 0

    def _complete(self) -> list[Output]:
        step = next(iter(self.scheduler.steps))
        answered = self.scheduler.complete(step, self.model.finish(step))
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
        return self.scheduler.cancel(request_id)

    def reset(self) -> None:
        """The weights have changed: nothing computed so far is reused from now on (H6)."""
        self.scheduler.weights += 1
        self.cache.reset()

    def close(self) -> None:
        """Leave what is cached to the disk, and the folder to other processes; idempotent (G7)."""
        if self.tiers is not None:
            self.cache.evict(self.cache.pool.num_blocks)
            self.tiers.close()

    @property
    def busy(self) -> bool:
        """Tell whether requests or steps are left."""
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
        """Return what the scheduler decided since the start; equal for equal input (C7)."""
        return self.scheduler.decisions
