"""The longest hit that the rules allow, by brute force on the cache model (X1, X2, M2, S1, R3).

It states by itself which positions a group sees: nothing here comes from `harness.model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Group, Span, TargetConfig
from kvproof.harness.oracle.cache_model import CacheModel
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.partial_blocks import PartialBlocks

Fingerprints = npt.NDArray[np.uint64]


class InvalidReason(NamedTuple):
    """Why a length is no valid hit."""

    why: str
    """`grain`, `entry`, `span`, `full`, `window`, `chunk`, `state`, `draft` or `experts`."""
    group: int = 0
    block: int = 0
    """First block that is missing."""


class Resident:
    """The blocks of one request that are cached now, looked up once for all lengths."""

    def __init__(self, model: CacheModel, layout: Layout, prints: Fingerprints) -> None:
        self.prints = prints
        self.blocks = {group: model.resident(prints, group) for group in layout.attention}
        """Group -> whether each whole block is cached."""
        self._model = model
        self._layout = layout

    def missing(self, group: int, first: int, stop: int) -> int | None:
        """Return the first of the blocks [first, stop) of a group that is not cached."""
        here = self.blocks[group][first:stop]
        return None if all(here) else first + here.index(False)

    def unit(self, index: int) -> bool:
        """Whether a block of unit `index`, or a checkpoint after it, is cached in any group."""
        layout = self._layout
        for group, blocks in self.blocks.items():
            ratio = layout.unit // layout.groups[group].block_size
            if any(blocks[index * ratio : (index + 1) * ratio]):
                return True
        end = (index + 1) * layout.unit
        return any(self._model.has_state(self.prints, end, group) for group in layout.states)

    def prefix(self, group: int, limit: int) -> int:
        """Return the cached tokens from the start without a hole, at most `limit`."""
        size = self._layout.groups[group].block_size
        stop = min(limit // size, len(self.blocks[group]))
        hole = self.missing(group, 0, stop)
        return size * (stop if hole is None else hole)


class HitOracle:
    """Tries lengths one after the other from the longest down, each group by itself."""

    def __init__(
        self,
        model: CacheModel,
        layout: Layout,
        config: TargetConfig,
        profile: Profile,
        partial: PartialBlocks | None = None,
    ) -> None:
        """`partial`: partial blocks that a hit may end in, where it need not end a unit (T6)."""
        self._model = model
        self._layout = layout
        self._needed: dict[tuple[int, int], int] = {}
        """(Group, length) -> first block that a hit needs, once it was looked for."""
        self._clamp = profile.span_clamp
        self._experts = config.require_experts
        self._reach = profile.draft_reach
        self._partial = partial
        self.simple = layout.single and not self._experts and partial is None
        """Whether the hit of a request without spans is its longest cached prefix."""

    def longest(
        self,
        prints: Fingerprints,
        limit: int,
        spans: Sequence[Span] = (),
        *,
        whole: bool = False,
    ) -> int:
        """Return the longest valid length in tokens, at most `limit`; `whole`: units only."""
        if self.simple and not (self._clamp and spans):
            return self._model.prefix(prints, limit)
        return self.search(self.resident(prints), limit, spans, whole=whole)

    def resident(self, prints: Fingerprints) -> Resident:
        """Return the cached blocks of a request."""
        return Resident(self._model, self._layout, prints)

    def search(
        self,
        resident: Resident,
        limit: int,
        spans: Sequence[Span] = (),
        *,
        ignoring: str = "",
        listed: bool = False,
        whole: bool = False,
    ) -> int:
        """Return the longest valid length in tokens, at most `limit`.

        `ignoring` names a reason to ignore, to measure its cost. `listed`: some group has the last
        unit cached. Without full attention a length may need no block, and an index may or may not
        still list it. `whole`: units only.
        """
        unit = self._layout.unit if whole or self._partial is None else 1
        listed = listed and not self._layout.full
        for length in range(limit // unit * unit, 0, -unit):
            if listed and not resident.unit(length // self._layout.unit - 1):
                continue
            found = self.invalid(resident, length, limit, spans, ignoring=ignoring, listed=listed)
            if found is None:
                return length
        return 0

    def invalid(
        self,
        resident: Resident,
        length: int,
        limit: int,
        spans: Sequence[Span] = (),
        *,
        ignoring: str = "",
        listed: bool = False,
    ) -> InvalidReason | None:
        """Return why a hit of `length` is not valid for a request; None if it is."""
        if length <= 0:
            return None
        layout, prints = self._layout, resident.prints
        if length % layout.unit and not (self._partial and self._partial.covers(prints, length)):
            return InvalidReason("grain")
        if ignoring != "entry" and length % layout.entry:
            return InvalidReason("entry")
        if self._clamp and ignoring != "span" and inside(spans, length):
            return InvalidReason("span")
        exactly, length = length, length // layout.unit * layout.unit
        for group, layers in enumerate(layout.groups):
            if ignoring == layers.kind:
                continue
            found = self._missing(resident, exactly if layers.kind == "state" else length, group)
            ahead = layers.draft and layers.kind != "state" and ignoring != "draft"
            if found is None and ahead:
                found = self._ahead(resident, length + layout.unit, limit, group, listed=listed)
            if found is not None:
                return found
        units = length // layout.unit if self._experts and ignoring != "experts" else 0
        if not all(self._model.routed(prints, index).complete for index in range(units)):
            return InvalidReason("experts")
        return None

    def _missing(self, resident: Resident, length: int, group: int) -> InvalidReason | None:
        layers = self._layout.groups[group]
        if layers.kind == "state":
            there = self._model.has_state(resident.prints, length, group)
            return None if there else InvalidReason("state", group)
        first = self._needed.get((group, length))
        if first is None:
            first = self._needed[group, length] = first_needed(layers, length)
        hole = resident.missing(group, first, length // layers.block_size)
        return None if hole is None else InvalidReason(layers.kind, group, hole)

    def _ahead(
        self, resident: Resident, length: int, limit: int, group: int, *, listed: bool
    ) -> InvalidReason | None:
        """A draft group must also be valid one unit further, where full attention matches (X3)."""
        if self._reach == "cached":
            limit = len(resident.prints)
        if self._layout.full and (
            self._reach == "matched" or self._layout.groups[group].kind == "full"
        ):
            limit = self.matched(resident, limit)
        if length > limit or self._missing(resident, length, group):
            return InvalidReason("draft", group)
        listed = listed and not self._layout.full
        if listed and not resident.unit(length // self._layout.unit - 1):
            return InvalidReason("draft", group)
        return None

    def matched(self, resident: Resident, limit: int) -> int:
        """Return how far all groups of full attention match, in whole units."""
        layout = self._layout
        length = min((resident.prefix(group, limit) for group in layout.full), default=0)
        return length // layout.unit * layout.unit


def sees(group: Group, position: int, earlier: int) -> bool:
    """Whether computing `position` looks at an earlier one (X1)."""
    if group.kind == "window":
        return position - earlier < group.size
    if group.kind == "chunk":
        return position // group.size == earlier // group.size
    return True


def first_needed(group: Group, length: int) -> int:
    """Return the first block that position `length` looks into, found block by block."""
    if group.kind == "full":
        return 0
    block = length // group.block_size
    while block and sees(group, length, block * group.block_size - 1):
        block -= 1
    return block


def inside(spans: Sequence[Span], position: int) -> bool:
    """Whether a cut before `position` would split a span (M2, M3)."""
    return any(span.start < position < span.start + span.length for span in spans)
