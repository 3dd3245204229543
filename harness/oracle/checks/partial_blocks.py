"""Checks of partial blocks: a hit inside a block goes on in a copy (T6)."""

from __future__ import annotations

import numpy as np

from kvproof.harness.contract.target import Scheduled
from kvproof.harness.oracle.state import OracleState, RequestState
from kvproof.harness.oracle.violation import SHADOW, fail

_COPIED = "partial_blocks_are_copied_before_they_are_written"


class PartialBlockChecks:
    """Checks the copies of partial blocks in one history."""

    def __init__(self, state: OracleState) -> None:
        self._state = state
        self._layout = state.layout

    def copied(self, live: RequestState, answer: Scheduled) -> None:
        """A hit that ends inside a unit goes on in copies of the blocks with its tokens (T6)."""
        unit = self._layout.unit
        if not answer.hit % unit:
            return
        needed = set[tuple[int, int]]()
        for group in self._layout.attention:
            size = self._layout.groups[group].block_size
            first = answer.hit // unit * unit // size
            for index in range(first, self._layout.blocks_for(group, answer.hit)):
                self._block(live, answer, group, index)
                needed.add((group, live.groups[group][index]))
        self._no_more(live, answer, needed)

    def _no_more(self, live: RequestState, answer: Scheduled, needed: set[tuple[int, int]]) -> None:
        """No other block of these groups is copied: it would hold no token of the hit (T6)."""
        attention = self._layout.attention
        made = {(group, target) for group, _, target in answer.copies if group in attention}
        if more := sorted(made - needed):
            fail(
                self._state,
                _COPIED,
                SHADOW,
                f"request {live.request.id} hits {answer.hit} tokens, and blocks without a token "
                f"of the hit are copied into too: {more} (group, block)",
                suspects=tuple(block for _, block in more),
            )

    def _block(self, live: RequestState, answer: Scheduled, group: int, index: int) -> None:
        own, size = live.groups[group][index], self._layout.groups[group].block_size
        sources = [source for g, source, target in answer.copies if (g, target) == (group, own)]
        start = index * size
        stop = min(answer.hit, start + size)
        self._state.checks[_COPIED] += 1
        if not (
            len(sources) == 1
            and sources[0] not in live.blocks
            and self._holds(sources[0], live, group, (start, stop))
        ):
            fail(
                self._state,
                _COPIED,
                SHADOW,
                f"request {live.request.id} hits {answer.hit} tokens and goes on in block {own} of "
                f"group {group}, into which {sources or 'nothing'} was copied: it needs one copy "
                f"of another block with positions {start} to {stop - 1}",
                suspects=(own, *sources),
            )

    def _holds(self, block: int, live: RequestState, group: int, span: tuple[int, int]) -> bool:
        state, paging = self._state, self._layout.pagings[group]
        if not 0 < block < state.config.num_blocks:
            return False
        pages = range(block * paging.ratio, (block + 1) * paging.ratio)
        slots = state.shadow.slots(pages, 0, span[1] - span[0], paging)
        ends = slice(span[0] + paging.entry - 1, span[1], paging.entry)
        expected = live.prints[ends] ^ self._layout.salts[group]
        return bool(np.array_equal(state.shadow.content[slots], expected))
