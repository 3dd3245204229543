"""The longest hit that the rules allow, by brute force over the ledger (X1, X2, M2, S1, R3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvproof.harness.contract.target import Profile, Span, TargetConfig
from kvproof.harness.oracle.cache_model import Ledger
from kvproof.harness.oracle.checks.partial_blocks import Tails
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.shadow_memory import Fingerprints


class Lack(NamedTuple):
    """Why a length is no valid hit."""

    why: str
    """`grain`, `span`, `full`, `window`, `chunk`, `state`, `draft` or `experts`."""
    group: int = 0
    block: int = 0
    """First block that is missing."""


class Reuse:
    """Judges lengths: one after the other from the longest down, each group by itself."""

    def __init__(
        self,
        ledger: Ledger,
        layout: Layout,
        config: TargetConfig,
        profile: Profile,
        tails: Tails | None = None,
    ) -> None:
        """`tails`: those that a hit may end in, if it need not end after a whole unit (T6)."""
        self._ledger = ledger
        self._layout = layout
        self._clamp = profile.span_clamp
        self._experts = config.require_experts
        self._reach = profile.draft_reach
        self._tails = tails
        self._simple = layout.single and not self._clamp and not self._experts and tails is None

    def longest(
        self,
        prints: Fingerprints,
        limit: int,
        spans: Sequence[Span] = (),
        *,
        but: str = "",
        known: bool = False,
        whole: bool = False,
    ) -> int:
        """Return the longest valid length in tokens, at most `limit`.

        `but` names a reason that is to be forgotten, to see what it costs. `known`: the unit
        before it is cached in some group. Without full attention a length may need nothing at
        all, and whether an index still knows of it cannot be seen. `whole`: units only.
        """
        if self._simple:
            return self._ledger.prefix(prints, limit)
        unit = self._layout.unit if whole or self._tails is None else 1
        known = known and not self._layout.full
        for length in range(limit // unit * unit, 0, -unit):
            if known and not self._ledger.unit_is_cached(prints, length // self._layout.unit - 1):
                continue
            if self.lack(prints, length, limit, spans, but=but, known=known) is None:
                return length
        return 0

    def lack(
        self,
        prints: Fingerprints,
        length: int,
        limit: int,
        spans: Sequence[Span] = (),
        *,
        but: str = "",
        known: bool = False,
    ) -> Lack | None:
        """Return why a hit of `length` is not valid for a request; None if it is."""
        if length <= 0:
            return None
        layout = self._layout
        if length % layout.unit and not (self._tails and self._tails.covers(prints, length)):
            return Lack("grain")
        if self._clamp and but != "span" and inside(spans, length):
            return Lack("span")
        exactly, length = length, length // layout.unit * layout.unit
        for group, layers in enumerate(layout.groups):
            if but == layers.kind:
                continue
            lack = self._missing(prints, exactly if layers.kind == "state" else length, group)
            if lack is None and layers.draft and layers.kind != "state" and but != "draft":
                lack = self._ahead(prints, length + layout.unit, limit, group, known=known)
            if lack is not None:
                return lack
        units = length // layout.unit if self._experts and but != "experts" else 0
        if not all(self._ledger.routed(prints, index).complete for index in range(units)):
            return Lack("experts")
        return None

    def _missing(self, prints: Fingerprints, length: int, group: int) -> Lack | None:
        layers, ledger = self._layout.groups[group], self._ledger
        if layers.kind == "state":
            there = ledger.has_state(prints, length, group)
            return None if there else Lack("state", group)
        first = self._layout.first_block(group, length)
        for index in range(first, length // layers.block_size):
            if not ledger.has_block(prints, index, group):
                return Lack(layers.kind, group, index)
        return None

    def _ahead(
        self, prints: Fingerprints, length: int, limit: int, group: int, *, known: bool
    ) -> Lack | None:
        """A draft group must also be valid one unit further, where full attention matches (X3)."""
        if self._reach == "cached":
            limit = len(prints)
        if self._layout.full and (
            self._reach == "matched" or self._layout.groups[group].kind == "full"
        ):
            limit = self.matched(prints, limit)
        if length > limit or self._missing(prints, length, group):
            return Lack("draft", group)
        known = known and not self._layout.full
        if known and not self._ledger.unit_is_cached(prints, length // self._layout.unit - 1):
            return Lack("draft", group)
        return None

    def matched(self, prints: Fingerprints, limit: int) -> int:
        """Return how far all groups of full attention match, in whole units."""
        layout, full = self._layout, self._layout.full
        length = min((self._ledger.prefix(prints, limit, g) for g in full), default=0)
        return length // layout.unit * layout.unit


def inside(spans: Sequence[Span], position: int) -> bool:
    """Tell whether a cut before `position` would split a span (M2, M3)."""
    return any(span.start < position < span.start + span.length for span in spans)
