"""Steps of rules and scenarios: admit, compute, extend and release requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import strategies as st

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Refused, Request
from kvproof.harness.session import Session
from kvproof.suites.conformance.prompts import Prompts
from kvproof.suites.conformance.traffic import EIGHTHS, Weights
from kvproof.suites.framework.component_suite import Draw
from kvproof.suites.framework.draws import integers, sampled_from

_FOR_GOOD = frozenset({"never_fits", "invalid"})
"""Reasons of refusals that no other request's end changes."""


class Driver:
    """Applies operations to one session; `apply` judges each, `profile` bounds them."""

    def __init__(
        self,
        session: Session,
        profile: Profile,
        weights: Weights,
        prompts: Prompts,
        *,
        draw: Draw,
        apply: Callable[[ops.Operation], None],
    ) -> None:
        self.session = session
        self.profile = profile
        self.config = session.config
        self.unit = session.layout.unit
        self.prompts = prompts
        self.draw = draw
        self.apply = apply
        self._weights = weights

    def admit(self, request: Request, compute: int | None = None) -> bool:
        """Admit a request, complete the steps that it may not overtake; returns if it got in.

        Where it has to wait, requests that run mostly end for it, the oldest first.
        """
        self.make_room_in_flight()
        self.apply(ops.Admit(request, compute))
        while self._waits() and self.session.live and self.draw(integers(0, EIGHTHS - 1)) > 1:
            self.drain()
            self.finish(next(iter(self.session.live)))
            self.apply(ops.Admit(request, compute))
        if request.id in self.session.live:
            self.prompts.seen.append(request)
        return request.id in self.session.live

    def _waits(self) -> bool:
        """Whether the last answer refuses a request for now."""
        _, answer = self.session.history[-1] if self.session.history else (None, None)
        return isinstance(answer, Refused) and answer.reason not in _FOR_GOOD

    def make_room_in_flight(self) -> None:
        """Complete the oldest step if no more may be in flight."""
        if len(self.session.steps) >= max(1, self.profile.in_flight_steps):
            self.complete()

    def complete(self, *, accepted: int | None = None, routed: bool | None = None) -> None:
        """Finish the oldest step; draws the accepted drafts and whether expert rows are missing."""
        drafts = next(iter(self.session.steps.values())).drafts
        if drafts and accepted is None:
            accepted = self.draw(integers(0, drafts))
        kept = min(accepted, drafts) if drafts and accepted is not None else None
        self.apply(ops.Complete(kept, self._routed() if routed is None else routed))

    def _routed(self) -> bool:
        """Draw whether a step completes with expert rows; it does where they do not matter."""
        if not (self._weights.unrouted and self.profile.experts):
            return True
        often: bool = self.draw(integers(0, EIGHTHS - 1)) >= self._weights.unrouted
        return often

    def drain(self, *, routed: bool | None = None) -> None:
        """Complete every step."""
        while self.session.steps:
            self.complete(routed=routed)

    def compute_rest(self, name: str, *, routed: bool | None = None) -> bool:
        """Compute the rest after a step cut short (checkpoint, span); returns whether it did."""
        self.drain(routed=routed)
        while pending := self.pending(name):
            self.apply(ops.Extend(name))
            if self.pending(name) == pending:
                return False  # it was refused
            self.drain(routed=routed)
        return name in self.session.live

    def pending(self, name: str) -> int:
        """Tokens of a request that no step computes yet; 0 if it is gone."""
        live = self.session.live.get(name)
        return len(live.request.tokens) - live.computed if live else 0

    def run(
        self, request: Request, compute: int | None = None, *, routed: bool | None = None
    ) -> bool:
        """Admit a request and compute all of its tokens; returns whether that came to an end."""
        return self.admit(request, compute) and self.compute_rest(request.id, routed=routed)

    def run_again(self, request: Request, *, routed: bool | None = None) -> str:
        """Run the same request under a new id, which is returned."""
        name = self.prompts.name()
        self.run(replace(request, id=name), routed=routed)
        return name

    def finish(self, name: str) -> None:
        """Release a request if it is still there."""
        if name in self.session.live:
            if self.config.partial_blocks:  # whose end others may hit
                self.prompts.seen.append(self.session.live[name].request)
            self.apply(ops.Finish(name))

    def serve(self, request: Request, compute: int | None = None) -> None:
        """Run a request and let it go."""
        self.run(request, compute)
        self.finish(request.id)

    def serve_again(self, request: Request) -> None:
        """Serve the same request under a new id."""
        self.finish(self.run_again(request))

    def extend(
        self,
        name: str,
        tokens: tuple[int, ...] = (),
        compute: int | None = None,
        drafts: tuple[int, ...] = (),
    ) -> None:
        """Extend a request; the continuation of its drafts becomes a prompt like any other."""
        self.make_room_in_flight()
        self.apply(ops.Extend(name, tokens, compute, drafts))
        if drafts and self.session.live[name].drafts:
            self.prompts.seen.append(self.session.live[name].request)

    def decode(self, name: str) -> None:
        """Generate tokens now and then, with or without drafts, and ask for expert rows."""
        for _ in range(self.draw(sampled_from((0, 0, 1, 3)))):
            if name not in self.session.live:
                return
            count = self.draw(integers(1, self.config.block_size))
            self.extend(name, self.prompts.tokens(count), None, self.prompts.drafts())
            self.compute_rest(name)
        routed = self.profile.experts and name in self.session.live
        if routed and self.draw(st.booleans()):
            self.apply(ops.Experts(name))
