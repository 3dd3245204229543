"""Faults to plant in a live vLLM: each changes what an engine's own bug of that kind would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

CHOSEN = ""
"""Name of the fault that the next history has; empty: none."""
PERIOD = 7
"""Steps from one change to the next."""


class Planted:
    """A fault that changes nothing; the others derive from it."""

    struck = 0
    """Steps that were changed."""

    def before(self, runner: Any, batch: Any) -> None:
        """Change the engine's tables on the device."""

    def returned(self, batch: Any, tables: Sequence[Any], slots: Any) -> None:
        """Change the values that the engine's calls return."""

    def behind(self, batch: Any, tables: Sequence[Any], slots: Any) -> None:
        """Change the buffers that kernels read, after the host has let them go."""

    def loads(self, blocks: Any) -> None:
        """Change the blocks that another tier writes."""

    def hurries(self) -> bool:
        """Tell whether the engine takes a load for ended before its bytes are there."""
        return False


class TableOffByABlock(Planted):
    """The last row of a step reads the blocks that follow its own."""

    def returned(self, batch: Any, tables: Sequence[Any], slots: Any) -> None:
        """Shift a row of the table."""
        del slots
        row = tables[0][batch.num_reqs - 1]
        if int(batch.num_computed_tokens_np[batch.num_reqs - 1]) > 16:
            row[:-1] = row[1:].clone()
            self.struck += 1


class SlotMappingShifted(Planted):
    """Every seventh step its last token goes into the slot before its own."""

    steps = 0

    def returned(self, batch: Any, tables: Sequence[Any], slots: Any) -> None:
        """Shift one slot."""
        del tables
        self.steps += 1
        if self.steps % PERIOD == 0:
            slots[0, batch.num_tokens - 1] ^= 1
            self.struck += 1


class StaleBuffer(Planted):
    """Every seventh step attention gets the table of the step before."""

    steps = 0
    last: Any = None

    def behind(self, batch: Any, tables: Sequence[Any], slots: Any) -> None:
        """Put the last table back into the buffer."""
        del slots
        own = tables[0].clone()
        self.steps += 1
        if self.last is not None and self.steps % PERIOD == 0 and batch.num_reqs > 1:
            rows = min(len(self.last), len(own))
            tables[0][:rows] = self.last[:rows]
            self.struck += 1
        self.last = own


class FreedBlockReused(Planted):
    """A request that comes gets a block that another one still reads."""

    def before(self, runner: Any, batch: Any) -> None:
        """Give the last row, if it is new, the first block of the first row."""
        first, last = 0, batch.num_reqs - 1
        computed = batch.num_computed_tokens_np
        if last > first and computed[last] == 0 and computed[first] >= 16:
            own = runner.block_tables.block_tables[0].gpu
            own[batch.idx_mapping_np[last], 0] = own[batch.idx_mapping_np[first], 0]
            self.struck += 1


class PaddingWrites(Planted):
    """Rows of padding have a slot, that of the first row's first token."""

    def returned(self, batch: Any, tables: Sequence[Any], slots: Any) -> None:
        """Give padding a slot."""
        if batch.num_tokens_after_padding > batch.num_tokens:
            slots[0, batch.num_tokens :] = tables[0][0, 0].long() * 16
            self.struck += 1


class LoadsSwapped(Planted):
    """The first two blocks of a load change places."""

    def loads(self, blocks: Any) -> None:
        """Exchange them."""
        if len(blocks) > 1:
            blocks[0], blocks[1] = int(blocks[1]), int(blocks[0])
            self.struck += 1


class LateCopy(Planted):
    """The engine takes every load for ended while the card has not begun it."""

    def hurries(self) -> bool:
        """Hurry this one."""
        self.struck += 1
        return True


FAULTS: dict[str, type[Planted]] = {
    "a table off by a block": TableOffByABlock,
    "a slot mapping shifted": SlotMappingShifted,
    "a stale graph buffer": StaleBuffer,
    "a freed block reused": FreedBlockReused,
    "a padded row that writes": PaddingWrites,
    "a load into other blocks": LoadsSwapped,
    "a load that comes late": LateCopy,
}
