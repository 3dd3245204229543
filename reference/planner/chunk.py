"""The chunk of a planned worker: geometry of its groups, before there is any memory (G1, P7).

In a plan every block id owns a row of the pool. Attention layers are views of kernel rows, so their
pages have gaps. A state in the shared pool takes as many whole rows as its blocks, and is opaque
(S9).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from kvproof.reference.planner.plan import Plan, PlannedGroup, View, Worker
from kvproof.reference.transfer.chunk_layout import (
    DEFAULT_TOKENS,
    ITEM_BYTES,
    ChunkLayout,
    Geometry,
    LayoutError,
)

ELEMENTS = {"fp8": "float8_e4m3fn"}
"""Element types of plans that torch calls otherwise."""


class PlannedCache(NamedTuple):
    """One tensor of a worker."""

    name: str
    table: int
    """Group of the plan, whose block table addresses it."""
    group: PlannedGroup
    view: View | None
    """None: whole rows, of states."""
    row_bytes: int
    """From one page to the next."""

    @property
    def dtype(self) -> str:
        """The element type, called as torch calls it."""
        return "uint8" if self.view is None else ELEMENTS.get(self.view.dtype, self.view.dtype)

    @property
    def packed(self) -> bool:
        """Whether a page holds the values of all its tokens, then their scales."""
        return self.view is not None and self.view.part == "indexer"


def planned_caches(plan: Plan, worker: int = 0) -> list[PlannedCache]:
    """Return every tensor that a worker owns, in model order; readers own none (P1)."""
    return list(_caches(plan, plan.workers[worker]))


def planned_layout(plan: Plan, worker: int = 0, *, tokens: int = DEFAULT_TOKENS) -> ChunkLayout:
    """Return the layout of a worker's chunks, the one that its tensors have too (G2)."""
    members: dict[tuple[int, Geometry], list[str]] = {}
    for cache in planned_caches(plan, worker):
        members.setdefault((cache.table, _geometry(plan, cache)), []).append(cache.name)
    found = [replace(shape, names=tuple(names)) for (_, shape), names in members.items()]
    return ChunkLayout.of(found, tokens=tokens)


def _caches(plan: Plan, worker: Worker) -> Iterator[PlannedCache]:
    stated: set[int] = set()
    for view in worker.views:
        group = plan.groups[view.group]
        if view.owner:
            continue
        if group.kind != "state":
            stride = worker.block_bytes // group.config.kernel_ratio
            yield PlannedCache(_name(view), view.group, group, view, stride)
        elif not (stated and plan.separate_states) and view.group not in stated:
            stated.add(view.group)
            row = worker.state_row_bytes or worker.block_bytes
            yield PlannedCache(f"states of group {view.group}", view.group, group, None, row)


def _name(view: View) -> str:
    return f"{view.layer}.{view.part}"


def _geometry(plan: Plan, cache: PlannedCache) -> Geometry:
    group, view = cache.group, cache.view
    if view is None:
        return Geometry(
            names=("",), dtype="uint8", heads=1, width=cache.row_bytes, kind="state",
            block=group.block_size, rows=1 if plan.separate_states else group.state_blocks,
        )  # fmt: skip
    if cache.dtype not in ITEM_BYTES:
        raise LayoutError(f"{cache.name}: {cache.dtype!r} is none of {', '.join(ITEM_BYTES)}")
    if cache.row_bytes % ITEM_BYTES[cache.dtype]:
        raise LayoutError(
            f"{cache.name}: {cache.row_bytes} bytes from page to page are no whole number of "
            f"{cache.dtype}"
        )
    return Geometry(
        names=("",), dtype=cache.dtype, heads=view.heads, width=view.width, kind=group.kind,
        size=group.size, block=group.block_size, entry=view.ratio * group.context.count,
    )  # fmt: skip
