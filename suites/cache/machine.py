"""The state machine that drives any target through histories of domain verbs.

Pools are so small that refusal and eviction happen all the time, the alphabet so small that
prompts share prefixes by accident, and every admission is either fresh or a fork of an earlier
prompt, drawn inside the rule: that finds more than bundles of prompts do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvproof.harness import operations as ops
from kvproof.harness.handles import Handle
from kvproof.harness.session import Session
from kvproof.harness.target import Request
from kvproof.suites.cache.layouts import any_configuration, configurations
from kvproof.suites.cache.prompts import LARGE_ALPHABET, TINY_ALPHABET, Prompts
from kvproof.suites.property import Level


class CacheMachine(RuleBasedStateMachine):
    """Subclassed per exploration; `session` judges every step.

    What only the level `full` draws is drawn behind `self.full`: the core draws the same with
    and without it.
    """

    handle: ClassVar[Handle]
    level: ClassVar[Level] = "core"
    session: Session

    def __init__(self) -> None:
        super().__init__()
        self._preempted: dict[str, Request] = {}
        self._pins: list[str] = []
        self._following = False
        """Whether the request being served follows another one into its media."""
        self._routed: bool | None = None
        """Whether steps complete with expert rows; None: it is drawn."""

    @initialize(data=st.data())
    def create(self, data: Any) -> None:
        """Draw a pool and an alphabet."""
        profile = self.handle.profile
        self._data = data
        configs = any_configuration if self.full else configurations
        self.config = data.draw(configs(profile))
        alphabet = LARGE_ALPHABET if data.draw(st.integers(0, 7)) == 7 else TINY_ALPHABET
        self.prompts = Prompts(profile, self.config, alphabet, full=self.full)
        self.session = self.open()

    @property
    def full(self) -> bool:
        """Whether groups, drafts and the like are drawn."""
        return self.level == "full"

    def open(self) -> Session:
        """Make a target with the drawn pool."""
        return Session(self.handle.create(self.config), self.config)

    def apply(self, operation: ops.Operation) -> None:
        """Run and judge one operation."""
        self.session.apply(operation)

    # --- rules: verbs of the domain ---

    @rule(data=st.data())
    def admit(self, data: Any) -> None:
        """Admit a fresh prompt, a fork, or a variant of an earlier one."""
        request = self.prompts.request(data)
        chunk = data.draw(st.integers(0, 7))
        compute = None if chunk < 5 else data.draw(st.integers(1, 2 * self.config.block_size))
        self._admit(request, compute)

    def _admit(self, request: Request, compute: int | None = None) -> None:
        self._make_room_in_flight()
        self.apply(ops.Admit(request, compute))
        if request.id in self.session.live:
            self.prompts.seen.append(request)

    def _make_room_in_flight(self) -> None:
        if len(self.session.steps) >= max(1, self.handle.profile.in_flight_steps):
            self._complete()

    def _complete(self) -> None:
        """Finish the oldest step; some of its drafts stay, and its expert rows may be missing."""
        accepted, routed = None, True
        if self.full:
            drafts = next(iter(self.session.steps.values())).drafts
            accepted = self._data.draw(st.integers(0, drafts)) if drafts else None
            routed = not self.handle.profile.experts or self._draw_routed()
        self.apply(ops.Complete(accepted, routed))

    def _draw_routed(self) -> bool:
        if self._routed is not None:
            return self._routed
        often: bool = self._data.draw(st.integers(0, 3)) < 3
        return often

    @rule(data=st.data(), count=st.integers(1, 4))
    def serve(self, data: Any, count: int) -> None:
        """Serve whole requests one after the other, which fills the cache quickly."""
        for _ in range(count):
            self._serve(data, self.prompts.request(data))
        if self.full and self.handle.profile.experts and data.draw(st.integers(0, 3)) == 3:
            self._fill(self.prompts.plain(data, 2))
        if any(group.kind == "window" for group in self.config.groups) and self.full:
            self._slide(self.prompts.plain(data, 4), count)
        if any(group.draft for group in self.config.groups) and self.full:
            self._slide(self.prompts.plain(data, 4), 0)
        if any(group.kind == "state" for group in self.config.groups) and self.full:
            self._leave(data, self.prompts.plain(data, 4).tokens)
        if self.full and self.handle.profile.batch and data.draw(st.booleans()):
            self._batch(data)

    def _fill(self, request: Request) -> None:
        """Compute a prompt without expert rows, once more with them, and ask a third for all."""
        self._drain()
        again = not self.handle.profile.no_read
        for read, self._routed in ((True, False), (again, True), (True, True)):
            name = self.prompts.name()
            self._admit(replace(request, id=name, read=read))
            self._drain()
            self._compute_rest(name)
            if name in self.session.live:
                self.apply(ops.Experts(name))
                self.apply(ops.Finish(name))
        self._routed = None

    def _leave(self, data: Any, tokens: tuple[int, ...]) -> None:
        """Serve a prompt, and one that leaves it in the middle, where no state was saved."""
        other = tokens[: len(tokens) // 2 + 1] + self.prompts.tokens(data, len(tokens))
        for served in (tokens, other):
            name = self.prompts.name()
            self._admit(Request(name, served))
            self._drain()
            self._compute_rest(name)
            if name in self.session.live:
                self.apply(ops.Finish(name))

    def _batch(self, data: Any) -> None:
        """Read the tables of prompts of different lengths together."""
        for most in (1, 3):
            self._admit(self.prompts.plain(data, most))
        if self.session.live:
            self.apply(ops.ReadBatch(tuple(sorted(self.session.live)[-3:])))

    def _slide(self, request: Request, count: int) -> None:
        """Let windows move over a prompt, evict what they have left behind, and ask again."""
        if not self.handle.profile.evict:
            return
        for name in (request.id, self.prompts.name()):
            self._admit(replace(request, id=name), self.config.block_size)
            self._drain()
            self._compute_rest(name)
            if name in self.session.live:
                self.apply(ops.Finish(name))
            if name == request.id and count:
                self.apply(ops.Evict(count))

    def _serve(self, data: Any, request: Request) -> None:
        self._admit(request)
        self._drain()
        self._compute_rest(request.id)
        if self.full:
            self._decode(data, request.id)
        if request.id in self.session.live:
            if self.config.partial_blocks:  # whose end others may hit
                self.prompts.seen.append(self.session.live[request.id].request)
            self.apply(ops.Finish(request.id))
        if self.full and self.prompts.seen and not self._following:
            self._follow(data, self.prompts.seen[-1])

    def _follow(self, data: Any, last: Request) -> None:
        """Serve a request that leaves the last one somewhere, or goes on from its drafts."""
        drafted = sum(one.id == last.id for one in self.prompts.seen) > 1
        plain = not (self.config.groups or self.config.partial_blocks or last.spans or drafted)
        if plain or (not self.config.partial_blocks and data.draw(st.booleans())):
            return
        self._following = True  # while all of it is still there
        self._serve(data, self.prompts.fork(data, last))
        self._following = False

    def _drain(self) -> None:
        while self.session.steps:
            self._complete()

    def _compute_rest(self, name: str) -> None:
        """Go on where a step was cut short, at a checkpoint or before a span."""
        while name in self.session.live:
            live = self.session.live[name]
            if live.computed == len(live.request.tokens):
                return
            self.apply(ops.Extend(name))
            if not self.session.steps:
                return  # it was refused
            self._drain()

    def _decode(self, data: Any, name: str) -> None:
        """Now and then generate some tokens, with drafts or without, and ask for expert rows."""
        for _ in range(data.draw(st.sampled_from((0, 0, 1, 3)))):
            if name not in self.session.live:
                return
            tokens = self.prompts.tokens(data, data.draw(st.integers(1, self.config.block_size)))
            self._extend(name, tokens, None, self.prompts.drafts(data))
            self._drain()
            self._compute_rest(name)
        routed = self.handle.profile.experts and name in self.session.live
        if routed and data.draw(st.booleans()):
            self.apply(ops.Experts(name))

    @precondition(lambda self: any(not live.drafts for live in self.session.live.values()))
    @rule(data=st.data())
    def extend(self, data: Any) -> None:
        """Decode, or go on with a prefill."""
        name = self._draw_live(data, drafting=False)
        live = self.session.live[name]
        pending = len(live.request.tokens) - live.computed
        count = data.draw(st.integers(0 if pending else 1, 2 * self.config.block_size))
        tokens = self.prompts.tokens(data, count) if count else ()
        compute = None if data.draw(st.booleans()) else 1
        drafts = self.prompts.drafts(data)
        self._make_room_in_flight()
        self._extend(name, tokens, None if drafts else compute, drafts)

    def _extend(
        self, name: str, tokens: tuple[int, ...], compute: int | None, drafts: tuple[int, ...]
    ) -> None:
        self.apply(ops.Extend(name, tokens, compute, drafts))
        if drafts and self.session.live[name].drafts:
            self.prompts.seen.append(self.session.live[name].request)  # as if they would stay

    def _draw_live(self, data: Any, *, drafting: bool = True) -> str:
        live = {name for name, one in self.session.live.items() if drafting or not one.drafts}
        names: list[str] = sorted(live, key=lambda name: int(name[1:]))
        index: int = data.draw(st.integers(0, len(names) - 1))
        return names[index]

    @precondition(lambda self: self.session.steps)
    @rule()
    def complete(self) -> None:
        """Finish the oldest step in flight."""
        self._complete()

    @precondition(lambda self: self.session.live)
    @rule(data=st.data(), verb=st.sampled_from((ops.Finish, ops.Finish, ops.Cancel, ops.Preempt)))
    def release(self, data: Any, verb: type[ops.Finish | ops.Cancel | ops.Preempt]) -> None:
        """Let a request go, also while its step is in flight; a preempted one may come back."""
        name = self._draw_live(data)
        if verb is ops.Preempt:
            live = self.session.live[name]
            known = live.request.tokens[: len(live.request.tokens) - live.drafts]
            self._preempted[name] = replace(live.request, tokens=known)
        self.apply(verb(name))

    @precondition(lambda self: self._preempted)
    @rule(data=st.data())
    def resume(self, data: Any) -> None:
        """Bring a preempted request back with all its tokens."""
        name = data.draw(st.sampled_from(sorted(self._preempted)))
        self._admit(replace(self._preempted[name], resumed=True))
        if name in self.session.live:
            del self._preempted[name]

    @precondition(lambda self: self.session.live or self.prompts.seen)
    @rule(data=st.data())
    def ask(self, data: Any) -> None:
        """Look something up, or read the padded tables of some running requests."""
        profile, names = self.handle.profile, sorted(self.session.live)
        settled = [name for name in names if not self.session.live[name].drafts]
        if self.full and profile.experts and settled and data.draw(st.booleans()):
            self.apply(ops.Experts(data.draw(st.sampled_from(settled))))
        elif profile.batch and names and data.draw(st.booleans()):
            count = data.draw(st.integers(1, min(3, len(names))))
            self.apply(ops.ReadBatch(tuple(names[-count:])))
        elif profile.lookup and self.prompts.seen:
            self.apply(ops.Lookup(self.prompts.variant(data)))

    @rule(data=st.data(), count=st.integers(1, 3))
    def disturb(self, data: Any, count: int) -> None:
        """Do what happens now and then: evict, reset, pin, unpin, release or offer nonsense."""
        profile = self.handle.profile
        choices = {
            "evict": profile.evict,
            "reset": True,
            "release nothing": True,
            "malformed": profile.validates,
            "pin": profile.pins and self.prompts.seen,
            "unpin": self._pins,
        }
        names = [name for name, ok in choices.items() if ok]
        if self.full and self._pins:
            names += ["unpin"] * 3
        choice = data.draw(st.sampled_from(names))
        if choice == "evict":
            self.apply(ops.Evict(count))
        elif choice == "reset":
            self.apply(ops.Reset())
        elif choice == "release nothing":
            self.apply(ops.Finish("r0" if "r0" not in self.session.live else "gone"))
        elif choice == "malformed":
            self.apply(ops.Admit(self.prompts.malformed(data)))
        elif choice == "pin":
            self._pins.append(self.prompts.name())
            self.apply(ops.Pin(replace(self.prompts.old(data), id=self._pins[-1])))
            if self.full and data.draw(st.booleans()):
                self.apply(ops.Unpin(self._pins.pop()))
        elif choice == "unpin":
            self.apply(ops.Unpin(self._pins.pop(0)))

    @precondition(lambda self: self.session.steps)
    @rule(chance=st.integers(0, 2))
    def reset_in_flight(self, chance: int) -> None:
        """Begin a new epoch under a running step, whose results are then stale."""
        if chance == 2:
            self.apply(ops.Reset())

    @invariant()
    def checks(self) -> None:
        """Everything is judged inside `Session.apply`; one invariant keeps reproducers short."""

    def teardown(self) -> None:
        """Give the target back."""
        if hasattr(self, "session"):
            self.session.target.close()
