"""Places of recurrent states, and the states that a step reads, writes and saves.

States are in blocks of the shared pool, or in slots of rows of a separate pool. A *key* identifies
a state: the block, or `row * number of state groups + place of the group`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.harness.contract.profile import Profile
from kvproof.harness.contract.target import Scheduled, Table, TargetConfig
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.shadow_memory import ShadowMemory

Copies = Sequence[tuple[int, int, int]]
"""(group, source, destination)."""


class RecurrentStates:
    """The state groups of one configuration."""

    def __init__(
        self, layout: Layout, config: TargetConfig, profile: Profile, shadow: ShadowMemory
    ) -> None:
        self._layout = layout
        self._running = profile.checkpoints == "running"
        self._place = {group: index for index, group in enumerate(layout.states)}
        self._whole = {group: layout.parts(group) for group in layout.states}
        self.memory = shadow
        """Slots of the states: those of the shared pool, or of the rows."""
        if layout.separate:
            self.memory = ShadowMemory(
                num_blocks=config.state_rows,
                block_size=len(layout.states),
                host_blocks=config.host_rows,
            )

    def keys(self, group: int, ids: Table) -> tuple[int, ...]:
        """Return the keys of the blocks, or of the rows, of a state."""
        if not self._layout.separate:
            return ids
        return tuple(row * len(self._place) + self._place[group] for row in ids)

    def row(self, key: int) -> int:
        """Return the row that a key of the separate pool belongs to."""
        return key // max(1, len(self._place))

    def slots(self, group: int, block: int) -> slice:
        """Return where a block of a state, or its slot of a row, lies in `memory`."""
        if not self._layout.separate:
            return self.memory.block(block)
        slot = self.keys(group, (block,))[0]
        return slice(slot, slot + 1)

    def among(self, copies: Copies) -> Copies:
        """Return the copies of state groups."""
        return [copy for copy in copies if copy[0] in self._place]

    def saved(self, answer: Scheduled, drafts: int) -> tuple[tuple[int, int, Table], ...]:
        """Return (tokens, group, blocks) of the checkpoints that every group saves."""
        found: dict[int, dict[int, list[int]]] = {}
        for group, _, destination in self.among(answer.saves):
            found.setdefault(answer.stop, {}).setdefault(group, []).append(destination)
        for use in answer.states:
            for tokens, ids in use.writes:
                ends = self._running and not drafts and tokens % self._layout.unit == 0
                if ends or tokens < answer.stop - drafts:
                    found.setdefault(tokens, {}).setdefault(use.group, []).extend(ids)
        return tuple(
            (tokens, group, tuple(ids))
            for tokens, groups in found.items()
            if {group: len(ids) for group, ids in groups.items()} == self._whole
            for group, ids in groups.items()
        )

    def read(self, answer: Scheduled) -> set[int]:
        """Return the keys of all states that a step reads or copies from."""
        moved = self.among((*answer.saves, *answer.copies))
        keys = {key for group, source, _ in moved for key in self.keys(group, (source,))}
        keys.update(key for use in answer.states for key in self.keys(use.group, use.read))
        return keys

    def written(self, answer: Scheduled) -> set[int]:
        """Return the keys of all states that a step writes or copies to."""
        moved = self.among((*answer.saves, *answer.copies))
        keys = {key for group, _, target in moved for key in self.keys(group, (target,))}
        for use in answer.states:
            for _, ids in use.writes:
                keys.update(self.keys(use.group, ids))
        return keys
