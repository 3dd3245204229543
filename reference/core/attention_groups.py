"""Groups of layers: which blocks each needs, and how their blocks lie side by side (X1, K6).

The *unit* is the least common multiple of the groups' block sizes. It is the grain of the prefix
index and of every hit, because a hit must end on a block border of every group at once. A unit
has a fixed number of blocks in each group. Groups with the same rule form one *class*: their
blocks are allocated, locked and evicted together, and lie interleaved in one flat array of ids,

    unit 0: group a, group a, group b | unit 1: group a, group a, group b | ...
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import lcm
from operator import getitem
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import Struct

from kvproof.reference.core.block_pool import Ids

Kind: TypeAlias = Literal["full", "window", "chunk", "state"]
KINDS: tuple[Kind, ...] = ("full", "window", "chunk", "state")


@dataclass(frozen=True)
class GroupConfig:
    """Layers with one block table. Sizes in tokens."""

    kind: Kind = "full"
    block_size: int = 64
    """For `state`: checkpoints stand at multiples of it."""
    size: int = 0
    """Tokens of the window, the own position included, or of the chunk."""
    kernel_block_size: int = 0
    """Tokens in one page of the kernel (K1); 0: equal to `block_size`."""
    draft: bool = False
    """Its layers belong to a draft model (X3)."""
    state_blocks: int = 1
    """Blocks that one state fills in the shared pool (S9)."""
    ratio: int = 1
    """Tokens of one entry, which is written with the last of them (Q1)."""
    beside: int | None = None
    """Group whose blocks this one's belong to (Q2): both are of one class."""

    @property
    def kernel_size(self) -> int:
        """Tokens per kernel block."""
        return self.kernel_block_size or self.block_size

    @property
    def kernel_ratio(self) -> int:
        """Kernel blocks per block."""
        return self.block_size // self.kernel_size


class Member(NamedTuple):
    """Blocks of one group inside the units of its class: `ratio` ids from `offset` on."""

    group: int
    offset: int
    ratio: int


class BlockClass(Struct, frozen=True):
    """Groups whose blocks come and go together."""

    kind: Kind
    size: int
    draft: bool
    unit: int
    width: int
    """Ids per unit."""
    members: tuple[Member, ...]

    def first_unit(self, tokens: int) -> int:
        """First unit that computing position `tokens` still sees (X1).

        `first_visible` in units, without its call, which cost hybrid cycles 5 % of their speed.
        """
        if self.kind == "window":
            hidden = tokens - self.size + 1
            return hidden // self.unit if hidden > 0 else 0
        return tokens // self.size * self.size // self.unit

    def longest_valid(
        self, units: int, last_absent: Callable[[int, int], tuple[int, int] | None]
    ) -> int:
        """Return the longest length <= `units`, in units, all of whose visible units are there.

        `last_absent(first, stop)` returns (start, last): the last absent unit of [first, stop) and
        the start of a run of absent units that ends there; None if all are there (X1, X2).
        """
        while units:
            absent = last_absent(self.first_unit(units * self.unit), units)
            if absent is None:
                break
            start, last = absent  # a longer length sees it too: the first visible unit never falls
            units = max(start, self._sees_nothing(last))
        return units

    def _sees_nothing(self, units: int) -> int:
        """Return the longest length up to `units`, in units, that needs no block of this class."""
        if self.kind == "window":
            return 0
        whole = lcm(self.size, self.unit)
        return units * self.unit // whole * whole // self.unit

    def table(self, member: Member, ids: Ids) -> Ids:
        """Return the ids of one group out of the interleaved ids of the class."""
        offset, ratio, width = member.offset, member.ratio, self.width
        if ratio == 1 or ratio == width:
            return ids[offset :: width // ratio]
        rows = np.array(ids, np.int32).reshape(-1, width)
        return array("i", rows[:, offset : offset + ratio].tobytes())


def first_visible(rule: GroupConfig, position: int) -> int:
    """Return the first position that computing `position` reads; states read none (X1)."""
    if rule.kind == "window":
        return max(0, position - rule.size + 1)
    return position // rule.size * rule.size if rule.kind == "chunk" else 0


@dataclass(frozen=True)
class Layout:
    """Classes of the groups of one cache."""

    groups: tuple[GroupConfig, ...]

    @cached_property
    def unit(self) -> int:
        """Tokens of the index's grain."""
        return lcm(*(group.block_size for group in self.groups))

    @cached_property
    def entry(self) -> int:
        """Tokens after which an entry of every group is whole (Q1)."""
        return lcm(*(group.ratio for group in self.groups))

    @cached_property
    def full(self) -> BlockClass:
        """The class of full attention; without such a group its units have no block."""
        return self._class(
            ("full", 0, False), [g for g, c in enumerate(self.groups) if c.kind == "full"]
        )

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First token of a unit in each of its blocks of full attention, in the order of ids."""
        parts = ((member.ratio, self.unit // member.ratio) for member in self.full.members)
        return tuple(part * size for ratio, size in parts for part in range(ratio))

    @cached_property
    def local(self) -> tuple[BlockClass, ...]:
        """One class for each kind and size of window or chunk."""
        rules: dict[tuple[Kind, int, bool], list[int]] = {}
        for index, group in enumerate(self.groups):
            if group.kind in ("window", "chunk"):
                rules.setdefault((group.kind, group.size, group.draft), []).append(index)
        return tuple(self._class(rule, members) for rule, members in rules.items())

    @cached_property
    def states(self) -> tuple[int, ...]:
        """Groups with recurrent state."""
        return tuple(g for g, config in enumerate(self.groups) if config.kind == "state")

    @cached_property
    def state_parts(self) -> dict[int, slice]:
        """Where the ids of each state group lie in those of one whole state."""
        parts, first = {}, 0
        for group in self.states:
            width = self.groups[group].state_blocks
            parts[group], first = slice(first, first + width), first + width
        return parts

    def state_tables(self, ids: Ids) -> dict[int, Ids]:
        """Return the ids of each state group out of those of one whole state, or its row."""
        if len(ids) != self.state_blocks:
            return dict.fromkeys(self.states, ids)
        return {group: ids[part] for group, part in self.state_parts.items()}

    @cached_property
    def state_blocks(self) -> int:
        """Blocks that the states of one request fill in the shared pool."""
        return sum(self.groups[group].state_blocks for group in self.states)

    @cached_property
    def full_draft(self) -> bool:
        """Whether a group of full attention belongs to a draft model."""
        return any(group.draft for group in self.groups if group.kind == "full")

    def _class(self, rule: tuple[Kind, int, bool], groups: list[int]) -> BlockClass:
        members, width = [], 0
        for group in groups:
            ratio = self.unit // self.groups[group].block_size
            members.append(Member(group, width, ratio))
            width += ratio
        return BlockClass(*rule, self.unit, width, tuple(members))


class GroupTables:
    """Takes tables of classes apart into those of the groups."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._rules = rules = (layout.full, *layout.local)
        self._state_blocks = layout.state_blocks
        members = [(rule, place, m) for place, rule in enumerate(rules) for m in rule.members]
        self._sliced = all(m.ratio in (1, rule.width) for rule, _, m in members)
        """Whether the ids of each group are a slice of those of its class."""
        places = {m.group: place for _, place, m in members}
        parts = {m.group: slice(m.offset, None, rule.width // m.ratio) for rule, _, m in members}
        parts |= layout.state_parts
        groups = range(len(layout.groups))
        self._places = [places.get(group, len(rules)) for group in groups]
        self._parts = [parts[group] for group in groups]

    def of(self, classes: Sequence[Ids]) -> list[Ids]:
        """Return the ids of each group out of those of full attention, local classes and state."""
        state = classes[-1]
        if self._sliced and len(state) == self._state_blocks:
            return [*map(_cut, map(classes.__getitem__, self._places), self._parts)]
        tables = self._layout.state_tables(state)
        for rule, ids in zip(self._rules, classes, strict=False):
            tables |= {member.group: rule.table(member, ids) for member in rule.members}
        return [tables[group] for group in range(len(self._places))]


_cut: Callable[[Ids, slice], Ids] = getitem  # type: ignore[assignment]  # arrays give arrays
