"""Blocks whose computation was not judged: their content is trusted, and followed from then on."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from kvproof.harness.contract.target import Request, Table
from kvproof.harness.model.fingerprints import Fingerprints
from kvproof.harness.oracle.shadow_memory import Writer
from kvproof.harness.oracle.state import NULL_BLOCK, OracleState
from kvproof.harness.recorder.tables import Tables


class Trusted:
    """The blocks of one cache with content that was not seen being computed."""

    def __init__(self, state: OracleState, unseen: Iterable[int]) -> None:
        self._state, self._layout = state, state.layout
        self._unseen = set(unseen)
        self.count = 0
        """Blocks whose content was taken on trust."""

    def seen(self, blocks: Collection[int]) -> None:
        """These blocks are written from now on, or hold nothing."""
        self._unseen.difference_update(blocks)

    def clear(self) -> None:
        """Nothing that was cached before may be hit."""
        self._unseen.clear()

    def written(self, blocks: Collection[int]) -> None:
        """A request that is not judged writes these blocks."""
        state = self._state
        known = [block for block in blocks if NULL_BLOCK < block < state.config.num_blocks]
        state.allocate(tuple(known))
        self._unseen.update(known)
        for block in known:
            state.shadow.forget(block)

    def give(self, request: Request, tables: Tables, stop: int, *, cached: bool) -> None:
        """Trust the first `stop` tokens in blocks that were filled unseen.

        `cached`: the whole ones can be hit. A block outside the pool is checked later.
        """
        if not self._unseen or stop < 1:
            return
        prints = self._state.prints(request)
        reusable = cached and self._state.config.prefix_caching
        for group in self._layout.attention:
            self._group(group, request, tables[group], min(stop, len(prints)), reusable=reusable)
        for group in self._layout.states:
            if stop <= len(prints):
                self._kept_state(group, request, tables[group], stop, reusable=reusable)

    def _group(
        self, group: int, request: Request, table: Table, stop: int, *, reusable: bool
    ) -> None:
        state, prints = self._state, self._state.prints(request)
        size = self._layout.groups[group].block_size
        stop = min(stop, len(table) * size)
        for index in range(-(-stop // size)):
            block, start, end = table[index], index * size, min(stop, (index + 1) * size)
            if block not in self._unseen or (block == NULL_BLOCK and not self._layout.single):
                continue
            if state.shadow.writer_of_block(block) is None:
                self._write(group, request, table, (start, end), prints)
            if reusable and end == (index + 1) * size:
                state.model.store(block, prints, index, group)

    def _write(
        self, group: int, request: Request, table: Table, span: tuple[int, int],
        prints: Fingerprints,
    ) -> None:  # fmt: skip
        state, (start, end) = self._state, span
        slots = state.shadow.slots(table, start, end, self._layout.pagings[group])
        writer = Writer(replace(request, tokens=request.tokens[:end]), state.epoch, 0, group)
        content = prints[start:end] ^ self._layout.salts[group]
        state.shadow.write(slots, start, content, writer)
        self.count += 1

    def _kept_state(
        self, group: int, request: Request, table: Table, stop: int, *, reusable: bool
    ) -> None:
        """The state after `stop` tokens is in the block of the last of them."""
        state, prints = self._state, self._state.prints(request)
        index = (stop - 1) // self._layout.groups[group].block_size
        block = table[index] if index < len(table) else NULL_BLOCK
        if block not in self._unseen or not 0 < block < state.config.num_blocks:
            return
        if state.shadow.writer_of_block(block) is None:
            writer = Writer(replace(request, tokens=request.tokens[:stop]), state.epoch, 0, group)
            content = prints[stop - 1] ^ self._layout.state_salts[group, 0]
            state.shadow.fill(state.shadow.block(block), stop - 1, content, writer)
            self.count += 1
        if reusable and stop % self._layout.unit == 0:
            state.model.store_state((block,), prints, stop, group)
