"""The groups of a configuration in numbers: visible positions, blocks per token, salts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import lcm

import numpy as np

from kvproof.harness.contract.target import Group, Table, TargetConfig
from kvproof.harness.model.fingerprints import digest
from kvproof.harness.model.visibility import Visibility
from kvproof.harness.oracle.shadow_memory import Paging


@dataclass(frozen=True)
class Layout:
    """Groups by kind; indices are positions in the configuration."""

    groups: tuple[Group, ...]
    separate: bool
    """States live in rows of a pool of their own (S5)."""

    @classmethod
    def of(cls, config: TargetConfig) -> Layout:
        """Return the layout of a configuration."""
        return cls(config.layout, config.state_rows > 0)

    @cached_property
    def rules(self) -> tuple[Visibility, ...]:
        """The rule of each group's kind."""
        return tuple(group.visibility for group in self.groups)

    @cached_property
    def unit(self) -> int:
        """Tokens of the grain in which hits are returned."""
        return lcm(*(group.block_size for group in self.groups))

    @cached_property
    def stride(self) -> int:
        """Slots of a block in the shared pool: those of the largest group."""
        return max(group.block_size for group in self.groups)

    @cached_property
    def attention(self) -> tuple[int, ...]:
        """Groups with a table over positions."""
        return tuple(g for g, rule in enumerate(self.rules) if rule.by_position)

    @cached_property
    def states(self) -> tuple[int, ...]:
        """Groups with recurrent state."""
        return tuple(g for g, rule in enumerate(self.rules) if not rule.by_position)

    @cached_property
    def full(self) -> tuple[int, ...]:
        """Groups of full attention."""
        return tuple(g for g, rule in enumerate(self.rules) if rule.reads_all)

    @cached_property
    def partly_visible(self) -> tuple[int, ...]:
        """Groups of windows and chunks: later steps do not see all earlier positions."""
        return tuple(g for g in self.attention if g not in self.full)

    @cached_property
    def drafts(self) -> bool:
        """Whether a group belongs to a draft model."""
        return any(group.draft for group in self.groups)

    @cached_property
    def pooled(self) -> tuple[int, ...]:
        """Groups whose ids are blocks of the shared pool."""
        return self.attention if self.separate else tuple(range(len(self.groups)))

    @cached_property
    def single(self) -> bool:
        """Whether there is one group of full attention and nothing else."""
        one = len(self.groups) == 1 and bool(self.full) and not self.groups[0].draft
        return one and self.entry == 1 and not self.groups[0].further_ratios

    @cached_property
    def pagings(self) -> tuple[Paging, ...]:
        """How each group's table addresses its blocks."""
        return tuple(
            Paging(group.block_size, group.kernel_size, group.ratio) for group in self.groups
        )

    @cached_property
    def entry(self) -> int:
        """Tokens after which an entry of every group is whole (Q1)."""
        return lcm(*(group.entry for group in self.groups))

    @cached_property
    def sidecars(self) -> dict[int, int]:
        """Group -> the one whose blocks its own belong to (Q2)."""
        beside = enumerate(group.beside for group in self.groups)
        return {g: owner for g, owner in beside if owner is not None}

    @cached_property
    def salts(self) -> tuple[np.uint64, ...]:
        """Number that is mixed into the fingerprints of each group; 0 for the first."""
        return (np.uint64(0), *(digest("group", g) for g in range(1, len(self.groups))))

    @cached_property
    def state_salts(self) -> dict[tuple[int, int], np.uint64]:
        """(group, part) -> number that is mixed into the fingerprint of a state."""
        return {
            (g, part): digest("state", g, part)
            for g in self.states
            for part in range(self.parts(g))
        }

    def flat(self, blocks: tuple[Table, ...]) -> Table:
        """Return the blocks of the shared pool of all groups, in order, without nulls."""
        if self.single:
            return blocks[0] if blocks else ()
        groups = (blocks[g] for g in self.pooled if g < len(blocks))
        return tuple(block for ids in groups for block in ids if block)

    def parts(self, group: int) -> int:
        """Blocks, or slots of the row, that one state of a group fills."""
        return 1 if self.separate else self.groups[group].state_blocks

    @cached_property
    def state_blocks(self) -> int:
        """Blocks of the shared pool that one state of all groups fills."""
        return 0 if self.separate else sum(self.groups[g].state_blocks for g in self.states)

    @cached_property
    def unit_blocks(self) -> int:
        """Most blocks of the shared pool that carry one unit, with a checkpoint at its end."""
        blocks = sum(self.unit // self.groups[g].block_size for g in self.attention)
        return blocks + self.state_blocks

    def visible(self, group: int, position: int) -> int:
        """Return the first position that computing `position` sees in a group."""
        return self.rules[group].first_read(position)

    def first_block(self, group: int, position: int) -> int:
        """Return the first entry of a table that computing `position` sees."""
        return self.rules[group].first_block(position, self.groups[group].block_size)

    def reached(self, group: int, index: int) -> bool:
        """Whether a hit, which ends a unit, may need block `index` of a group."""
        return self.rules[group].hit_reads((index + 1) * self.groups[group].block_size, self.unit)

    def released(self, group: int, position: int) -> int:
        """Return how many entries of a table lie wholly before the visible positions."""
        return self.rules[group].outside(position, self.unit) // self.groups[group].block_size

    def blocks_for(self, group: int, tokens: int) -> int:
        """Return the entries that a table needs for so many tokens."""
        return -(-tokens // self.groups[group].block_size)

    def least(self, tokens: int) -> int:
        """Return the blocks without which the last of so many tokens cannot be computed."""
        seen = sum(
            self.blocks_for(g, tokens) - self.first_block(g, tokens - 1) for g in self.attention
        )
        return seen + self.state_blocks

    def most(self, tokens: int, drafts: int = 0) -> int:
        """Return an upper bound of the blocks of a request, for any schedule.

        A request holds its running state and may hold the states that it restores from and saves
        to, and one more for each draft token.
        """
        whole = -(-tokens // self.unit) * self.unit
        blocks = sum(self.blocks_for(g, whole) for g in self.attention)
        return blocks + self.state_blocks * (3 + drafts)
