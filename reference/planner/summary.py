"""The figures of a plan that a person reads, worked out once (P9)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from math import lcm

from kvproof.reference.planner.capacity import Capacity, capacity, need, useful_bytes
from kvproof.reference.planner.chunk import planned_layout
from kvproof.reference.planner.plan import Need, Plan, PlannedGroup
from kvproof.reference.transfer.chunk_layout import DEFAULT_TOKENS, ChunkLayout


@dataclass(frozen=True)
class Alike:
    """Groups one after the other that differ only in which layers they have."""

    first: int
    last: int
    group: PlannedGroup
    blocks: int
    """Blocks of each of them, for a request of `max_len`."""
    filled: int
    """Bytes of one block, or of one state, that layers fill, on all workers."""
    room: int
    """Bytes of that block, or of the blocks of that state."""
    needed: int
    """Bytes that a request of `max_len` needs of all of them."""
    rounding: int
    padding: int


@dataclass(frozen=True)
class Summary:
    """A plan and its figures."""

    plan: Plan
    capacity: Capacity
    request: Need
    """Need of a request of `max_len` tokens."""
    groups: tuple[Alike, ...]

    @cached_property
    def chunk(self) -> ChunkLayout | None:
        """Layout of the chunks of the first worker that caches something (G2)."""
        owners = [index for index, worker in enumerate(self.plan.workers) if worker.views]
        tokens = lcm(self.plan.unit, DEFAULT_TOKENS)
        return planned_layout(self.plan, owners[0], tokens=tokens) if owners else None


def summary(plan: Plan) -> Summary:
    """Return the figures of a plan."""
    request = need(plan, plan.settings.max_len)
    runs = groupby(range(len(plan.groups)), key=lambda index: _shape(plan, index))
    groups = tuple(_alike(plan, request, list(indices)) for _, indices in runs)
    return Summary(plan, capacity(plan), request, groups)


def _shape(plan: Plan, index: int) -> tuple[object, ...]:
    group = plan.groups[index]
    used = tuple(worker.used[index] for worker in plan.workers)
    return (group.config, len(group.layers), len(group.readers), used)


def _alike(plan: Plan, request: Need, indices: list[int]) -> Alike:
    group, blocks = plan.groups[indices[0]], request.blocks[indices[0]]
    count = group.state_blocks if group.kind == "state" else 1
    rows = sum(worker.block_bytes for worker in plan.workers)
    separate = sum(worker.state_row_bytes for worker in plan.workers)
    room = separate if group.kind == "state" and separate else count * rows
    filled = sum(worker.used[indices[0]] for worker in plan.workers)
    needed = sum(
        useful_bytes(plan, worker, index, request.length)
        for worker in plan.workers
        for index in indices
    )
    held = needed if group.kind == "state" else filled * blocks * len(indices)
    return Alike(
        indices[0],
        indices[-1],
        group,
        blocks,
        filled,
        room,
        needed,
        rounding=held - needed,
        padding=rows * blocks * len(indices) - held,
    )
