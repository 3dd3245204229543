"""The reference's media functions and the model, request by request and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from kvproof.reference.cache import hit_length
from kvproof.reference.core import identity
from kvproof.reference.core import media_spans as media
from kvproof.reference.core.identity import Span
from kvproof.suites.framework.component_suite import Config
from kvproof.suites.framework.coverage import Coverage
from kvproof.suites.reference.media import hashing
from kvproof.suites.reference.media import properties as seen
from kvproof.suites.reference.media.model import (
    Model,
    PlaceholderRun,
    Thing,
    Walk,
    is_malformed,
    places,
)

Spans: TypeAlias = tuple[Span, ...]


class MediaMachine:
    """One block size, the keys of all requests so far, and the newest request."""

    def __init__(self, config: Config, coverage: Coverage) -> None:
        self.block_size: int = config["block_size"]
        self.things: list[list[Thing]] = []
        self.walk: Walk | None = None
        self._known: list[tuple[Model, list[bytes]]] = []
        self._coverage = coverage
        self._check, self._event = coverage.check, coverage.event

    def apply(self, verb: str, **arguments: Any) -> object:
        """Run one operation."""
        if verb == "hash":
            return hashing.compare(self._coverage, **arguments)
        if verb == "ask":
            return hashing.ask(self._coverage, **arguments)
        if verb == "step":
            return self.walk.step(**arguments) if self.walk else "nothing to compute"
        assert verb == "arrive", verb
        return self._arrive(**arguments)

    def _arrive(
        self,
        *,
        total: int,
        text: int,
        things: list[list[Any]],
        order: list[int],
        matched: int,
        turn: int,
        blank: bool,
    ) -> str:
        given = [Thing(kind, tuple(map(tuple, at)), tuple(what)) for kind, at, what in things]
        spans = self._spans(given, order, blank=blank)
        runs = list(places(given))
        if not self._is_accepted(spans, total, malformed=blank or is_malformed(total, runs)):
            return "refused"
        model = Model(total, text, given)
        self._compare(model, spans)
        hit = self._clamp(model, spans, min(matched, total))
        self.things.append(given)
        self.walk = Walk(model, spans, hit=hit, turn=turn, coverage=self._coverage)
        self._cover_shapes(given, runs)
        return f"hit {hit}"

    def _spans(self, given: list[Thing], order: list[int], *, blank: bool) -> Spans:
        items = [item for thing in given for item in self._items(thing)]
        whole = sorted(order) == list(range(len(items)))
        turned = [items[index % len(items)] for index in order] if whole else items
        first: Spans = media.spans_of(turned, hashing.ALLOWED)
        second: Spans = media.spans_of(items, hashing.ALLOWED)
        self._coverage.equal("span_order_does_not_matter", first, second, f"in order {order}:")
        self._event(seen.OUT_OF_ORDER, turned != items)
        return (*first[:-1], first[-1]._replace(content="")) if blank and first else first

    def _items(self, thing: Thing) -> Sequence[Any]:
        kind, where, contents = thing
        if kind == "embeds":
            rows = np.array([[content or 0, 1] for content in contents], np.float32)
            mask = [content is not None for content in contents]
            items: Sequence[Any] = media.embeds(rows, mask, start=where[0][0])
            return items
        if kind == "video":
            expanded: Sequence[Any] = media.frames(where, contents)
            return expanded
        (start, length), content = where[0], media.Content(contents[0])
        return [media.Item(kind, start, length, content)]

    def _is_accepted(self, spans: Spans, total: int, *, malformed: bool) -> bool:
        error = ""
        try:
            identity.check_spans(spans, total)
        except identity.IdentityError as refusal:
            error = str(refusal)
        self._check(
            "spans_are_refused_iff_malformed",
            bool(error) == malformed,
            lambda: f"{spans} in a prompt of {total} tokens: {error or 'accepted'}",
        )
        self._event(seen.MALFORMED, malformed)
        return not malformed

    def _compare(self, model: Model, spans: Spans) -> None:
        keys = self._keys(model, spans)
        for other, theirs in self._known:
            self._judge_keys(model, keys, other, theirs)
        self._known.append((model, keys))

    def _judge_keys(
        self, model: Model, keys: list[bytes], other: Model, theirs: list[bytes]
    ) -> None:
        size = self.block_size
        shared = model.shared_blocks(other, size)
        equal = [mine == their for mine, their in zip(keys, theirs, strict=False)]
        self._check(
            "blocks_are_equal_iff_their_content_is",
            all(equal[:shared]) and not any(equal[shared:]),
            lambda: f"keys are equal {equal}, and {shared} blocks: {model.runs} and {other.runs}",
        )
        end = shared * size
        self._event(seen.SAME, any(place for _, place in model.entries[:end]))
        mine, their = (each.tokens[end : end + size] for each in (model, other))
        self._event(seen.OTHER, mine == their and len(mine) == size)

    def _keys(self, model: Model, spans: Spans) -> list[bytes]:
        digest = identity.hash_algorithm("sha256")
        keys = identity.BlockKeys(identity.KeyChain(digest), block_size=self.block_size)
        keys.extend(model.tokens, spans)
        found: list[bytes] = keys.keys
        return found

    def _clamp(self, model: Model, spans: Spans, matched: int) -> int:
        size = self.block_size
        clamps = [hit_length.outside_spans(spans), lambda length: length // size * size]
        hit: int = hit_length.fixpoint(matched, clamps)
        best = model.hit(matched, self.block_size)
        self._check(
            "clamps_reach_a_fixpoint",
            hit == best,
            lambda: f"{matched} matched tokens give a hit of {hit}, not {best}: {model.runs}",
        )
        lowered = _lowered(matched, clamps)
        self._event(seen.TWO_ROUNDS, lowered > 1)
        self._event(seen.REJECTED, lowered and not hit)
        return hit

    def _cover_shapes(self, given: list[Thing], runs: list[PlaceholderRun]) -> None:
        size = self.block_size
        blocks = [run.start // size for run in runs]
        self._event(seen.TWO_IN_A_BLOCK, len(set(blocks)) < len(blocks))
        self._event(seen.LONG, any((r.stop - 1) // size - r.start // size > 1 for r in runs))
        self._event(seen.ON_A_BORDER, any(run.stop % size == 0 for run in runs))
        self._event(seen.VIDEO, any(thing.kind == "video" and thing.places[1:] for thing in given))
        self._event(seen.MASKED, any(None in thing.contents for thing in given))


def _lowered(length: int, clamps: Sequence[hit_length.Clamp]) -> int:
    """Count how often the first clamp lowers the length until all leave it alone."""
    count, before = 0, -1
    while length != before:
        before = length
        count += clamps[0](length) != length
        for clamp in clamps:
            length = clamp(length)
    return count
