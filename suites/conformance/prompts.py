"""Prompts that share prefixes by accident: fresh ones, forks and variants of earlier ones."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Namespace, Request, Span, TargetConfig
from kvproof.harness.oracle.group_layout import Layout
from kvproof.suites.conformance.traffic import EIGHTHS, Weights
from kvproof.suites.framework.component_suite import Draw
from kvproof.suites.framework.draws import integers, sampled_from

TINY_ALPHABET = 2
LARGE_ALPHABET = 50_000
KINDS = ("image", "audio", "video")
"""Kinds of spans."""
CONTENTS = ("7f3c00000000a91e", "7f3c10000000a91e")
"""Contents of spans; equal to an engine that keeps only the beginning or the end of a hash."""
SHORT_CONTENTS = ("7f3c000000000000", "7f3c100000000000")
"""Contents of spans of one token, also where the content determines the length of a span."""

_CLAMPED = 4
"""Whole units of a prompt whose clamp needs two rounds."""


class Prompts:
    """Draws the requests of one history."""

    def __init__(
        self, profile: Profile, config: TargetConfig, alphabet: int, *, weights: Weights, draw: Draw
    ) -> None:
        layout = Layout.of(config)
        self._profile = profile
        self._weights = weights
        self._draw = draw
        self._kinds = KINDS if "kind" in profile.span_identity else KINDS[:1]
        self._unit = layout.unit
        self._fits = (config.num_blocks - 1) // max(1, layout.unit_blocks)
        self._alphabet = integers(0, alphabet - 1)
        self._count = 0
        self.seen: list[Request] = []

    def _tokens_of(self) -> tuple[int, ...]:
        """Draw a fresh prompt or one that begins like an earlier one; now and then a huge one."""
        size = self._unit
        head: tuple[int, ...] = ()
        if self.seen and self._draw(integers(0, 7)):
            head = self.old().tokens
            if self._draw(st.booleans()):
                head = head[: self._draw(integers(0, len(head)))]
        huge = self._draw(integers(0, 15)) == 15
        blocks = self._draw(integers(0, self._fits + 1 if huge else 3))
        length = blocks * size + self._draw(integers(0, size))
        most = self.longest + (2 * size if huge else 0)
        return (head + self.tokens(length))[:most] or (0,)

    def tokens(self, length: int) -> tuple[int, ...]:
        """Draw a few tokens and repeat them: long prompts from little entropy."""
        if not length:
            return ()
        period = self._draw(st.lists(self._alphabet, min_size=1, max_size=min(length, 6)))
        return tuple(period[i % len(period)] for i in range(length))

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt that the pool holds."""
        return max(1, self._fits) * self._unit

    def old(self) -> Request:
        """Return an earlier request, more often a recent one, which may still be cached."""
        recent = self.seen[-1 : -1 - self._draw(sampled_from((1, 2, 4, 12))) : -1]
        index: int = self._draw(integers(0, len(recent) - 1))
        return recent[index]

    @property
    def spaces(self) -> list[Namespace]:
        """Namespaces that a target separates, the empty one first."""
        spaces = [Namespace()]
        if self._profile.adapters:
            spaces += [Namespace(adapter="x", adapter_version="1")]
            spaces += [Namespace(adapter="x")]  # equal to the salt
        if self._profile.salts:
            spaces += [Namespace(salt="x")]
        if self._profile.adapters and self._profile.salts:
            spaces += [Namespace(adapter="x", adapter_version="1", salt="x")]
        return spaces

    def _namespace(self) -> Namespace:
        spaces = self.spaces
        kind = self._draw(integers(0, 7 + max(4, len(spaces))))
        return spaces[kind % len(spaces)] if kind > 7 else spaces[0]

    def _spans(self, tokens: tuple[int, ...]) -> tuple[Span, ...]:
        if self._profile.spans and self._often(self._weights.runs_of_spans):
            return self._run_of_spans(len(tokens))
        if not self._profile.spans or self._draw(integers(0, 3)) != 3:
            return ()
        count, position, spans = self._draw(integers(1, 2)), 0, []
        for _ in range(count):
            start = position + self._draw(integers(0, self._unit))
            content = self._draw(sampled_from(CONTENTS))
            length = 1 + self._draw(integers(0, 2 * self._unit))
            if "length" not in self._profile.span_identity:
                length = 1 + int(content, 16) % (2 * self._unit)
            if start + length > len(tokens):
                break
            kind = self._draw(sampled_from(self._kinds))
            spans.append(Span(kind, start, length, content))
            position = start + length
        return tuple(spans)

    def _run_of_spans(self, count: int) -> tuple[Span, ...]:
        """Draw up to five spans of all lengths in blocks, many without a gap between them."""
        unit, identity = self._unit, self._profile.span_identity
        position, spans = self._draw(integers(0, unit)), []
        for _ in range(self._draw(integers(1, 5))):
            content = self._draw(sampled_from(CONTENTS))
            border = -position % unit
            lengths = (1, unit, border, border + 1, border + 1, border + 1 + unit, 3 * unit + 1)
            long = self._draw(sampled_from(lengths))
            if "length" not in identity:
                long = 1 + int(content, 16) % (2 * unit)
            if long < 1 or position + long > count:
                break
            kind = self._draw(sampled_from(self._kinds))
            spans.append(Span(kind, position, long, content))
            position += long + self._draw(sampled_from((0, 0, 0, 1, unit)))
        return tuple(spans)

    def _overlapping_clamps(self) -> Request:
        """Draw two spans: a cut in the second moves to a block border inside the first (M2)."""
        unit, (one, other) = self._unit, CONTENTS
        length = _CLAMPED * unit + self._draw(integers(1, 2))
        spans = (
            Span("image", unit - 1, unit + 2, one),
            Span("image", 2 * unit + 1, 2 * unit, other),
        )
        return Request(self.name(), self.tokens(length), spans=spans)

    def _often(self, eighths: int) -> bool:
        """Draw true so many times out of eight; 0 draws nothing."""
        return eighths > 0 and bool(self._draw(integers(0, EIGHTHS - 1)) >= EIGHTHS - eighths)

    def identities(self) -> list[Request]:
        """Draw a prompt, and return it under unlike keys and as ids and rows of embeddings."""
        request = self.plain(3)
        count, unit = len(request.tokens), self._unit
        spaces = [Namespace()]
        if self._profile.keys:
            spaces += [Namespace(key="x"), Namespace(key="y")]
            spaces += [Namespace(salt="x")] if self._profile.salts else []
            spaces += [Namespace("x", key="y")] if self._profile.adapters else []
        rows = [0, unit, unit + 1, count] if self._profile.embeddings else [0]
        other = replace(request, tokens=(request.tokens[0] + 1, *request.tokens[1:]))
        same = [request] if rows == [0] else [request, other]
        return [
            replace(each, namespace=space, embedded=min(embedded, count))
            for each in same
            for space in spaces
            for embedded in rows
        ]

    def plain(self, most: int, *, beyond: int = 1) -> Request:
        """Draw a prompt of at most so many units and `beyond` tokens, without spans.

        Half have all of them; seven of eight are no longer than the pool.
        """
        if self._draw(integers(0, EIGHTHS - 1)) < EIGHTHS - 1:
            most = min(most, max(1, self._fits - (beyond > 0)))
            beyond = min(beyond, max(0, self._fits - 1) * self._unit)
        units = self._draw(sampled_from((*range(1, most + 1), most, most)))
        return Request(self.name(), self.tokens(units * self._unit + beyond))

    def unique(self, units: int) -> Request:
        """Return a prompt of so many units with a beginning of its own."""
        name = self.name()
        return Request(name, (LARGE_ALPHABET + self._count,) * (units * self._unit))

    def with_spans(self) -> Request:
        """Draw a prompt with spans, whose clamp may need two rounds."""
        if self._may_overlapping_clamps() and self._draw(st.booleans()):
            return self._overlapping_clamps()
        tokens = self.tokens(min(self._draw(integers(2, 4)) * self._unit + 1, self.longest))
        return Request(self.name(), tokens, spans=self._run_of_spans(len(tokens)))

    def early_spans(self) -> Request:
        """Draw a prompt of two blocks with two spans in the first; units have two tokens."""
        spans = tuple(Span("image", place, 1, SHORT_CONTENTS[0]) for place in (0, 1))
        length = self._unit + self._draw(integers(1, self._unit))
        return Request(self.name(), self.tokens(length), spans=spans)

    def spans_in_last_block(self) -> Request:
        """Draw a prompt that ends in a block with two spans and room; units have three tokens."""
        before = self._draw(integers(0, 2)) * self._unit
        start = before + self._draw(integers(0, self._unit - 3))
        spans = tuple(
            Span("image", position, 1, self._draw(sampled_from(SHORT_CONTENTS)))
            for position in (start, start + 1)
        )
        return Request(self.name(), self.tokens(start + 2), spans=spans)

    def other_span(self, old: Request, index: int = 0) -> Request:
        """Return a request with one other span: other bytes, or equal ones of another kind."""
        if not old.spans:
            return old
        spans, one = list(old.spans), old.spans[index]
        if len(self._kinds) > 1 and self._draw(st.booleans()):
            kinds = tuple(kind for kind in self._kinds if kind != one.kind)
            spans[index] = replace(one, kind=self._draw(sampled_from(kinds)))
        elif "length" not in self._profile.span_identity:
            return replace(old, spans=())
        else:
            spans[index] = replace(one, content=CONTENTS[one.content == CONTENTS[0]])
        return replace(old, spans=tuple(spans))

    def _may_overlapping_clamps(self) -> bool:
        profile = self._profile
        able = profile.span_clamp and "length" in profile.span_identity
        return able and self._unit > 1 and self._fits > _CLAMPED

    def fork(self, old: Request) -> Request:
        """Draw a prompt that leaves an earlier one somewhere, also inside one of its spans."""
        if old.spans and self._draw(st.booleans()):
            span = old.spans[self._draw(integers(0, len(old.spans) - 1))]
            inside = (1, span.length // 2 + 1, span.length, span.length)
            cut = span.start + min(span.length, self._draw(sampled_from(inside)))
            more = self.tokens(span.start + span.length - cut)
            more += self.tokens(self._draw(sampled_from((0, 0, 1))))
        else:
            whole = self._draw(st.booleans())
            cut = len(old.tokens) if whole else self._draw(integers(1, len(old.tokens)))
            more = self.tokens(self._draw(integers(0, 2 * self._unit)))
        tokens = old.tokens[:cut] + more
        embedded = min(old.embedded, cut)
        spans = tuple(s for s in old.spans if s.start + s.length <= len(tokens))
        return Request(self.name(), tokens, old.namespace, spans, embedded=embedded)

    def request(self) -> Request:
        """Draw a fresh request, a fork or a variant."""
        profile = self._profile
        if self.seen and self._often(self._weights.forks):
            return self.fork(self.old())
        if self._may_overlapping_clamps() and self._often(self._weights.overlapping_clamps):
            return self._overlapping_clamps()
        if self.seen and self._draw(integers(0, 5)) == 5:
            read = not (profile.no_read and self._draw(integers(0, 3)) == 3)
            return replace(self.variant(), id=self.name(), resumed=False, read=read)
        tokens = self._tokens_of()
        special = self._draw(integers(0, 11))
        return Request(
            id=self.name(),
            tokens=tokens,
            namespace=self._namespace(),
            spans=self._spans(tokens),
            read=not (profile.no_read and special == 11),
            store=not (profile.no_store and special in (9, 10)),
        )

    def variant(self) -> Request:
        """Return an earlier request that differs in at most one identity field (H1, H2)."""
        old = replace(self.old(), read=True, store=True)
        choice = self._draw(integers(0, 3))
        if choice == 1:
            return replace(old, namespace=self._namespace())
        if old.embedded and choice == 2:
            return replace(old, embedded=0)
        if choice == 2 and old.spans:
            return self.other_span(old, self._draw(sampled_from((0, -1))))
        if choice == 3 and old.spans:
            return replace(old, spans=())
        return old

    def name(self) -> str:
        """Return an unused id."""
        self._count += 1
        return f"r{self._count - 1}"

    def malformed(self) -> Request:
        """Draw spans that no prompt can have."""
        spans = self._draw(
            sampled_from(
                (
                    (Span("image", 2, 2, "7f3c"), Span("image", 0, 1, "a91e")),
                    (Span("image", 0, 3, "7f3c"), Span("image", 2, 1, "a91e")),
                    (Span("image", 2, 9, "7f3c"),),
                    (Span("image", 2, 3, "7f3c"),),
                    (Span("image", 1, 2, ""),),
                )
            )
        )
        return Request(self.name(), self.tokens(4), spans=spans)

    def drafts(self) -> tuple[int, ...]:
        """Draw some draft tokens, or none."""
        if not (self._profile.drafts and self._often(self._weights.drafts)):
            return ()
        return self.tokens(self._draw(integers(1, self._unit + 1)))
