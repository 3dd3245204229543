"""A request as the device knows it: its sampled tokens, its computed positions, its drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvproof.harness.contract.whole_engine import EngineRequest, Row, StateWrite
from kvproof.harness.model.chain import Chain
from kvproof.harness.model.draft_trees import DraftTree
from kvproof.harness.model.fingerprints import Fingerprints, mix
from kvproof.harness.whole_engine.memory import Pool

HALF = mix(0xE47A1F)
"""Mixed into the fingerprint of an entry some of whose tokens its writer has not computed."""


@dataclass
class DeviceRequest:
    """A request as the device knows it."""

    request: EngineRequest
    chain: Chain
    sampled: dict[int, int] = field(default_factory=dict)
    """Position -> token that the device answered there last."""
    computed: int = 0
    """Tokens whose content is in the pool, accepted drafts included."""
    known: int = 0
    """Tokens of the prompt and of answers so far."""
    drafts: list[int] = field(default_factory=list)
    tree: DraftTree | None = None
    """The tree that was drafted last, where drafts are a tree."""
    unreported: int = 0
    """Drafts of the last launch."""
    proposals: int = 0
    begun: set[tuple[int, int]] = field(default_factory=set)
    """(Group, block) that it has written since it was admitted."""
    since: int = 0
    """First position that it has computed since it was admitted: it has no inputs before it."""
    struck: bool = False
    """A known failure struck it: it is aborted, and its launches under way are not judged."""
    load_failed: bool = False
    """A launch of it computed from a load that had failed."""

    def entries(self, prints: Fingerprints, start: int, entry: int) -> Fingerprints:
        """Return `prints`, from position `start` on, of entries of so many tokens (Q1).

        An entry needs the inputs of all its tokens. They are kept outside the cache until it is
        complete: those of tokens from before the request's admission are missing.
        """
        firsts = np.arange(start, start + len(prints)) // entry * entry
        return np.where(firsts < self.since, prints ^ np.uint64(HALF), prints)

    def advance(self, work: Work, tokens: tuple[int, ...]) -> None:
        """Take a launch's result: the last answer is sampled and not computed."""
        self.unreported = work.row.drafts
        if not tokens:
            self.computed = work.end
            return
        for offset, token in enumerate(tokens):
            self.sampled[work.known + offset] = token
        self.known = work.known + len(tokens)
        self.computed = self.known - 1


@dataclass(frozen=True)
class Work:
    """A row at execution: true positions and tokens."""

    row: Row
    request: DeviceRequest
    start: int
    end: int
    known: int
    """Positions below it hold verified tokens; drafts follow."""
    drafts: tuple[int, ...]
    prints: Fingerprints
    """Fingerprints that positions 0..end must hold."""

    def state_read(self, group: int, pool: Pool) -> int:
        """Return the place of the state after the tokens before it."""
        reads = self.row.groups[group]
        if reads.use is not None:
            return reads.use.read
        column = pool.visibility.first_block(self.start, pool.block_size)
        return int(reads.table[reads.state if reads.states else column])

    def state_writes(self, group: int, pool: Pool) -> Sequence[StateWrite]:
        """Return the states that it leaves, in their order."""
        reads = self.row.groups[group]
        if reads.use is not None:
            return reads.use.writes
        columns, first = reads.states, self.known
        if not columns:
            columns, first = [(self.end - 1) // pool.block_size], self.end
        places = [int(reads.table[column]) for column in columns]
        return [StateWrite(place, length) for length, place in enumerate(places, first)]
