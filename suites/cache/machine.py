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
from kvproof.harness.layout import Layout
from kvproof.harness.session import Session
from kvproof.harness.target import Namespace, Profile, Request, Span, TargetConfig
from kvproof.suites.cache.layouts import layouts
from kvproof.suites.property import Level

TINY_ALPHABET = 2
LARGE_ALPHABET = 50_000
MAX_BLOCKS = 9
"""Blocks of the largest pool drawn, beside the null block."""


def configurations(profile: Profile) -> st.SearchStrategy[TargetConfig]:
    """Pools of 2 to 9 blocks, mostly of the smallest sizes that the target takes."""
    sizes = sorted(profile.block_sizes)

    @st.composite
    def draw_config(draw: st.DrawFn) -> TargetConfig:
        size = draw(st.sampled_from(sizes[:4] if draw(st.integers(0, 7)) < 7 else sizes))
        ratios = [r for r in range(1, profile.max_kernel_ratio + 1) if size % r == 0]
        ratio = draw(st.sampled_from(ratios))
        return TargetConfig(
            num_blocks=draw(st.integers(2, MAX_BLOCKS)) + 1,  # and the null block
            block_size=size,
            kernel_block_size=size // ratio if ratio > 1 else 0,
            prefix_caching=draw(st.integers(0, 15)) != 15,
        )

    return draw_config()


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
        self._count = 0
        self._admitted: list[Request] = []
        self._preempted: dict[str, Request] = {}
        self._pins: list[str] = []

    @initialize(data=st.data())
    def create(self, data: Any) -> None:
        """Draw a pool and an alphabet."""
        profile = self.handle.profile
        self._data = data
        single = not self.full or data.draw(st.integers(0, 3)) == 0
        self.config = data.draw(configurations(profile) if single else layouts(profile))
        layout = Layout.of(self.config)
        self._unit = layout.unit
        self._room = self.config.num_blocks  # in units
        if not layout.single:
            self._room = self.config.num_blocks // max(1, layout.unit_blocks) + 1
        large = data.draw(st.integers(0, 7)) == 7
        self._tokens = st.integers(0, (LARGE_ALPHABET if large else TINY_ALPHABET) - 1)
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

    # --- drawing ---

    def _draw_tokens(self, data: Any) -> tuple[int, ...]:
        """Draw a fresh prompt, or one that begins like an earlier one; now and then a huge one."""
        size = self._unit
        most = (self._room + 1) * size
        head: tuple[int, ...] = ()
        if self._admitted and data.draw(st.integers(0, 7)):
            head = self._draw_old(data).tokens
            if data.draw(st.booleans()):
                head = head[: data.draw(st.integers(0, len(head)))]
        huge = data.draw(st.integers(0, 15)) == 15
        blocks = data.draw(st.integers(0, self._room if huge else 2))
        length = blocks * size + data.draw(st.integers(0, size))
        return (head + self._draw_list(data, length))[:most] or (0,)

    def _draw_list(self, data: Any, length: int) -> tuple[int, ...]:
        """Draw a few tokens and repeat them: long prompts from little entropy."""
        if not length:
            return ()
        period = data.draw(st.lists(self._tokens, min_size=1, max_size=min(length, 6)))
        return tuple(period[i % len(period)] for i in range(length))

    def _draw_old(self, data: Any) -> Request:
        """Return an earlier request, more often a recent one, which may still be cached."""
        recent = self._admitted[-1 : -1 - data.draw(st.sampled_from((1, 2, 4, 12))) : -1]
        index: int = data.draw(st.integers(0, len(recent) - 1))
        return recent[index]

    def _draw_namespace(self, data: Any) -> Namespace:
        profile = self.handle.profile
        spaces = [Namespace()]
        if profile.adapters:
            spaces += [Namespace(adapter="x", adapter_version="1")]
            spaces += [Namespace(adapter="x", adapter_version="2")]
        if profile.salts:
            spaces += [Namespace(salt="x")]
        kind = data.draw(st.integers(0, 11))
        return spaces[kind % len(spaces)] if kind > 7 else spaces[0]

    def _draw_spans(self, data: Any, tokens: tuple[int, ...]) -> tuple[Span, ...]:
        if not self.handle.profile.spans or data.draw(st.integers(0, 3)) != 3:
            return ()
        if self.full:
            return self._draw_run_of_spans(data, len(tokens))
        count, position, spans = data.draw(st.integers(1, 2)), 0, []
        for _ in range(count):
            start = position + data.draw(st.integers(0, self.config.block_size))
            content = data.draw(st.sampled_from(("7f3c", "a91e")))
            length = 1 + data.draw(st.integers(0, 2 * self.config.block_size))
            if "length" not in self.handle.profile.span_identity:
                length = 1 + int(content, 16) % (2 * self.config.block_size)
            if start + length > len(tokens):
                break
            kind = "image"
            if "kind" in self.handle.profile.span_identity:
                kind = data.draw(st.sampled_from(("image", "audio")))
            spans.append(Span(kind, start, length, content))
            position = start + length
        return tuple(spans)

    def _draw_run_of_spans(self, data: Any, count: int) -> tuple[Span, ...]:
        """Draw up to five spans, many without a gap between them, of all lengths in blocks."""
        unit, identity = self._unit, self.handle.profile.span_identity
        position, spans = data.draw(st.integers(0, unit)), []
        for _ in range(data.draw(st.integers(1, 5))):
            content = data.draw(st.sampled_from(("7f3c", "a91e")))
            border = -position % unit
            long = data.draw(st.sampled_from((1, 2, unit, border, border + 2 * unit, 3 * unit + 1)))
            if "length" not in identity:
                long = 1 + int(content, 16) % (3 * unit)
            if long < 1 or position + long > count:
                break
            kinds = ("image", "audio") if "kind" in identity else ("image",)
            kind = data.draw(st.sampled_from(kinds))
            spans.append(Span(kind, position, long, content))
            position += long + data.draw(st.sampled_from((0, 0, 0, 1, unit)))
        return tuple(spans)

    def _draw_fork(self, data: Any) -> Request:
        """Draw a prompt that leaves an earlier one somewhere, also inside one of its spans."""
        old = self._draw_old(data)
        cut = data.draw(st.integers(1, len(old.tokens)))
        more = self._draw_list(data, data.draw(st.integers(0, 2 * self._unit)))
        tokens = old.tokens[:cut] + more
        spans = tuple(s for s in old.spans if s.start + s.length <= len(tokens))
        return Request(self._name(), tokens, old.namespace, spans)

    def _draw_request(self, data: Any) -> Request:
        profile = self.handle.profile
        if self.full and self._admitted and data.draw(st.integers(0, 3)) == 3:
            return self._draw_fork(data)
        if self._admitted and data.draw(st.integers(0, 5)) == 5:
            return replace(self._variant(data), id=self._name(), resumed=False)
        tokens = self._draw_tokens(data)
        special = data.draw(st.integers(0, 11))
        return Request(
            id=self._name(),
            tokens=tokens,
            namespace=self._draw_namespace(data),
            spans=self._draw_spans(data, tokens),
            read=not (profile.no_read and special == 11),
            store=not (profile.no_store and special == 10),
        )

    def _variant(self, data: Any) -> Request:
        """Return an earlier request that differs in at most one identity field (H1, H2)."""
        old = replace(self._draw_old(data), read=True, store=True)
        choice = data.draw(st.integers(0, 3))
        if choice == 1:
            return replace(old, namespace=self._draw_namespace(data))
        if choice == 2 and old.spans:
            first = old.spans[0]
            other = "a91e" if first.content == "7f3c" else "7f3c"
            if "length" in self.handle.profile.span_identity:
                return replace(old, spans=(replace(first, content=other), *old.spans[1:]))
        if choice == 3 and old.spans:
            return replace(old, spans=())
        return old

    def _name(self) -> str:
        self._count += 1
        return f"r{self._count - 1}"

    # --- rules: verbs of the domain ---

    @rule(data=st.data())
    def admit(self, data: Any) -> None:
        """Admit a fresh prompt, a fork, or a variant of an earlier one."""
        request = self._draw_request(data)
        chunk = data.draw(st.integers(0, 7))
        compute = None if chunk < 5 else data.draw(st.integers(1, 2 * self.config.block_size))
        self._admit(request, compute)

    def _admit(self, request: Request, compute: int | None = None) -> None:
        self._make_room_in_flight()
        self.apply(ops.Admit(request, compute))
        if request.id in self.session.live:
            self._admitted.append(request)

    def _make_room_in_flight(self) -> None:
        if len(self.session.steps) >= max(1, self.handle.profile.in_flight_steps):
            self._complete()

    def _complete(self) -> None:
        """Finish the oldest step; some of its drafts stay, and its expert rows may be missing."""
        accepted, routed = None, True
        if self.full:
            drafts = next(iter(self.session.steps.values())).drafts
            accepted = self._data.draw(st.integers(0, drafts)) if drafts else None
            routed = not self.handle.profile.experts or self._data.draw(st.integers(0, 3)) < 3
        self.apply(ops.Complete(accepted, routed))

    @rule(data=st.data(), count=st.integers(1, 4))
    def serve(self, data: Any, count: int) -> None:
        """Serve whole requests one after the other, which fills the cache quickly."""
        for _ in range(count):
            request = self._draw_request(data)
            self._admit(request)
            self._drain()
            self._compute_rest(request.id)
            if request.id in self.session.live:
                self.apply(ops.Finish(request.id))

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

    @precondition(lambda self: any(not live.drafts for live in self.session.live.values()))
    @rule(data=st.data())
    def extend(self, data: Any) -> None:
        """Decode, or go on with a prefill."""
        name = self._draw_live(data, drafting=False)
        live = self.session.live[name]
        pending = len(live.request.tokens) - live.computed
        count = data.draw(st.integers(0 if pending else 1, 2 * self.config.block_size))
        tokens = self._draw_list(data, count) if count else ()
        compute = None if data.draw(st.booleans()) else 1
        drafts = self._draw_drafts(data)
        self._make_room_in_flight()
        self.apply(ops.Extend(name, tokens, None if drafts else compute, drafts))

    def _draw_drafts(self, data: Any) -> tuple[int, ...]:
        if not (self.full and self.handle.profile.drafts) or data.draw(st.booleans()):
            return ()
        return self._draw_list(data, data.draw(st.integers(1, self._unit + 1)))

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

    @precondition(lambda self: self.session.live or self._admitted)
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
        elif profile.lookup and self._admitted:
            self.apply(ops.Lookup(self._variant(data)))

    @rule(data=st.data(), count=st.integers(1, 3))
    def disturb(self, data: Any, count: int) -> None:
        """Do what happens now and then: evict, reset, pin, unpin, release or offer nonsense."""
        profile = self.handle.profile
        choices = {
            "evict": profile.evict,
            "reset": True,
            "release nothing": True,
            "malformed": profile.validates,
            "pin": profile.pins and self._admitted,
            "unpin": self._pins,
        }
        choice = data.draw(st.sampled_from([name for name, ok in choices.items() if ok]))
        if choice == "evict":
            self.apply(ops.Evict(count))
        elif choice == "reset":
            self.apply(ops.Reset())
        elif choice == "release nothing":
            self.apply(ops.Finish("r0" if "r0" not in self.session.live else "gone"))
        elif choice == "malformed":
            self.apply(ops.Admit(self._malformed(data)))
        elif choice == "pin":
            self._pins.append(self._name())
            self.apply(ops.Pin(replace(self._draw_old(data), id=self._pins[-1])))
        elif choice == "unpin":
            self.apply(ops.Unpin(self._pins.pop(0)))

    @precondition(lambda self: self.session.steps)
    @rule(chance=st.integers(0, 2))
    def reset_in_flight(self, chance: int) -> None:
        """Begin a new epoch under a running step, whose results are then stale."""
        if chance == 2:
            self.apply(ops.Reset())

    def _malformed(self, data: Any) -> Request:
        """Draw spans that no prompt can have."""
        spans = data.draw(
            st.sampled_from(
                (
                    (Span("image", 2, 2, "7f3c"), Span("image", 0, 1, "a91e")),
                    (Span("image", 0, 3, "7f3c"), Span("image", 2, 1, "a91e")),
                    (Span("image", 2, 9, "7f3c"),),
                    (Span("image", 1, 2, ""),),
                )
            )
        )
        return Request(self._name(), self._draw_list(data, 4), spans=spans)

    @invariant()
    def checks(self) -> None:
        """Everything is judged inside `Session.apply`; one invariant keeps reproducers short."""

    def teardown(self) -> None:
        """Give the target back."""
        if hasattr(self, "session"):
            self.session.target.close()
