"""Requests and steps as the harness sees them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from kvproof.harness.contract.target import Request, Scheduled, Table
from kvproof.harness.oracle.group_layout import Layout
from kvproof.harness.oracle.shadow_memory import Fingerprints

NULL_BLOCK = 0

NO_ROW, ROW, FILLED_ROW = 0, 1, 2
"""What must be known of the expert row of a position: nothing, that it is there, and why."""


@dataclass
class Live:
    """A request as the harness sees it."""

    request: Request
    prints: Fingerprints
    epoch: int
    layout: Layout
    groups: tuple[Table, ...] = ()
    """Blocks per group, null where nothing is visible any more."""
    tables: tuple[Table, ...] = ()
    computed: int = 0
    """Tokens computed or scheduled."""
    hit: int = 0
    """Tokens from the cache at admission."""
    stored: int = 0
    """Tokens that are reusable already, or were not to be."""
    steps: dict[int, int] = field(default_factory=dict)
    """Steps in flight -> where each starts."""
    drafts: int = 0
    """Draft tokens at the end, of which it is not known yet whether they stay."""
    prompt: int = 0
    """Tokens at admission."""
    junction: int = 0
    """Where its attention groups matched further than its state; 0 for nowhere (S8)."""
    encoded: set[int] = field(default_factory=set)
    """Spans whose encoder has run."""
    routed: npt.NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    """Per computed position, one of NO_ROW, ROW, FILLED_ROW."""

    @property
    def blocks(self) -> Table:
        """Blocks of the shared pool, of all groups in order, without nulls."""
        return self.layout.flat(self.groups)

    @property
    def earliest(self) -> int:
        """Where its oldest step in flight starts, else how far it is computed."""
        return min(self.steps.values(), default=self.computed)


@dataclass(frozen=True)
class Step:
    """A step in flight: who computes up to where, over which blocks."""

    live: Live
    start: int
    stop: int
    blocks: frozenset[int]
    """Blocks of the shared pool that it reads or writes."""
    answer: Scheduled
    """What scheduled it."""
    held: frozenset[int] = frozenset()
    """Blocks beside the tables that are held until it is done: states, destinations of copies."""
    sources: frozenset[int] = frozenset()
    """Blocks that it copies from: of checkpoints, and partial last ones."""
    slots: frozenset[int] = frozenset()
    """Slots of the separate state pool that it reads or writes."""
    drafts: int = 0
    """How many of its tokens may be rejected when it is done."""
    saves: tuple[tuple[int, int, Table], ...] = ()
    """(tokens, group, blocks): checkpoints that it saves."""
    frozen: tuple[tuple[int, int], ...] = ()
    """(block, group): copies of what lies behind the last full unit when it is done."""


@dataclass
class Fenced:
    """Blocks given back while a step in flight may still touch them (B6)."""

    request: Request
    blocks: Table
    steps: set[int]
    sure: bool = True
    """False: nothing is visible in them any more, so that they may be free already."""
