"""Rules that drive any target through random histories.

Pools are so small that refusal and eviction happen all the time. The alphabet is so small that
prompts share prefixes by accident. Admissions are fresh or fork an earlier prompt inside the rule,
which finds more than bundles of prompts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvproof.harness.contract import operations as ops
from kvproof.harness.contract.factors import Row
from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Request
from kvproof.harness.session import Session
from kvproof.suites.conformance.driver import Driver
from kvproof.suites.conformance.profiles import CORE, WorkloadProfile, called
from kvproof.suites.conformance.prompts import LARGE_ALPHABET, TINY_ALPHABET, Prompts
from kvproof.suites.conformance.traffic import claimed, weights
from kvproof.suites.framework.component_suite import Draw
from kvproof.suites.framework.draws import integers
from kvproof.suites.framework.state_machine import SuiteStateMachine


class CacheRules(SuiteStateMachine):
    """Rules for the suite `cache`; the session judges every step."""

    target: ClassVar[Profile]
    profile: ClassVar[WorkloadProfile] = CORE
    fixed: ClassVar[Row]
    """Levels of factors that are no part of rows."""

    def __init__(self) -> None:
        super().__init__()
        self._preempted: dict[str, Request] = {}
        self._pins: list[str] = []
        self._following = False

    def created(self, draw: Draw) -> None:
        """Make prompts and a driver for the row of the configuration."""
        self.draw = draw
        self.config, row = self.session.config, {**self.fixed, **self.history.coverage.row}
        alphabet = LARGE_ALPHABET if row.get("alphabet") == "large" else TINY_ALPHABET
        chances, self.claimed = weights(row), claimed(self.target, row)
        self.called = called(row) if self.full else ()
        self.prompts = Prompts(self.claimed, self.config, alphabet, weights=chances, draw=draw)
        self.driver = Driver(
            self.session, self.claimed, chances, self.prompts, draw=draw, apply=self.operate
        )

    @property
    def session(self) -> Session:
        """The session that judges the history."""
        session: Session = self.history.machine.session
        return session

    @property
    def full(self) -> bool:
        """Whether groups, drafts and the like are drawn."""
        return self.profile is not CORE

    def operate(self, operation: ops.Operation) -> None:
        """Run and judge one operation."""
        self.apply(ops.name(operation), ops.compact(operation))

    @rule()
    def admit(self) -> None:
        """Admit a fresh prompt, a fork, or a variant of an earlier one."""
        request = self.prompts.request()
        chunk = self.draw(integers(0, 7))
        compute = None if chunk < 5 else self.draw(integers(1, 2 * self.config.block_size))
        self.driver.admit(request, compute)

    @rule(count=integers(1, 3))
    def serve(self, count: int) -> None:
        """Serve whole requests one after the other, which fills the cache quickly."""
        for _ in range(count):
            self._serve(self.prompts.request())
        every = [self.profile.scenarios, *([self.called] if self.called else [])]
        self.draw(st.sampled_from(self.draw(st.sampled_from(every))))(self.driver)

    def _serve(self, request: Request) -> None:
        self.driver.run(request)
        if self.full:
            self.driver.decode(request.id)
        self.driver.finish(request.id)
        if self.full and self.prompts.seen and not self._following:
            self._follow(self.prompts.seen[-1])

    def _follow(self, last: Request) -> None:
        """Serve a request that leaves the last one somewhere, or goes on from its drafts."""
        drafted = sum(one.id == last.id for one in self.prompts.seen) > 1
        plain = not (self.config.groups or self.config.partial_blocks or last.spans or drafted)
        if plain or (not self.config.partial_blocks and self.draw(st.booleans())):
            return
        self._following = True  # while all of it is still there
        self._serve(self.prompts.fork(last))
        self._following = False

    @precondition(lambda self: any(not live.drafts for live in self.session.live.values()))
    @rule()
    def extend(self) -> None:
        """Decode, or go on with a prefill."""
        name = self._draw_live(drafting=False)
        pending = self.driver.pending(name)
        count = self.draw(integers(0 if pending else 1, 2 * self.config.block_size))
        tokens = self.prompts.tokens(count) if count else ()
        compute = None if self.draw(st.booleans()) else 1
        drafts = self.prompts.drafts()
        self.driver.extend(name, tokens, None if drafts else compute, drafts)

    def _draw_live(self, *, drafting: bool = True) -> str:
        live = {name for name, one in self.session.live.items() if drafting or not one.drafts}
        names: list[str] = sorted(live, key=lambda name: int(name[1:]))
        index: int = self.draw(integers(0, len(names) - 1))
        return names[index]

    @precondition(lambda self: self.session.steps)
    @rule()
    def complete(self) -> None:
        """Finish the oldest step in flight."""
        self.driver.complete()

    @precondition(lambda self: self.session.live)
    @rule(verb=st.sampled_from((ops.Finish, ops.Finish, ops.Cancel, ops.Preempt)))
    def release(self, verb: type[ops.Finish | ops.Cancel | ops.Preempt]) -> None:
        """Release a request, also while its step is in flight; a preempted one may come back."""
        name = self._draw_live()
        if verb is ops.Preempt:
            live = self.session.live[name]
            known = live.request.tokens[: len(live.request.tokens) - live.drafts]
            self._preempted[name] = replace(live.request, tokens=known)
        self.operate(verb(name))

    @precondition(lambda self: self._preempted)
    @rule()
    def resume(self) -> None:
        """Bring a preempted request back with all its tokens."""
        name = self.draw(st.sampled_from(sorted(self._preempted)))
        if self.driver.admit(replace(self._preempted[name], resumed=True)):
            del self._preempted[name]

    @precondition(lambda self: self.session.live or self.prompts.seen)
    @rule()
    def ask(self) -> None:
        """Look something up, or read the padded tables of some running requests."""
        profile, names = self.claimed, sorted(self.session.live)
        settled = [name for name in names if not self.session.live[name].drafts]
        if self.full and profile.experts and settled and self.draw(st.booleans()):
            self.operate(ops.Experts(self.draw(st.sampled_from(settled))))
        elif profile.batch and names and self.draw(st.booleans()):
            rows = st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)
            self.operate(ops.ReadBatch(tuple(self.draw(rows))))
        elif profile.lookup and self.prompts.seen:
            self.operate(ops.Lookup(self.prompts.variant()))

    @rule(count=integers(1, 3))
    def disturb(self, count: int) -> None:
        """Run a rare operation: evict, reset, pin, unpin, release or malformed input."""
        profile = self.claimed
        choices = {
            "evict": profile.evict,
            "reset": True,
            "release nothing": True,
            "malformed": profile.validates,
            "pin": profile.pins and self.prompts.seen,
            "unpin": self._pins,
        }
        choice = self.draw(st.sampled_from([name for name, ok in choices.items() if ok]))
        if choice == "evict":
            self.operate(ops.Evict(count))
        elif choice == "reset":
            self.operate(ops.Reset())
        elif choice == "release nothing":
            self.operate(ops.Finish("r0" if "r0" not in self.session.live else "gone"))
        elif choice == "malformed":
            self.operate(ops.Admit(self.prompts.malformed()))
        elif choice == "pin":
            self._pins.append(self.prompts.name())
            self.operate(ops.Pin(replace(self.prompts.old(), id=self._pins[-1])))
        elif choice == "unpin":
            self.operate(ops.Unpin(self._pins.pop(0)))

    @precondition(lambda self: self.session.steps)
    @rule(chance=integers(0, 2))
    def reset_in_flight(self, chance: int) -> None:
        """Reset under a running step, whose results are then stale."""
        if chance == 2:
            self.operate(ops.Reset())
